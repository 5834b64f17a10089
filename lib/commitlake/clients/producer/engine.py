"""What the producer needs of a Kafka client that sends."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import Encoded

log = logging.getLogger(__name__)

T = TypeVar("T")
OLD_CLIENT_S = 30
"""For what a client that was replaced still holds."""
FORKED = (
    "this process was forked from the one that called start(), whose connection it can't use; make a producer in each "
    "process, after the fork"
)
Queue = int | Callable[[int], int]
"""A partition, or what chooses one of so many, which the client finds out: each call of it is one between threads."""
SHUT_DOWN = "the producer is shut down; send before shutdown(), or call start() again"


class Result(Generic[T]):
    """What another thread finds, once it has, like a `concurrent.futures.Future`.

    Without its lock: an exception of a signal handler may leave that held by who waits, and the other thread, here the
    one of Kafka's client, would wait for ever to tell what it has found.
    """

    def __init__(self) -> None:
        self._found: T
        self._error: BaseException | None = None
        self._callbacks: deque[Callable[[Result[T]], object]] = deque()
        self._is_known = False
        self._open = threading.Lock()
        self._open.acquire()

    def set_result(self, found: T) -> None:
        """This was found."""
        self._found = found
        self._finish()

    def set_exception(self, error: BaseException) -> None:
        """This was raised."""
        self._error = error
        self._finish()

    def add_done_callback(self, callback: Callable[[Result[T]], object]) -> None:
        """Call back once the outcome is known, at once if it is."""
        self._callbacks.append(callback)
        if self.done():
            self._call_back()

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._is_known

    def exception(self) -> BaseException | None:
        """The error of an outcome that is known."""
        return self._error

    def result(self, timeout_s: float = -1) -> T:
        """What was found.

        Raises:
            TimeoutError: that is not known in time.
        """
        if not self._open.acquire(timeout=timeout_s):
            raise TimeoutError
        self._open.release()
        if self._error is None:
            return self._found
        try:
            raise self._error
        finally:
            del self  # the error's trace holds what this holds

    def _finish(self) -> None:
        self._is_known = True
        self._open.release()
        self._call_back()

    def _call_back(self) -> None:
        with suppress(IndexError):  # another thread may have taken the last
            while True:
                callback = self._callbacks.popleft()
                try:
                    callback(self)
                except Exception:
                    log.exception("the callback of a send failed")


class Sent(Protocol):
    """A record that was handed to a client."""

    @property
    def outcome(self) -> Result[Position]:
        """Where the record stands; or a `FailedSend`, when it stands nowhere; or an `UncertainSend`."""

    def withdraw(self) -> bool:
        """Give the record up; return whether it has not gone out, and never will."""


class Engine(Protocol):
    """A client that all threads share.

    It gives a record up when the longest time-out of all sends so far has passed, so nothing is sent long after a send
    has told the application that it failed.
    """

    def send(self, topic: str, queue: Queue, record: Encoded, timeout_ms: int) -> Sent:
        """Hand a record over.

        Args:
            topic: full name.
            queue: partition, or what chooses it.
            record: key, value and headers.
            timeout_ms: how long the caller will wait.

        Raises:
            FailedSend: the client does not take it, or Kafka does not say how many partitions there are.
        """

    def flush(self, timeout_s: float) -> bool:
        """Wait until each record has its outcome, for at most `timeout_s`; return whether that is so."""

    def close(self, timeout_s: float) -> None:
        """Send what is buffered, for at most `timeout_s`, give up the rest, and end all threads."""
