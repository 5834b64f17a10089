"""The real producer over a Kafka in memory; checks come from the coordinator's calls, not from a thread."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from commitlake.clients.producer import Message, TransactionListener, TransactionMQProducer
from commitlake.clients.producer.check_reader import Calls
from commitlake.clients.producer.default import SHUTDOWN_MS
from commitlake.clients.producer.plain import Timeout
from commitlake.clients.producer.transaction import HalfMessage
from commitlake.protocol import wire
from commitlake.testing.link import Crash, Fault, MemoryLink


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

    def send_half(self, message: Message, first: HalfMessage | None = None) -> HalfMessage:
        """Send a half message; with `CHECKED_WHILE_RUNNING` a check follows the first one of its transaction."""
        half = super().send_half(message, first)
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

    def shutdown(self, timeout: Timeout = SHUTDOWN_MS) -> None:
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
