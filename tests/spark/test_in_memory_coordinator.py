"""The coordinator in memory against the real one: random records, the same ones to both, end in the same way.

Three phases, since answers, late parts and RESUMEs need something to be about that has been coordinated before.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake, Record

from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol import message_batch, wire
from commitlake.protocol.clock import now_ms
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import LANDED
from commitlake.protocol.names import Claims, Names
from commitlake.protocol.states import Source
from commitlake.testing import InMemoryCoordinator
from commitlake.testing.landing import hashed
from commitlake.testing.shown import Shown, VisibleMessage, place

KEYS, IDS = ({"by": name, "window": "1d"} for name in ("keys", "message_id"))
HASTY: dict[str, object] = {
    "max_message_size": "2KiB",
    "transaction.timeout": "1ms",
    "transaction.check_interval": "1ms",
    "transaction.check_max": 1,
    "transaction.op_park_time": "1ms",
    "topics.dedup": {"names": KEYS},
}
CHANGES: list[dict[str, object]] = [
    {},
    {"topics.allowed": ["orders"], "topics.dedup": {"orders": KEYS}},
    {"transaction.reject": True, "topics.dedup": {"orders": IDS, "names": KEYS}},
]
"""Each phase is a start, with a configuration of its own."""
NEVER = Position(1, 1_000_000)
SOON, LATE = {"TIMER_DELAY_MS": "1"}, {"TIMER_DELAY_SEC": "3600"}
HOSTILE: list[dict[str, Any]] = [
    {"topic": "no topic"},
    {"topic": "x" * 128},
    {"topic": ""},
    {"topic": "RMQ_SYS_x"},
    {"msg_id": ""},
    {"queue_id": 10_000},
    {"delays": {"DELAY": "soon"}},
    {"delays": {"TIMER_DELAY_SEC": "1", "TIMER_DELIVER_MS": "x"}},
    {"delays": {"TIMER_DELAY_SEC": "9" * 30}},
    {"body": b"x" * 2049},
    {"batch": 3},
]


class Traffic:
    """Random records; what is sent is remembered, so that later ones can be about it."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake, self.rng = lake, random.Random(seed)
        self.halves: list[tuple[str, Position]] = []
        self.delayed: list[tuple[str, Position]] = []
        self._numbers = 0

    def phase(self, number: int) -> None:
        for _ in range(60 if number == 0 else 30):
            kinds: list[Callable[[], object]] = [self.single, self.single, self.several, self.other, self.hostile]
            if number:
                kinds += [self.again, self.again, self.late_part, self.recall, self.resume]
            self.rng.choice(kinds)()
        if number:
            for check in self.lake.checks():
                self.answer(check)

    def name(self) -> str:
        self._numbers += 1
        return f"t{self._numbers}"

    def half(self, tid: str, **more: Any) -> Position:
        topic = self.rng.choice(["orders", "names"])
        keys = self.rng.choice(["a", "b", "c", None])
        given = {"topic": topic, "keys": keys, "msg_id": f"{tid}-{self.name()}", **more}
        return self.lake.half(tid, self.rng.randrange(2), **given)

    def begin(self) -> tuple[str, Position]:
        tid = self.name()
        delays = self.rng.choice([{}, {}, {}, SOON, LATE])
        at = self.half(tid, delays=delays, check_immunity_s=self.rng.choice([None, None, 0, 3600]))
        self.halves.append((tid, at))
        return tid, at

    def op(self, tid: str, *listed: Position) -> None:
        decision = self.rng.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK", "UNKNOWN"])
        wrong = self.rng.randrange(10)
        if wrong == 0:
            tid = "other"
        if self.rng.randrange(8) == 0:
            self.lake.admin(decision, tid, *listed)
        else:
            self.lake.op(decision, tid, *listed, group="other" if wrong == 1 else "g")

    def single(self) -> None:
        tid, at = self.begin()
        for _ in range(self.rng.choice([0, 1, 1, 1, 2])):
            self.op(tid, at)

    def several(self) -> None:
        tid, first = self.begin()
        parts = [self.part(self.rng.choice([tid] * 5 + ["x"]), first) for _ in range(self.rng.choice([1, 2]))]
        listed = self.rng.choice([[first, *parts], [first, *parts], [first], [*parts, first], [first, NEVER]])
        if self.rng.randrange(4):
            self.op(tid, *listed)

    def part(self, tid: str, first: Position) -> Position:
        """One in eight is refused."""
        return self.half(tid, first=first, **self.rng.choice([{}] * 7 + [{"queue_id": 10_000}]))

    def other(self) -> None:
        name, topic = self.name(), self.rng.choice(["orders", "names"])
        keys = self.rng.choice(["a", "b", "d", None])
        kind = self.rng.randrange(5)
        if kind == 0:
            members = [message_batch.Member(b"x", {"UNIQ_KEY": f"{name}-{n}", "KEYS": f"{name}{n}"}) for n in range(2)]
            joined = message_batch.join(members, name)
            value, head = self.rng.choice(
                [joined, (message_batch.pack(members), None), (joined.value[:-1], joined.head)]
            )
            batch = wire.MessageRecord(topic=topic, msg_id=name, body=value, batch=2, batch_head=head)
            self.lake.send("messages", wire.encode_message(batch), 1)
        elif kind == 1:
            self.lake.op("COMMIT", name, NEVER)
        elif kind == 2:
            self.lake.message(name, topic=topic, keys=keys)
        else:
            at = self.lake.message(name, topic="orders", delays=self.rng.choice([SOON, LATE, LATE]))
            self.delayed.append((name, at))

    def hostile(self) -> None:
        given: dict[str, Any] = {"topic": "orders", "msg_id": self.name(), "body": b"x", "producer_group": "g"}
        given |= self.rng.choice(HOSTILE) | self.rng.choice([{}, *HOSTILE])
        if self.rng.randrange(2):
            self.lake.send("messages", wire.encode_message(wire.MessageRecord(**given)), 0)
        else:
            half = wire.HalfRecord(**given, transaction_id=self.rng.choice(["t", "t" * 300]))
            self.lake.send("half", wire.encode_half(half), 0)
        value = self.rng.choice([b"", b"[]", b"null", b'{"decision":"RESUME"}', b'{"decision":"COMMIT"}', b"\xff"])
        self.lake.send("op", wire.Encoded(None, value, []), 0)

    def again(self) -> None:
        self.op(*self.rng.choice(self.halves))

    def late_part(self) -> None:
        tid, first = self.rng.choice(self.halves)
        part = self.part(tid, first)
        if self.rng.randrange(2):
            self.op(tid, first, part)

    def recall(self) -> None:
        if self.delayed:
            name, at = self.rng.choice(self.delayed)
            self.lake.recall(self.rng.choice([name, name, "other"]), at, "orders")

    def resume(self) -> None:
        tid, at = self.rng.choice(self.halves)
        self.lake.admin("RESUME", tid, at)

    def answer(self, check: wire.CheckRecord) -> None:
        decision = self.rng.choice(["COMMIT", "ROLLBACK", "UNKNOWN", "UNKNOWN", None])
        if decision:
            about: dict[str, Any] = {"group": check.producer_group, "from_check": True, "check_id": check.check_id}
            self.lake.op(decision, check.transaction_id, *check.half_messages, **about)


