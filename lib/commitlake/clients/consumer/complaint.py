"""Warnings about something that goes on: at once, and then now and then."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cache
from weakref import WeakSet

_EVERY_S = 60.0


@dataclass(eq=False)
class _Told:
    """What is told of complaints: when, and of which there is trouble now."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    said: float = -float("inf")
    troubled: WeakSet[Complaint] = field(default_factory=WeakSet)


@cache
def _told_as(_: Hashable) -> _Told:
    return _Told()


class Complaint:
    """One kind of trouble.

    Args:
        log: where warnings go.
        shared: complaints of a process that have the same are told as one, which is over when none has trouble.
    """

    def __init__(self, log: logging.Logger, shared: Hashable = None) -> None:
        self._log = log
        self._since: float | None = None
        self._told = _Told() if shared is None else _told_as(shared)

    def say(self, text: str, *values: object) -> None:
        """Warn, unless that was done within the last minute."""
        now, told = time.monotonic(), self._told
        self._since = self._since or now
        with told.lock:
            told.troubled.add(self)
            is_due = now - told.said > _EVERY_S
            told.said = now if is_due else told.said
        if is_due:
            self._log.warning(text, *values)

    def lasts_s(self) -> float:
        """For how many seconds there has been trouble."""
        return time.monotonic() - self._since if self._since else 0.0

    def end(self) -> None:
        """The trouble is over."""
        if not self._since:
            return
        told = self._told
        with told.lock:
            told.troubled.discard(self)
            is_last = not told.troubled
            told.said = -float("inf") if is_last else told.said
        if is_last:
            self._log.warning("it works again, after %.0f s", self.lasts_s())
        self._since = None
