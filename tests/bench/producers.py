"""The load of a steady service: transactions at a rate, some of them silent until a check asks; then they commit."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from kafka import KafkaConsumer, KafkaProducer

TICK_S = 0.05
BODY = b"." * 256
GROUP = "bench"
COMMITTED, ROLLED_BACK = 890, 100


class Load:
    """Begins `rate` transactions a second until it is stopped.

    Args:
        servers: Kafka's address.
        prefix: of the Kafka topics.
        rate: transactions a second.
        decision: what becomes of transaction number n; None is silence.
        queues: partitions of `half`.
    """

    def __init__(self, servers: str, prefix: str, rate: int, decision: Callable[[int], str | None], queues: int = 4):
        self._servers, self._prefix, self._rate, self._decision, self._queues = servers, prefix, rate, decision, queues
        self._stop, self._stop_sending = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._answer)]
        self.sent = self.answered = 0

    def __enter__(self) -> Load:
        """Starts it."""
        for thread in self._threads:
            thread.start()
        return self

    def stop_sending(self) -> None:
        """Begins no more transactions; checks are still answered."""
        self._stop_sending.set()
        self._threads[0].join()

    def __exit__(self, *_: object) -> None:
        """Stops it."""
        self._stop_sending.set()
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        producer = self._producer()
        next_tick = time.monotonic()
        while not self._stop_sending.is_set():
            self._transactions(producer, int(self._rate * TICK_S))
            next_tick += TICK_S
            time.sleep(max(0.0, next_tick - time.monotonic()))
        producer.close()

    def _transactions(self, producer: KafkaProducer, count: int) -> None:
        sent = []
        for number in range(self.sent, self.sent + count):
            name = f"T{number:012d}"
            headers = [("REAL_TOPIC", b"orders"), ("UNIQ_KEY", name.encode()), ("PGROUP", GROUP.encode())]
            to = f"{self._prefix}half"
            sent.append((number, name, producer.send(to, BODY, partition=number % self._queues, headers=headers)))
        producer.flush()
        for number, name, future in sent:
            decision = self._decision(number)
            if decision is not None:
                place = future.get(timeout=30)
                self._op(producer, name, decision, [{"queue": place.partition, "offset": place.offset}])
        self.sent += count

    def _answer(self) -> None:
        producer = self._producer()
        consumer = KafkaConsumer(
            f"{self._prefix}check",
            bootstrap_servers=self._servers,
            group_id=f"{self._prefix}check.{GROUP}",
            auto_offset_reset="earliest",
        )
        while not self._stop.is_set():
            for records in consumer.poll(200).values():
                for record in records:
                    headers = dict(record.headers)
                    listed = json.loads(headers["HALF_MESSAGES"])
                    self._op(producer, record.key.decode(), "COMMIT", listed, from_check=True)
                    self.answered += 1
        consumer.close()
        producer.close()

    def _op(
        self, producer: KafkaProducer, name: str, decision: str, listed: list[dict[str, int]], **more: bool
    ) -> None:
        told = {"transaction_id": name, "producer_group": GROUP, "decision": decision, "half_messages": listed, **more}
        producer.send(f"{self._prefix}op", json.dumps(told).encode(), name.encode(), partition=listed[0]["queue"])

    def _producer(self) -> KafkaProducer:
        return KafkaProducer(bootstrap_servers=self._servers, acks="all", linger_ms=2)


def mostly_decided(number: int) -> str | None:
    """Of 1 000 transactions 890 are committed, 100 rolled back, and 10 stay silent."""
    lot = number * 7919 % 1_000
    return "COMMIT" if lot < COMMITTED else "ROLLBACK" if lot < COMMITTED + ROLLED_BACK else None
