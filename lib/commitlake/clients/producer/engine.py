"""The interface of a Kafka client that sends, as producers need it."""

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
"""Time for the records that a replaced client still holds."""
FORKED = (
    "this process was forked from the one that called start(), whose connection it can't use; make a producer in each "
    "process, after the fork"
)
Queue = int | Callable[[int], int]
"""A partition, or a function that chooses one by their number. The engine asks the client for the number within `send`,
since each call of an engine may go from one thread to another."""
SHUT_DOWN = "the producer is shut down; send before shutdown(), or call start() again"


class Result(Generic[T]):
    """The result of another thread, like a `concurrent.futures.Future` but without its lock.

    An exception of a signal handler may leave that lock held by the waiting thread. The other thread, here that of
    Kafka's client, would then wait for ever to set the result.
    """

    def __init__(self) -> None:
        self._found: T
        self._error: BaseException | None = None
        self._callbacks: deque[Callable[[Result[T]], object]] = deque()
        self._is_known = False
        self._open = threading.Lock()
        self._open.acquire()

    def set_result(self, found: T) -> None:
        """Set the result, and call back."""
        self._found = found
        self._finish()

    def set_exception(self, error: BaseException) -> None:
        """Set the error, and call back."""
        self._error = error
        self._finish()

    def add_done_callback(self, callback: Callable[[Result[T]], object]) -> None:
        """Call back once the outcome is known; at once if it is known already."""
        self._callbacks.append(callback)
        if self.done():
            self._call_back()

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._is_known

    def exception(self) -> BaseException | None:
        """The error of a known outcome; None for a result."""
        return self._error

    def result(self, timeout_s: float = -1) -> T:
        """Wait for the outcome; return the result, or raise the error. A `timeout_s` of -1 waits for ever.

        Raises:
            TimeoutError: the outcome is not known in time.
        """
        if not self._open.acquire(timeout=timeout_s):
            raise TimeoutError
        self._open.release()
        if self._error is None:
            return self._found
        try:
            raise self._error
        finally:
            del self  # else the error would keep itself alive: its traceback refers to this frame, the frame to `self`

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


class Engine(Protocol):
    """A client that all threads share.

    It gives a record up after the longest time-out of all sends so far. So no record goes out long after its send has
    failed for the application.
    """

    def send(self, topic: str, queue: Queue, record: Encoded, timeout_ms: int) -> Result[Position]:
        """Hand a record over.

        The result is its position; or a `FailedSendError`, when it is nowhere; or an `UncertainSendError`.

        Args:
            topic: full name.
            queue: partition, or the function that chooses it.
            record: key, value and headers.
            timeout_ms: how long the caller will wait, ms.

        Raises:
            FailedSendError: the client does not take the record, or can't get the number of partitions from Kafka.
        """

    def flush(self, timeout_s: float) -> bool:
        """Wait until each record has its outcome, for at most `timeout_s`; False if some have none."""

    def close(self, timeout_s: float) -> None:
        """Send buffered records, for at most `timeout_s`, give up the others, and end all threads."""
