"""The real producer over a Kafka in memory; checks come from the coordinator's calls, not from a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from commitlake.producer import TransactionListener, TransactionMQProducer
from commitlake.producer.check_progress import Calls
from commitlake.producer.default import SHUTDOWN_MS
from commitlake.producer.timeouts import Timeout
from commitlake.protocol import wire
from commitlake.testing.link import Crash, Fault, MemoryLink


class Members(Protocol):
    """The instances of all producer groups that answer checks."""

    def join(self, producer: InMemoryProducer) -> None:
        """Let an instance answer checks of its group; does nothing when it does already."""

    def leave(self, producer: InMemoryProducer) -> None:
        """Ask an instance no more."""


class InMemoryProducer(TransactionMQProducer):
    """A `TransactionMQProducer` of an `InMemoryCoordinator`, which makes it.

    Args:
        group: producer group.
        listener: runs and looks up local transactions.
        members: where it joins to answer checks.
        connect: makes its link, of its own.
        options: of `TransactionMQProducer`, by name.

    Attributes:
        memory: its link.
    """

    def __init__(
        self,
        group: str,
        listener: TransactionListener | None,
        members: Members,
        connect: Callable[[], MemoryLink],
        **options: Any,
    ) -> None:
        super().__init__(group, listener, **options)
        self._link = self.memory = connect()
        self._members, self._calls = members, Calls(self._check_timeout_s)

    @property
    def fault(self) -> Fault | None:
        """What befalls the next call that it can befall; None: nothing."""
        return self.memory.fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        self.memory.fault = fault

    def crash(self) -> NoReturn:
        """End the process, also from within a listener: nothing more is sent, and other instances get its checks.

        Raises:
            Crash: always.
        """
        self.memory.die()

    def shutdown(self, timeout: Timeout = SHUTDOWN_MS) -> None:
        """Stop answering checks, and disconnect."""
        self._members.leave(self)
        super().shutdown(timeout)

    def answer(self, record: wire.Encoded) -> bool:
        """Answer a check request; returns whether Kafka has the answer."""
        given: list[BaseException | None] = []
        try:
            self._answer(wire.decode_check(record.value, record.headers), self._calls, given.append)
        except Crash:
            return False
        return given == [None]

    def _answer_checks(self) -> None:
        if self._listener is not None:
            self._members.join(self)
