"""What the producers and administrators of the campaign send: transactions of every kind, delayed messages, nonsense.

What must become of it is not kept here: `kafka_log` reads it from Kafka. What producers decided stands in their
database before any op, and they answer checks. A shop lives as long as the campaign, so whoever asks is answered: a
transaction that it has decided never needs to be given up.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from tests.support.lake import Lake, newest
from tests.support.polling import patience

from commitlake.protocol import message_batch, wire
from commitlake.protocol.clock import now_ms
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


TOPICS = ("a", "b")
HOSTILE = b"hostile"
"""The key of a record that must be refused."""
_PAUSE_S = 0.6
_ENDED_BY_KAFKA_MS = 40_000
"""By then a Kafka transaction that was left open has ended."""


class MixedTraffic:
    """Sends one thing after the other; in a round nearly all goes to one queue."""

    def __init__(self, lake: Lake, shop: Shop, seed: int) -> None:
        self.lake, self.shop, self.queues = lake, shop, lake.config.kafka.queues
        self.chosen, self.queue, self.sent = random.Random(seed), 0, 0
        self._names = itertools.count()
        self._resumed: set[tuple[str, int]] = set()
        self._left_open: list[int] = []
        self._kinds: dict[Callable[[str], None], int] = {
            self._committed: 5,
            self._rolled_back: 2,
            self._op_lost: 3,
            self._never_decided: 2,
            self._decided_late: 4,
            self._op_late: 3,
            self._several: 3,
            self._part_refused: 1,
            self._conflict: 2,
            self._committed_with_delay: 4,
            self._forced: 1,
            self._normal: 3,
            self._batch: 1,
            self._delayed: 5,
            self._recalled: 4,
            self._relayed: 2,
            self._wrong: 1,
            self._hostile: 1,
        }

    def readable_until(self) -> int:
        """Until when (ms since epoch) all that was sent can be read: later ones may be behind an open transaction."""
        now = now_ms()
        self._left_open = [each for each in self._left_open if now - each < _ENDED_BY_KAFKA_MS]
        return min(self._left_open, default=now)

    def burst(self, count: int) -> None:
        """So many things, one right after the other."""
        for _ in range(count):
            self.one()

    @contextmanager
    def steadily(self, pause_s: float = _PAUSE_S) -> Iterator[None]:
        """Goes on sending in a thread of its own."""
        stopping = threading.Event()

        def serve() -> None:
            while not stopping.wait(pause_s * patience()):  # what lands slowly must not get ever more
                self.one()

        thread = threading.Thread(target=serve, name="traffic", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join(60)

    def one(self) -> None:
        """One thing of any kind; lost where Kafka is away."""
        (kind,) = self.chosen.choices(list(self._kinds), list(self._kinds.values()))
        lost_with_kafka(lambda: kind(f"t{next(self._names)}"))
        self.sent += 1

    def hang(self) -> str:
        """A transaction whose op is lost: only a check can save it."""
        tid = f"t{next(self._names)}"
        lost_with_kafka(lambda: self._op_lost(tid))
        return tid

    def resume_discarded(self, most: int) -> int:
        """An administrator reopens some that stand as discarded; the shop has decided them meanwhile.

        Each discard once: it stands in the table until a start has come to the RESUME, and a second one is refused.
        """
        ended = newest(self.lake.rows("transactions"))
        gone = [row for row in ended.values() if row["state"] == "DISCARDED" and row["reason"] == "CHECK_MAX"]
        firsts = [row for row in gone if row["message_id"] == row["transaction_id"]]
        firsts = [row for row in firsts if (row["transaction_id"], row["round"]) not in self._resumed]
        some = self.chosen.sample(firsts, min(most, len(firsts)))
        for row in some:
            tid, at = row["transaction_id"], Position(row["queue"], row["half_offset"])
            self._resumed.add((tid, row["round"]))
            self.shop.decide(tid, self.chosen.choice(["COMMIT", "ROLLBACK"]))
            lost_with_kafka(lambda tid=tid, at=at: self.lake.admin("RESUME", tid, at))  # type: ignore[misc]
        return len(some)

    def _begin(self, tid: str, **more: Any) -> Position:
        fields = {"msg_id": tid, "topic": self.chosen.choice(TOPICS), "group": GROUP, **more}
        return self.lake.half(tid, self.queue, **fields)

    def _soon(self, do: Callable[[], object], least: float, most: float) -> None:
        self.shop.later.at(time.time() + self.chosen.uniform(least, most), do)

    def _committed(self, tid: str) -> None:
        at = self._begin(tid)
        self.shop.decide(tid, "COMMIT")
        self.lake.op("COMMIT", tid, at)

    def _rolled_back(self, tid: str) -> None:
        at = self._begin(tid)
        self.shop.decide(tid, "ROLLBACK")
        self.lake.op("ROLLBACK", tid, at)

    def _op_lost(self, tid: str) -> None:
        self.shop.decide(tid, self.chosen.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
        self._begin(tid)

    def _never_decided(self, tid: str) -> None:
        self._begin(tid)

    def _decided_late(self, tid: str) -> None:
        """After the first or, just in time, after the last check."""
        self.shop.decides_after(
            tid, self.chosen.choice([1, 2, 2]), self.chosen.choice(["COMMIT", "COMMIT", "ROLLBACK"])
        )
        self._begin(tid)

    def _op_late(self, tid: str) -> None:
        at = self._begin(tid)
        self.shop.decide(tid, "COMMIT")
        self._soon(lambda: self.lake.op("COMMIT", tid, at), 0.3, 2.5)

    def _several(self, tid: str) -> None:
        first, listed = self._begin(tid), []
        for number in range(self.chosen.choice([1, 2])):
            queue = self.chosen.choice([self.queue, self.chosen.randrange(self.queues)])
            listed.append(self.lake.half(tid, queue, first=first, msg_id=f"{tid}.{number}", topic="b", group=GROUP))
        decision = self.chosen.choice(["COMMIT", "COMMIT", "ROLLBACK"])
        self.shop.decide(tid, decision)
        if self.chosen.random() < 0.8:
            self.lake.op(decision, tid, first, *listed)

    def _part_refused(self, tid: str) -> None:
        """No topic may have its name, so all of the transaction is given up."""
        first = self._begin(tid)
        refused = {"topic": "RMQ_SYS_x", "msg_id": f"{tid}.refused", "sharding_key": HOSTILE}
        part = self.lake.half(tid, self.queue, first=first, group=GROUP, **refused)
        self.shop.decide(tid, "COMMIT")
        self.lake.op("COMMIT", tid, first, part)

    def _conflict(self, tid: str) -> None:
        at, (first, second) = self._begin(tid), self.chosen.choice([("COMMIT", "ROLLBACK"), ("ROLLBACK", "COMMIT")])
        self.shop.decide(tid, first)
        self.lake.op(first, tid, at)
        self._soon(lambda: self.lake.op(second, tid, at), 0, 3)

    def _committed_with_delay(self, tid: str) -> None:
        at = self._begin(tid, delays=self._delay())
        self.shop.decide(tid, "COMMIT")
        self.lake.op("COMMIT", tid, at)

    def _forced(self, tid: str) -> None:
        at = self._begin(tid)
        self.shop.decide(tid, "COMMIT")
        self.lake.admin("COMMIT", tid, at)

    def _normal(self, tid: str) -> None:
        self.lake.message(tid, self.queue, topic=self.chosen.choice(TOPICS))

    def _batch(self, tid: str) -> None:
        members = [message_batch.Member(b"member", {"UNIQ_KEY": f"{tid}.{number}"}) for number in range(3)]
        record = wire.MessageRecord(topic="a", msg_id=tid, body=message_batch.pack(members), batch=len(members))
        self.lake.send("messages", wire.encode_message(record), self.queue)

    def _delayed(self, tid: str) -> None:
        self.lake.message(tid, self.queue, topic=self.chosen.choice(TOPICS), delays=self._delay())

    def _recalled(self, tid: str) -> None:
        """Some time before it is due, or too late."""
        delay_ms, topic = self.chosen.randrange(1_000, 5_000), self.chosen.choice(TOPICS)
        at = self.lake.message(tid, self.queue, topic=topic, delays={"TIMER_DELAY_MS": str(delay_ms)})
        early_s = self.chosen.choice([-0.3, 0.05, 0.3, 0.8, 1.5, 3.0])
        wait_s = max(0.0, delay_ms / 1_000 - early_s)
        self._soon(lambda: self.lake.recall(tid, at, topic=topic), wait_s, wait_s)

    def _relayed(self, tid: str) -> None:
        """Within a Kafka transaction, which may be aborted, or left open."""
        left_open_ms = now_ms()
        with self.lake.relay() as relay:
            at = relay.half(tid, self.queue, msg_id=tid, topic=self.chosen.choice(TOPICS), group=GROUP)
            relay.op("COMMIT", tid, at)
            relay.message(f"{tid} beside", self.queue, topic=self.chosen.choice(TOPICS))
            self.shop.decide(tid, "COMMIT")
            end = self.chosen.choice(["commit", "abort", "leave"])
            if end == "leave":
                self._left_open.append(left_open_ms)
                relay.producer.close(timeout=0)
            else:
                getattr(relay.producer, f"{end}_transaction")()

    def _wrong(self, tid: str) -> None:
        """An op with another transaction id; the half message stays as it is."""
        at = self._begin(tid)
        self.shop.decide(tid, "COMMIT")
        self.lake.op("ROLLBACK", f"{tid} of another", at)

    def _hostile(self, _: str) -> None:
        source, value, headers = self.chosen.choice(
            [
                ("op", b"not JSON", {}),
                ("op", b'{"decision":"COMMIT","half_messages":[]}', {}),
                ("half", b"no topic", {"UNIQ_KEY": b"k"}),
                ("messages", b"reserved", {"REAL_TOPIC": b"RMQ_SYS_x", "UNIQ_KEY": b"k"}),
                ("messages", b"delay", {"REAL_TOPIC": b"a", "UNIQ_KEY": b"k", "TIMER_DELAY_MS": b"soon"}),
                ("messages", b"{}", {"REAL_TOPIC": b"a", "UNIQ_KEY": b"k", "BATCH": b"3"}),
            ]
        )
        self.lake.send(source, wire.Encoded(HOSTILE, value, list(headers.items())), self.queue)

    def _delay(self) -> dict[str, str]:
        return {"TIMER_DELAY_MS": str(self.chosen.randrange(0, 5_000))}
