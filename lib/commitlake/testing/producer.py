"""The real producer over a Kafka that is a list, and the faults that a record, or the process, may have.

Checks come from the coordinator's calls, not from a thread.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from commitlake.clients.producer import Message, TransactionListener, TransactionMQProducer
from commitlake.clients.producer.check_reader import Calls
from commitlake.clients.producer.connection import NOT_RUNNING
from commitlake.clients.producer.default import SHUTDOWN_S
from commitlake.clients.producer.engine import Queue, Result
from commitlake.clients.producer.link import Done, KafkaLink
from commitlake.clients.producer.record_maker import NO_PROOF, Proof
from commitlake.clients.producer.transaction import HalfMessage
from commitlake.config import KafkaConfig
from commitlake.errors import FailedSendError, UncertainSendError
from commitlake.protocol import wire
from commitlake.protocol.durations import Duration
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import HALF, OP
from commitlake.testing.codecs import decode_op


class Crash(BaseException):  # so that no `except Exception` of a program continues after its process has died
    """Raised in place of a process that dies: records that the producer has not sent by then never reach Kafka."""


class Fault(enum.Enum):
    """A fault that happens once, at the producer's next call at which it can happen."""

    KAFKA_AWAY = "Kafka is out of reach: nothing is sent"
    LOST = "no acknowledgement, and Kafka does not have the record"
    UNACKNOWLEDGED = "no acknowledgement, though Kafka has the record"
    CRASH_AFTER_HALF = "the process dies when Kafka has the half message: the local transaction never runs"
    CRASH_BEFORE_DECISION = "the process dies when the local transaction has run: its decision is never sent"
    CHECKED_WHILE_RUNNING = "the check comes while the local transaction runs, and finds nothing of it yet"
    DECISION_LOST = "the decision is lost, and the process goes on"


_OF_SENDS = {Fault.KAFKA_AWAY, Fault.LOST, Fault.UNACKNOWLEDGED}
_OF_HALVES = {*_OF_SENDS, Fault.CRASH_AFTER_HALF}
_OF_DECISIONS = {Fault.CRASH_BEFORE_DECISION, Fault.DECISION_LOST}
_NO_ANSWER = "there was no acknowledgement"
_UNANSWERED = {Fault.LOST, Fault.UNACKNOWLEDGED, Fault.DECISION_LOST}


class MemoryEngine:
    """A Kafka client whose broker is a list; see `producer.engine.Engine`.

    Attributes:
        fault: happens at the next record at which it can happen.
        is_dead: whether the process has died.
    """

    def __init__(self, prefix: str, queues: int, append: Callable[[str, int, wire.Encoded], Position]) -> None:
        self._prefix, self._queues, self._append = prefix, queues, append
        self.fault: Fault | None = None
        self.is_dead = False

    def send(self, topic: str, queue: Queue, record: wire.Encoded, timeout_ms: int) -> Result[Position]:
        """Append a record, unless a fault prevents it."""
        if self.is_dead:
            self.die()
        name = topic.removeprefix(self._prefix)
        fault = self._befalls(_faults_of(name, record))
        if fault is Fault.KAFKA_AWAY:
            raise FailedSendError(fault.value)
        if fault is Fault.CRASH_BEFORE_DECISION:
            self.die(fault)
        is_lost = fault in (Fault.LOST, Fault.DECISION_LOST)
        chosen = queue if isinstance(queue, int) else queue(self._queues)
        at = None if is_lost else self._append(name, chosen, record)
        if fault is Fault.CRASH_AFTER_HALF:
            self.die(fault)
        outcome = Result[Position]()
        if at is None or fault in _UNANSWERED:
            outcome.set_exception(UncertainSendError(_NO_ANSWER))
        else:
            outcome.set_result(at)
        return outcome

    def flush(self, timeout_s: float) -> bool:
        """Returns True: each record has its outcome at once."""
        return True

    def close(self, timeout_s: float) -> None:
        """Does nothing: there is no connection."""

    def die(self, fault: Fault | None = None) -> NoReturn:
        """End the process."""
        self.is_dead = True
        raise Crash(fault.value if fault else "the process dies")

    def _befalls(self, faults: set[Fault]) -> Fault | None:
        fault = self.fault
        if fault not in faults:
            return None
        self.fault = None
        return fault


