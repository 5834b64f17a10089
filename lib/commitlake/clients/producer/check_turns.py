"""Threads in which the readers of checks of a process take turns: one each would be hundreds where groups are many."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import lru_cache
from queue import SimpleQueue

from commitlake.kafka.quiet import ThrottledFilter

READERS = 8
"""Threads at most; that many readers may be held up at a time, each by a Kafka that does not answer."""
POLL_MS = 200
"""How long a reader waits for checks, if no other waits for its turn."""

Turn = Callable[[int], bool]
"""Reads once, waiting so many ms at most; returns whether there is to be another turn. Does not raise."""


class CheckTurns:
    """Has as many threads as readers, up to `READERS`.

    Attributes:
        outages: for lines that all readers would write when Kafka is away.
    """

    def __init__(self) -> None:
        self.outages = ThrottledFilter()
        self._turns = SimpleQueue[Turn]()
        self._readers = self._threads = 0
        self._lock = threading.Lock()

    def add(self, turn: Turn) -> None:
        """Let a reader take turns until it says that it needs no more."""
        with self._lock:
            if self._threads < min(READERS, self._readers + 1):
                threading.Thread(target=self._serve, name=f"commitlake-checks-{self._threads}", daemon=True).start()
                self._threads += 1
            self._readers += 1
            self._turns.put(turn)

    def _serve(self) -> None:
        while True:
            turn = self._turns.get()
            goes_on = turn(POLL_MS * READERS // max(READERS, self._readers))
            with self._lock:
                if goes_on:
                    self._turns.put(turn)
                    continue
                self._readers -= 1
                if self._threads <= self._readers:
                    continue
                self._threads -= 1
                return


def turns() -> CheckTurns:
    """Those of this process."""
    return _of(os.getpid())


@lru_cache(maxsize=1)
def _of(pid: int) -> CheckTurns:
    """A process that was forked has not its parent's threads."""
    return CheckTurns()
