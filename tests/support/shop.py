"""The producers of the campaign: what they decided stands in their database before any op, and they answer checks.

A shop lives as long as the campaign, so whoever asks is answered: a transaction that it has decided never needs to be
given up.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Self

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from tests.support.lake import Lake

from commitlake.protocol import wire
from commitlake.protocol.encoding import Position

GROUP = "g"
_POLL_MS = 100
UNKNOWN = "UNKNOWN"


class Later:
    """Does things at their time, in a thread of its own: what Kafka refuses meanwhile is lost, as with any producer."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers, self._lock, self._stopping = itertools.count(), threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._serve, name="later", daemon=True)
        self._thread.start()

    def at(self, when: float, do: Callable[[], object]) -> None:
        """Does something at a time, s since epoch."""
        with self._lock:
            heapq.heappush(self._heap, (when, next(self._numbers), do))

    def is_idle(self) -> bool:
        with self._lock:
            return not self._heap

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)

    def _serve(self) -> None:
        while not self._stopping.wait(0.02):
            while (do := self._due()) is not None:
                lost_with_kafka(do)

    def _due(self) -> Callable[[], object] | None:
        with self._lock:
            is_due = self._heap and self._heap[0][0] <= time.time()
            return heapq.heappop(self._heap)[2] if is_due else None


def lost_with_kafka(do: Callable[[], object]) -> bool:
    """Whether it could be done; what fails since Kafka is away is lost."""
    try:
        do()
    except (KafkaError, TimeoutError):
        return False
    return True


class Shop:
    """Answers checks from its database, and sends some decisions late, on its own."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake, self.later = lake, Later()
        self.decided: dict[str, str] = {}
        self.changes_mind: dict[str, tuple[int, str]] = {}
        self.answered: set[str] = set()
        self._chosen = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="shop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(30)
        self.later.stop()

    def decide(self, tid: str, decision: str) -> None:
        """The local transaction has ended."""
        self.decided[tid] = decision

    def decides_after(self, tid: str, checks: int, decision: str) -> None:
        """The local transaction goes on, and ends right after so many checks were answered."""
        self.changes_mind[tid] = (checks, decision)

    def _serve(self) -> None:
        consumer = self._consumer()
        while not self._stopping.is_set():
            for records in consumer.poll(_POLL_MS).values():
                for record in records:
                    check = wire.decode_check(record.value, record.headers)
                    lost_with_kafka(lambda check=check: self.answer(check))  # type: ignore[misc]
        consumer.close()

    def _consumer(self) -> KafkaConsumer:
        name = self.lake.config.kafka.topic("check")
        consumer = KafkaConsumer(bootstrap_servers=self.lake.config.kafka.bootstrap_servers)
        consumer.assign([TopicPartition(name, at) for at in sorted(consumer.partitions_for_topic(name))])
        consumer.seek_to_beginning()
        return consumer

    def answer(self, check: wire.CheckRecord) -> None:
        """Answers a check, each time that it comes."""
        tid = check.transaction_id
        decision = self.decided.get(tid, UNKNOWN)
        self.lake.op(decision, tid, *check.half_messages, group=GROUP, from_check=True, check_id=check.check_id)
        self.answered.add(check.check_id)
        checks, decides = self.changes_mind.get(tid, (0, ""))
        if decision == UNKNOWN and decides and check.check_times == checks:
            self._decide_late(tid, decides, check.half_messages)

    def _decide_late(self, tid: str, decision: str, listed: tuple[Position, ...]) -> None:
        """It ends a moment after the answer; its op comes at once, or never."""

        def end() -> None:
            self.decide(tid, decision)
            self.lake.op(decision, tid, *listed, group=GROUP)

        self.later.at(time.time() + self._chosen.uniform(0, 0.6), end)