class Replay:
    """The coordinator in memory, which gets what Kafka holds."""

    def __init__(self, config: dict[str, object]) -> None:
        self.memory, self._given, self._read = InMemoryCoordinator(config), config, set[Record]()

    def follow(self, lake: Lake, **changes: object) -> None:
        """Append what Kafka has got since, at Kafka's times; then it is now.

        Args:
            lake: the real one's.
            changes: keys of the configuration.
        """
        self._start({**self._given, **changes})
        for source in LANDED:
            for record in lake.kafka(source):
                at = Record(source, record.partition, record.offset)
                if at not in self._read:
                    self._read.add(at)
                    self.memory.now = record.timestamp
                    encoded = wire.Encoded(record.key, record.value, record.headers)
                    assert self.memory.append(source, record.partition, encoded) == at.position
        self.memory.now = now_ms()
        self.memory.advance(1)  # the real one goes on until all that waited has ended

    def _start(self, given: dict[str, object]) -> None:
        """Names are those of the messages that are shown, whatever `topics.dedup` was."""
        self.memory.config = InMemoryCoordinator(given).config
        before, self.memory._shown = self.memory._shown, Shown(self.memory.config.topics.dedup)
        self.memory._shown._topics = before._topics
        for topic, each in self.memory.config.topics.dedup.items():
            named = [(getattr(message, each.by), message) for message in before.of(topic)]
            held = [(hashed(name), *_held(message)) for name, message in named if name]
            if held:
                self.memory._shown._names[topic] = Names(each.window_ms, Claims(*np.array(held, np.int64).T))

    def told(self) -> dict[str, object]:
        ledger = self.memory._segments.ledger
        shown = [message for topic in ("orders", "names") for message in self.memory.messages(topic)]
        return {
            "ended": {
                (*at, end.round): (end.state.name, end.reason.name, end.checks, end.op and end.op[:2])
                for at, ends in ledger.transactions.items()
                for end in ends
            },
            "delivered": {
                (source, *at): "RECALLED" if state.name == "RECALLED" else "DELIVERED"
                for (source, at), (state, _) in ledger.deliveries.items()
            },
            "rejected": {(each.source, *each.at): each.reason for each in self.memory.rejected},
            "shown": sorted((message.topic, message.position, message.due_at or 0) for message in shown),
            "asked": {check.check_id for check in self.memory.checks},
        }


