"""Threads in which the check readers of a process take turns; a thread for each would be hundreds with many groups."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from enum import Enum, auto
from functools import lru_cache

from commitlake.clients.daemon_pool import DaemonPool
from commitlake.kafka.throttled import Throttle

log = logging.getLogger(__name__)

READERS = 8
"""Threads at most; and as many for readers that failed, which may hang on a Kafka that does not answer."""
POLL_MS = 200
"""How long a reader waits for checks, if there are no more readers than threads; with more readers, less."""


class Turned(Enum):
    """The outcome of a turn; `ENDS`: the reader needs no more turns."""

    WELL = auto()
    FAILED = auto()
    ENDS = auto()


Turn = Callable[[int], Turned]
"""One read of a reader; the argument is the longest wait in ms. One that raises ends its reader."""


class CheckTurns:
    """Gives readers turns, those that failed last time in a pool of their own, so that they never hold up the others.

    Attributes:
        outages: limits the log lines that all readers would write when Kafka is away.
    """

    def __init__(self) -> None:
        self.outages = Throttle()
        self._readers: set[Turn] = set()
        kinds = (Turned.WELL, Turned.FAILED)
        self._pools = {turned: DaemonPool(READERS, f"commitlake-checks-{turned.name.lower()}") for turned in kinds}

    def add(self, turn: Turn) -> None:
        """Let a reader take turns until one returns `ENDS`.

        Raises:
            RuntimeError: there is no thread, and none can be started.
        """
        self._readers.add(turn)
        try:
            self._pools[Turned.WELL].submit(self._take, turn, Turned.WELL)
        except BaseException:
            self._readers.discard(turn)
            raise

    def _take(self, turn: Turn, last: Turned) -> None:
        try:
            turned = turn(POLL_MS * READERS // max(READERS, len(self._readers)))
        except BaseException:
            self._readers.discard(turn)
            log.exception("the reader of a producer group has ended: its checks are not answered here any more")
            raise
        if turned is Turned.ENDS:
            self._readers.discard(turn)
            return
        try:
            self._pools[turned].submit(self._take, turn, turned)
        except RuntimeError:  # no thread can be started for it there; here this one runs
            self._pools[last].submit(self._take, turn, last)


def turns() -> CheckTurns:
    """The threads of this process."""
    return _of(os.getpid())


@lru_cache(maxsize=1)
def _of(pid: int) -> CheckTurns:
    """One object for each process, since a forked process lacks its parent's threads."""
    return CheckTurns()
