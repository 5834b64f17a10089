"""The producer's connection to a Kafka that is a list, and what may befall a record, or the process, on its way."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from typing import Any, NoReturn

from kafka.partitioner.default import murmur2

from commitlake.config import KafkaConfig
from commitlake.errors import FailedSend, UncertainSend
from commitlake.producer.link import Done, KafkaLink
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import HALF, OP


class Crash(BaseException):  # so that no `except Exception` of a program goes on after its process has died
    """Raised in place of a process that dies: what the producer would still have sent never comes to Kafka."""


class Fault(enum.Enum):
    """What befalls the next call of a producer, once."""

    KAFKA_AWAY = "Kafka is out of reach: nothing is sent"
    LOST = "no acknowledgement, and Kafka does not have the record"
    UNACKNOWLEDGED = "no acknowledgement, though Kafka has the record"
    CRASH_AFTER_HALF = "the process dies when Kafka has the half message: the local transaction never runs"
    CRASH_BEFORE_DECISION = "the process dies when the local transaction has run: its decision is never sent"
    DECISION_LOST = "the decision is lost, and the process goes on"


_OF_SENDS = {Fault.KAFKA_AWAY, Fault.LOST, Fault.UNACKNOWLEDGED}
_OF_HALVES = {*_OF_SENDS, Fault.CRASH_AFTER_HALF}
_OF_DECISIONS = {Fault.CRASH_BEFORE_DECISION, Fault.DECISION_LOST}


class MemoryLink(KafkaLink):
    """What a producer sees of Kafka.

    Args:
        kafka: names of topics.
        queues: partitions of each topic.
        append: appends a record to (topic, queue).
        settings: the newest limits.

    Attributes:
        fault: what befalls the next call.
        is_dead: whether the process has died.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        queues: int,
        append: Callable[[str, int, wire.Encoded], Position],
        settings: Callable[[], wire.Settings],
    ) -> None:
        self.kafka, self._queues, self._append, self._read = kafka, queues, append, settings
        self.fault: Fault | None = None
        self.is_dead = False
        self._is_started = False
        self._turns = itertools.count()

    def start(self, timeout_ms: int) -> None:
        """Connect; nothing here takes time."""
        if self.is_dead:
            msg = "this producer's process has died; make another one, as the process that is started again does"
            raise FailedSend(msg)
        self._is_started = True

    def stop(self, timeout_s: float) -> None:
        """Disconnect."""
        self._is_started = False

    def flush(self, timeout_s: float) -> None:
        """All that was sent has arrived."""

    @property
    def settings(self) -> wire.Settings:
        """The newest limits."""
        self._check()
        return self._read()

    def _choose(self, key: bytes | None) -> int:
        """As Kafka's clients choose."""
        return int((next(self._turns) if key is None else murmur2(key) & 0x7FFFFFFF) % self._queues)

    def send(self, topic: str, queue: int | None, record: wire.Encoded, *_: Any, **__: Any) -> Position:
        """Append a record, unless a fault befalls it."""
        self._check()
        fault = self._befalls(_OF_HALVES if topic == HALF else _OF_SENDS)
        if fault is Fault.KAFKA_AWAY:
            msg = f"nothing was sent to the Kafka topic {self.kafka.topic(topic)}: {fault.value}"
            raise FailedSend(msg)
        to = self._choose(record.key) if queue is None else queue
        at = None if fault is Fault.LOST else self._append(topic, to, record)
        if fault is Fault.CRASH_AFTER_HALF:
            self.die(fault)
        if at is None or fault is Fault.UNACKNOWLEDGED:
            msg = (
                f"Kafka did not acknowledge a record of {self.kafka.topic(topic)}, so it may or may not be there; send "
                "the same Message object again"
            )
            raise UncertainSend(msg)
        return at

    def send_soon(self, topic: str, queue: int, record: wire.Encoded, timeout_ms: int, done: Done) -> None:
        """Append a record, unless a fault befalls it; a dead process sends nothing."""
        if self.is_dead:
            return
        fault = self._befalls(_OF_DECISIONS) if topic == OP else None
        if fault is Fault.CRASH_BEFORE_DECISION:
            self.die(fault)
        if fault is Fault.DECISION_LOST:
            done(UncertainSend(fault.value))
            return
        self._append(topic, queue, record)
        done(None)

    def die(self, fault: Fault | None = None) -> NoReturn:
        """End the process."""
        self.is_dead, self._is_started = True, False
        raise Crash(fault.value if fault else "the process dies")

    def _befalls(self, faults: set[Fault]) -> Fault | None:
        fault = self.fault
        if fault not in faults:
            return None
        self.fault = None
        return fault

    def _check(self) -> None:
        if self.is_dead:
            self.die()
        if not self._is_started:
            msg = "the producer is not running; call start() first, and nothing after shutdown()"
            raise FailedSend(msg)