def _held(message: VisibleMessage) -> tuple[int, int]:
    """By what a name is held, and since when."""
    source, queue, offset, _ = message.position.split("-")
    return place(Source[source.upper()], Position(int(queue), int(offset))), message.visible_at


def in_tables(lake: Lake) -> dict[str, object]:
    ended = lake.rows("transactions")
    shown = [(topic, row) for topic in lake.topics() for row in lake.topic(topic)]
    return {
        "ended": {
            (row["queue"], row["half_offset"], row["round"]): (
                *(row["state"], row["reason"], row["checks"]),
                None if row["op_queue"] is None else (row["op_queue"], row["op_offset"]),
            )
            for row in ended
        },
        "delivered": {
            (row["source"], row["queue"], row["queue_offset"]): (
                "RECALLED" if row["state"] == "RECALLED" else "DELIVERED"
            )
            for row in lake.rows("deliveries")
        },
        "rejected": {tuple(record): row["reason"] for record, row in lake.rejected().items()},
        "shown": sorted(
            (
                *(topic, f"{row['source']}-{row['source_queue']}-{row['source_offset']}-{row['source_index']}"),
                0 if row["due_at"] is None else round(row["due_at"].timestamp() * 1_000),
            )
            for topic, row in shown
        ),
        "asked": {check.check_id for check in lake.checks()},
    }


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 6))])
def test_any_records_end_as_with_the_real_coordinator(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, seed: int
) -> None:
    with Lake(broker.bootstrap_servers, f"memory{seed}.", tmp_path, **HASTY) as lake:
        traffic, replay = Traffic(lake, seed), Replay({"kafka.queues": 2, **HASTY})
        for phase, changes in enumerate(CHANGES):
            traffic.phase(phase)
            lake.run(spark, **{key.replace(".", "_", 1): value for key, value in changes.items()})
            replay.follow(lake, **changes)
            real, told = in_tables(lake), replay.told()
            for what, found in real.items():
                assert told[what] == found, f"{what} in phase {phase}"
        states = {end[0:2] for end in real["ended"].values()}  # type: ignore[attr-defined]
        assert {("COMMITTED", "DIRECT"), ("DISCARDED", "CHECK_MAX"), ("COMMITTED", "CHECK")} < states