def _faults_of(topic: str, record: wire.Encoded) -> set[Fault]:
    if topic == HALF:
        return _OF_HALVES
    is_decision = topic == OP and isinstance(decode_op(record.value), wire.OpRecord)
    return _OF_DECISIONS if is_decision else _OF_SENDS


class MemoryLink(KafkaLink):
    """The real link over a `MemoryEngine`."""

    def __init__(self, kafka: KafkaConfig, engine: MemoryEngine, settings: Callable[[], wire.Settings]) -> None:
        super().__init__(kafka, 0, {})
        self.engine, self._newest = engine, settings
        self._is_started = False

    def start(self, timeout_ms: int) -> None:
        """Connect."""
        if self.engine.is_dead:
            msg = "this producer's process has died; make another one, as the process that is started again does"
            raise FailedSendError(msg)
        self._is_started = True

    def stop(self, timeout_s: float) -> None:
        """Disconnect."""
        self._is_started = False

    @property
    def settings(self) -> wire.Settings:
        """The newest limits."""
        if self.engine.is_dead:
            self.engine.die()
        self._started()
        return self._newest()

    def send_soon(self, topic: str, queue: int, record: wire.Encoded, timeout_ms: int, done: Done) -> None:
        """Send without waiting; code that runs after a `Crash`, such as the end of a `with` block, sends nothing."""
        if not self.engine.is_dead:
            super().send_soon(topic, queue, record, timeout_ms, done)

    def _started(self) -> MemoryEngine:
        if not self._is_started:
            raise FailedSendError(NOT_RUNNING)
        return self.engine


class Members(Protocol):
    """The instances of all producer groups that answer checks."""

    def join(self, producer: InMemoryProducer) -> None:
        """Let an instance answer checks of its group; does nothing if it does so already."""

    def leave(self, producer: InMemoryProducer) -> None:
        """Send an instance no more checks."""

    def let_check(self) -> None:
        """Let time pass until a half message that arrives now is checked."""


class InMemoryProducer(TransactionMQProducer):
    """A `TransactionMQProducer` of an `InMemoryCoordinator`, which makes it.

    Args:
        group: producer group.
        listener: runs and looks up local transactions.
        members: where it joins to answer checks.
        link: its own link.
        options: of `TransactionMQProducer`, by name.

    Attributes:
        engine: takes its records.
    """

    def __init__(
        self,
        group: str,
        listener: TransactionListener | None,
        members: Members,
        link: MemoryLink,
        **options: Any,
    ) -> None:
        super().__init__(group, listener, **options)
        self._link, self.engine = link, link.engine
        self._members = members

    @property
    def fault(self) -> Fault | None:
        """The fault of the next call at which it can happen; None: none."""
        return self.engine.fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        self.engine.fault = fault

    def send_half(self, message: Message, first: HalfMessage | None = None, proof: Proof = NO_PROOF) -> HalfMessage:
        """Send a half message; with `CHECKED_WHILE_RUNNING` a check follows the first one of its transaction."""
        half = super().send_half(message, first, proof)
        if first is None and self.fault is Fault.CHECKED_WHILE_RUNNING:
            self.fault = None
            self._members.let_check()
        return half

    def crash(self) -> NoReturn:
        """End the process, also from within a listener: nothing more is sent, and other instances get its checks.

        Raises:
            Crash: always.
        """
        self.engine.die()

    def shutdown(self, timeout: Duration = SHUTDOWN_S) -> None:
        """Stop answering checks, and disconnect."""
        self._members.leave(self)
        super().shutdown(timeout)

    def answer(self, record: wire.Encoded) -> bool:
        """Answer a check request; returns whether Kafka has the answer."""
        given: list[BaseException | None] = []
        try:
            check = wire.decode_check(record.value, record.headers)
            self._answer(check, Calls(self._check_timeout_s), given.append)
        except Crash:
            return False
        return given == [None]

    def _answer_checks(self) -> None:
        if self._listener is not None:
            self._members.join(self)
