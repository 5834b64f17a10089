"""The coordinator in memory: the real state machine and the real producer, a Kafka that is a list, a clock that is set.

The steps that the real one runs in Spark are plain Python here: `landing` and `coordination`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import Any

from commitlake import config
from commitlake.clients.producer import TransactionListener
from commitlake.clients.producer.default import kafka_of
from commitlake.config.rules import rules_of
from commitlake.errors import KafkaError, RecordError, TransactionNotFoundError
from commitlake.protocol import wire
from commitlake.protocol.clock import now_ms
from commitlake.protocol.durations import Duration, seconds
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import ADMIN, ALL, CHECK, HALF, LANDED, OP
from commitlake.protocol.states import DUPLICATE_OF, Delivery, Source, State
from commitlake.testing import landing
from commitlake.testing.codecs import Limits, encode_check
from commitlake.testing.coordination import Segments
from commitlake.testing.producer import Fault, InMemoryProducer, MemoryEngine, MemoryLink
from commitlake.testing.records import Check, LandedMessage, LandedOp
from commitlake.testing.shown import Shown, VisibleMessage, place

_NOWHERE = {"kafka.bootstrap_servers": "in-memory:9092", "warehouse": "/in-memory"}
_ToShow = tuple[Source, Position, int | None]
"""A message's source and position, and when it was due: ms since epoch, UTC, None without a delay."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a transaction so far.

    Attributes:
        state: `PENDING`, `COMMITTED`, `ROLLED_BACK` or `DISCARDED`.
        reason: as in the table `transactions`, for example `CHECK`; None while it is pending.
        checks: how often it has been checked.
    """

    state: str
    reason: str | None
    checks: int


@dataclass(frozen=True)
class Rejected:
    """A Kafka record that changed nothing although it should have: `source`, position there, `reason`, `detail`."""

    source: str
    at: Position
    reason: str
    detail: str


class InMemoryCoordinator:
    """A coordinator that works only when it is called: time stands still until `advance` moves it.

    The next question for an outcome, or `advance`, processes the records that producers have sent, ordered by time,
    then by queue and offset. Several threads may send; only one may ask for outcomes and call `advance`.

    Args:
        conf: keys of the configuration with their values, for example `{"transaction.timeout": "10s"}`.

    Attributes:
        config: the configuration.
        now: the time, ms since epoch, UTC; it begins with that of this machine.

    Raises:
        ConfigError: a key is unknown, or its value is not allowed.
    """

    def __init__(self, conf: Mapping[str, object] | None = None) -> None:
        self.config = config.from_mapping({**_NOWHERE, **(conf or {})})
        self.now = now_ms()
        self._segments = Segments(rules_of(self.config.transaction))
        self._shown = Shown(self.config.topics.dedup)
        self._ends: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        self._unread: list[tuple[str, Position, int, wire.Encoded]] = []
        self._contents: dict[tuple[str, Position], tuple[wire.MessageRecord, int]] = {}
        self._topics: set[str] = set()
        self._rejected: list[Rejected] = []
        self._members: dict[str, list[InMemoryProducer]] = {}
        self._questions: list[tuple[str, int, wire.Encoded]] = []
        self._asked = 0
        self._checks: list[wire.CheckRecord] = []

    # ---- producers

    def producer(
        self, group: str, listener: TransactionListener | None = None, *, fault: Fault | None = None, **options: Any
    ) -> InMemoryProducer:
        """A producer that has started; each process of a group has one.

        Args:
            group: producer group.
            listener: runs and looks up local transactions.
            fault: happens at the first call at which it can happen.
            options: of `TransactionMQProducer`, by name.
        """
        kafka = self.config.kafka
        engine = MemoryEngine(kafka.topic_prefix, kafka.queues, self.append)
        link = MemoryLink(kafka, engine, lambda: self.settings)
        made = InMemoryProducer(group, listener, self, link, **{**kafka_of(self.config), **options})
        made.fault = fault
        made.start()
        return made

    def join(self, producer: InMemoryProducer) -> None:
        """Let an instance answer checks of its group; does nothing if it does so already."""
        members = self._members.setdefault(producer.group, [])
        if producer not in members:
            members.append(producer)

    def leave(self, producer: InMemoryProducer) -> None:
        """Send an instance no more checks."""
        members = self._members.get(producer.group, [])
        if producer in members:
            members.remove(producer)

    def let_check(self) -> None:
        """Let time pass until a half message that arrives now is checked."""
        self.advance(timedelta(milliseconds=self.config.transaction.timeout_ms + 1))

    @property
    def settings(self) -> wire.Settings:
        """The limits that producers must respect."""
        return self.config.limits(self._topics)

    def append(self, topic: str, queue: int, record: wire.Encoded) -> Position:
        """Append a record to a Kafka topic, as a program in any language may; returns its position.

        Args:
            topic: `half`, `op`, `messages` or `admin`.
            queue: its partition.
            record: key, value and headers.

        Raises:
            KafkaError: there is no such topic, or partition.
        """
        if topic not in ALL or not 0 <= queue < self.config.kafka.queues:
            topics = f"topics are {', '.join(ALL)}, with kafka.queues partitions"
            msg = f"Kafka has no partition {queue} of {topic!r}; {topics}"
            raise KafkaError(msg)
        with self._lock:
            ends = self._ends.setdefault(topic, [0] * self.config.kafka.queues)
            at = Position(queue, ends[queue])
            ends[queue] += 1
            if topic in LANDED:
                self._unread.append((topic, at, self.now, record))
        return at

    # ---- the clock

    def advance(self, duration: Duration) -> None:
        """Let time pass: listeners get checks, deadlines run and delays end, each at its time.

        Args:
            duration: seconds, a `timedelta`, or a text such as `10m`.

        Raises:
            ArgumentError: it is none of these, or negative.
        """
        until = self.now + round(1_000 * seconds("duration", duration))
        self._settle()
        while (next_due := self._next_due()) <= until:
            self.now = max(self.now, int(next_due))
            self._settle()
        self.now = until
        self._settle()

    # ---- outcomes

    def messages(self, topic: str) -> list[VisibleMessage]:
        """The messages that consumers of a topic see, in the order in which they became visible."""
        self._settle()
        return self._shown.of(topic)

    def outcome(self, transaction_id: str) -> Outcome:
        """The outcome of a transaction so far.

        Args:
            transaction_id: as in a `SendResult`, or `Message.transaction_id`; of several attempts the last counts.

        Raises:
            TransactionNotFoundError: no half message has that id.
        """
        self._settle()
        found = [at for at, record in self._firsts() if record.transaction_id == transaction_id]
        if not found:
            msg = f"no half message has the transaction id {transaction_id!r}; give that of a SendResult or a Message"
            raise TransactionNotFoundError(msg)
        end = self._segments.ledger.ended(found[-1])
        asked = [check[3] for check in self._segments.ledger.checks if check[1] == found[-1]]
        if end is None:
            return Outcome("PENDING", None, asked[-1] if asked else 0)
        return Outcome(end.state.name, end.reason.name, end.checks)

    @property
    def pending(self) -> list[str]:
        """Ids of the transactions that have no end, the oldest first."""
        self._settle()
        return [record.transaction_id for at, record in self._firsts() if self._segments.ledger.ended(at) is None]

    @property
    def checks(self) -> list[wire.CheckRecord]:
        """All check requests, in the order in which they were sent."""
        self._settle()
        return list(self._checks)

    @property
    def rejected(self) -> list[Rejected]:
        """Records that changed nothing although they should have."""
        self._settle()
        return list(self._rejected)

    def _firsts(self) -> list[tuple[Position, wire.HalfRecord]]:
        return [
            (at, record)
            for (source, at), (record, _) in self._contents.items()
            if source == HALF and isinstance(record, wire.HalfRecord) and record.first_half is None
        ]

    # ---- rounds

    def _settle(self) -> None:
        """Process records that have come and deadlines that are due, until nothing is left to do at this time."""
        self._ask()
        while self._unread or self._segments.next or self._next_due() <= self.now:
            self._round()
            self._ask()

    def _next_due(self) -> float:
        """When the next segment has to be called, ms since epoch, UTC; infinite when none has."""
        return min(self._segments.next_due.values(), default=inf)

    def _round(self) -> None:
        messages, ops = self._land()
        self._segments.batch(self.now, self.now, messages, ops)
        ledger = self._segments.ledger
        decided: list[_ToShow] = []
        due: list[_ToShow] = []
        for kind, key, *content in ledger.written:
            if kind == "ended" and content[0].state == State.COMMITTED and content[0].deliver_at < 0:
                decided.append((Source.HALF, key, None))
            elif kind == "delivery" and content[0][0] == Delivery.DELIVERED:
                due.append((Source[key[0].upper()], key[1], content[0][1]))
            elif kind == "refused":
                source = ADMIN if key[2] else OP
                self._rejected.append(Rejected(source, Position(*key[:2]), content[0].name, ""))
        self._show(decided)
        self._show(due)
        for check in ledger.checks[self._asked :]:
            self._question(check)
        self._asked = len(ledger.checks)

    def _show(self, messages: list[_ToShow]) -> None:
        for source, at, due in sorted(messages, key=lambda each: place(*each[:2])):
            record, stored = self._contents[source.name.lower(), at]
            self._shown.show(record, source, at, stored, self.now, due)

    def _land(self) -> tuple[list[LandedMessage], list[LandedOp]]:
        with self._lock:
            unread, self._unread = sorted(self._unread, key=lambda each: (each[2], each[1])), []
        messages: list[LandedMessage] = []
        ops: list[LandedOp] = []
        for source, at, stored, record in unread:
            try:
                landed = self._landed(source, at, record, Limits(self.settings, stored))
            except RecordError as error:
                self._rejected.append(Rejected(source, at, error.reason or "", str(error)))
                landed = landing.refused_part(source, record, at, stored)
            if isinstance(landed, LandedMessage):
                self._segments.land(landed)
                messages.append(landed)
            elif landed:
                ops.append(landed)
        return messages, ops

    def _landed(
        self, source: str, at: Position, record: wire.Encoded, limits: Limits
    ) -> LandedMessage | LandedOp | None:
        """The message or op that coordination reads; None where it reads nothing, as of a normal message."""
        content = landing.read(source, record, limits)
        if isinstance(content, wire.OpRecord | wire.RecallRecord):
            return landing.op(content, at, limits.stored, is_admin=source == ADMIN)
        if isinstance(content, wire.HalfRecord):
            landed: LandedMessage | None = landing.half_message(content, at, limits)
        else:
            landed = landing.delayed_message(content, at, limits)
        self._topics.add(content.topic)
        self._contents[source, at] = (content, limits.stored)
        if landed is None and (holder := self._shown.show(content, Source.MESSAGES, at, limits.stored, self.now)):
            raise RecordError(holder, DUPLICATE_OF)
        return landed

    # ---- checks

    def _question(self, check: Check) -> None:
        _, at, round_, number, repeat, halves = check
        first, stored = self._contents[HALF, at]
        assert isinstance(first, wire.HalfRecord)
        record = wire.CheckRecord(
            transaction_id=first.transaction_id,
            producer_group=first.producer_group or "",
            msg_id=first.msg_id,
            topic=first.topic,
            body=first.body,
            half=at,
            half_messages=(at, *sorted(halves - {at})[: wire.MAX_HALF_MESSAGES - 1]),
            check_times=number,
            check_id=f"{at}-{round_}-{number}",
            queue_id=at.queue if first.queue_id is None else first.queue_id,
            tags=first.tags,
            keys=first.keys,
            properties=first.properties,
            born_timestamp=first.born_timestamp,
            stored_timestamp=stored,
        )
        partition = (at.queue + number - 1 + repeat) % self.config.kafka.queues
        self._checks.append(record)
        encoded = encode_check(record)
        self.append(CHECK, partition, encoded)
        self._questions.append((record.producer_group, partition, encoded))

    def _ask(self) -> None:
        """Send checks to the instances that are there; a check that got no answer waits for another instance."""
        waiting, self._questions = self._questions, []
        for group, partition, record in waiting:
            members = [each for each in self._members.get(group, ()) if not each.engine.is_dead]
            if not members or not members[partition % len(members)].answer(record):
                self._questions.append((group, partition, record))
