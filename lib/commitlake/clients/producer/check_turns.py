"""Threads in which the check readers of a process take turns; a thread for each would be hundreds with many groups."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from functools import lru_cache

from commitlake.throttled import Throttle

READERS = 8
"""Threads at most; that many readers may hang at a time, each on a Kafka that does not answer."""
POLL_MS = 200
"""How long a reader waits for checks, if there are no more readers than threads; with more readers, less."""


class Turned(Enum):
    """The outcome of a turn; `ENDS`: the reader needs no more turns."""

    WELL = auto()
    FAILED = auto()
    ENDS = auto()


Turn = Callable[[int], Turned]
"""One read of a reader; the argument is the longest wait in ms. A turn raises nothing."""


class CheckTurns:
    """Has as many threads as readers, up to `READERS`. Of `READERS` threads one takes no reader that failed last time.

    Attributes:
        outages: limits the log lines that all readers would write when Kafka is away.
    """

    def __init__(self) -> None:
        self.outages = Throttle()
        self._waiting = deque[tuple[Turn, bool]]()
        self._readers = self._threads = self._failing = 0
        self._changed = threading.Condition()

    def add(self, turn: Turn) -> None:
        """Let a reader take turns until one returns `ENDS`.

        Raises:
            RuntimeError: there is no thread, and none can be started.
        """
        with self._changed:
            if self._threads < min(READERS, self._readers + 1):
                self._add_thread()
            self._readers += 1
            self._put(turn, has_failed=False)

    def _add_thread(self) -> None:
        try:
            threading.Thread(target=self._serve, name=f"commitlake-checks-{self._threads}", daemon=True).start()
            self._threads += 1
        except RuntimeError:
            if not self._threads:  # else the other threads take the reader
                raise

    def _put(self, turn: Turn, has_failed: bool) -> None:
        self._waiting.append((turn, has_failed))
        self._changed.notify()

    def _next(self) -> tuple[Turn, bool] | None:
        for at, (turn, has_failed) in enumerate(self._waiting):
            if not has_failed or self._failing < READERS - 1:
                del self._waiting[at]
                self._failing += has_failed
                return turn, has_failed
        return None

    def _serve(self) -> None:
        while True:
            with self._changed:
                taken = self._changed.wait_for(self._next)
            assert taken
            turn, had_failed = taken
            turned = turn(POLL_MS * READERS // max(READERS, self._readers))
            with self._changed:
                self._failing -= had_failed
                if turned is not Turned.ENDS:
                    self._put(turn, turned is Turned.FAILED)
                    continue
                self._changed.notify()
                self._readers -= 1
                if self._threads <= self._readers:
                    continue
                self._threads -= 1
                return


def turns() -> CheckTurns:
    """The threads of this process."""
    return _of(os.getpid())


@lru_cache(maxsize=1)
def _of(pid: int) -> CheckTurns:
    """One object for each process, since a forked process lacks its parent's threads."""
    return CheckTurns()
