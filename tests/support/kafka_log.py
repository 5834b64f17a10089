"""What stands in Kafka, and what by the contract must become of it; no code of the coordinator takes part."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from tests.support.lake import Lake
from tests.support.mixed_traffic import HOSTILE

SOURCES = ("half", "op", "admin", "messages")
DECISIONS = {"COMMIT": "COMMITTED", "ROLLBACK": "ROLLED_BACK"}


class At(NamedTuple):
    source: str
    queue: int
    offset: int

    def __str__(self) -> str:
        return f"{self.source} {self.queue}-{self.offset}"


@dataclass(frozen=True)
class Message:
    """A half message, or a record of `messages`; without a delay `delay_ms` is None; a batch has several `members`."""

    at: At
    tid: str
    group: str
    stored: int
    first: At
    delay_ms: int | None
    members: int
    is_hostile: bool

    @property
    def due(self) -> int:
        """Of a delayed message: when it is due, ms since epoch."""
        return self.stored + (self.delay_ms or 0)


@dataclass(frozen=True)
class Op:
    """A record of `op` or `admin`; `listed` are positions in `half`, of a recall the one in `messages`."""

    at: At
    stored: int
    tid: str
    group: str | None
    decision: str
    listed: tuple[At, ...]
    check_id: str | None
    is_hostile: bool

    @property
    def order(self) -> tuple[int, int, int]:
        return (self.stored, self.at.queue, self.at.offset)


@dataclass
class Transaction:
    """A first half message, its parts, those that landing must refuse, and the ops that fit; the earliest first."""

    first: Message
    parts: list[Message] = field(default_factory=list)
    refused: list[Message] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    resumes: list[Op] = field(default_factory=list)
    answers: list[Op] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        return [self.first, *self.parts]

    def decisions(self, round_: int) -> list[Op]:
        """What can decide a round: what came after the RESUME that opened it."""
        if not round_:
            return self.ops
        opened = self.resumes[round_ - 1].stored
        return [op for op in self.ops if op.stored > opened]

    def given_up_at(self, round_: int, check_max: int, interval_ms: int) -> int | None:
        """When the round was due to be discarded: an interval after the answer to its last check; None: never yet."""
        name = f"{self.first.at.queue}-{self.first.at.offset}-{round_}"
        first: dict[str, int] = {}
        for op in self.answers:
            first.setdefault(op.check_id or "", op.stored)
        answered = [first.get(f"{name}-{number}") for number in range(1, check_max + 1)]
        known = [at for at in answered if at is not None]
        return max(known) + interval_ms if len(known) == check_max else None


class KafkaLog:
    """Reads Kafka's topics on and on."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._names = {lake.config.kafka.topic(source): source for source in SOURCES}
        self._consumer = KafkaConsumer(
            bootstrap_servers=lake.config.kafka.bootstrap_servers, isolation_level="read_committed"
        )
        parts = [TopicPartition(name, n) for name in self._names for n in self._consumer.partitions_for_topic(name)]
        self._consumer.assign(parts)
        self._consumer.seek_to_beginning()
        self._partitions = parts
        self.messages: dict[At, Message] = {}
        self.ops: dict[At, Op] = {}

    def read(self) -> None:
        """Takes what has come since."""
        ends = self._consumer.end_offsets(self._partitions)
        while any(self._consumer.position(partition) < end for partition, end in ends.items()):
            for records in self._consumer.poll(500).values():
                for record in records:
                    self._take(record)

    def close(self) -> None:
        self._consumer.close()

    def _take(self, record: Any) -> None:
        at = At(self._names[record.topic], record.partition, record.offset)
        if at.source in ("op", "admin"):
            self.ops[at] = _op(at, record)
        else:
            self.messages[at] = _message(at, record)

    def transactions(self) -> dict[At, Transaction]:
        """By first half message; an op fits that has id and group, and lists no part of another transaction."""
        halves = [each for each in self.messages.values() if each.at.source == "half"]
        found = {each.at: Transaction(each) for each in halves if each.first == each.at and not each.is_hostile}
        for each in halves:
            if each.first != each.at and each.first in found:
                (found[each.first].refused if each.is_hostile else found[each.first].parts).append(each)
        for op in sorted(self.ops.values(), key=lambda op: op.order):
            transaction = found.get(op.listed[0]) if op.listed else None
            if transaction is not None and _fits(op, transaction):
                _add(op, transaction)
        return found

    def recalls(self) -> dict[At, list[Op]]:
        found: dict[At, list[Op]] = defaultdict(list)
        for op in self.ops.values():
            if op.decision == "RECALL" and op.listed:
                found[op.listed[0]].append(op)
        return found


def _fits(op: Op, transaction: Transaction) -> bool:
    own = {each.at for each in transaction.messages}
    is_group = op.at.source == "admin" or op.group == transaction.first.group
    return op.tid == transaction.first.tid and is_group and set(op.listed) <= own


def _add(op: Op, transaction: Transaction) -> None:
    if op.decision in DECISIONS:
        transaction.ops.append(op)
    elif op.decision == "RESUME":
        transaction.resumes.append(op)
    elif op.decision == "UNKNOWN" and op.check_id:
        transaction.answers.append(op)


def _message(at: At, record: Any) -> Message:
    headers = {name: value.decode() for name, value in record.headers}
    queue, _, offset = headers.get("FIRST_HALF", f"{at.queue}-{at.offset}").partition("-")
    delay = headers.get("TIMER_DELAY_MS", "")
    return Message(
        at,
        headers.get("__transactionId__", headers.get("UNIQ_KEY", "")),
        headers.get("PGROUP", ""),
        record.timestamp,
        At("half", int(queue), int(offset)),
        int(delay) if delay.isdigit() else None,
        int(headers.get("BATCH", 1)),
        record.key == HOSTILE,
    )


def _op(at: At, record: Any) -> Op:
    is_hostile = record.key == HOSTILE
    content: Mapping[str, Any] = {} if is_hostile else json.loads(record.value)
    listed = [At("half", each["queue"], each["offset"]) for each in content.get("half_messages", ())]
    listed += [At("messages", each["queue"], each["offset"]) for each in content.get("messages", ())]
    return Op(
        at,
        record.timestamp,
        content.get("transaction_id", content.get("message_id", "")),
        content.get("producer_group"),
        content.get("decision", ""),
        tuple(listed),
        content.get("check_id"),
        is_hostile,
    )
