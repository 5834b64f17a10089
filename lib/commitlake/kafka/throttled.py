"""Warnings that are logged at once, and then at most once a minute: an outage of hours must not fill the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cache
from weakref import WeakSet

log = logging.getLogger(__name__)

_EVERY_S = 60.0
_LONGEST_REASON = 500
_OURS = "commitlake"
"""Prefix of the names of this package's threads. Only the thread shows to whom a line of kafka-python belongs."""


class Throttle:
    """Limits an action to once a minute. Safe to use in any thread."""

    def __init__(self) -> None:
        self._lock, self._next = threading.Lock(), -float("inf")

    def is_due(self) -> bool:
        """True if the last True was at least a minute ago; the caller then does the action."""
        with self._lock:
            now = time.monotonic()
            is_due = now >= self._next
            self._next = now + _EVERY_S if is_due else self._next
        return is_due

    def reset(self) -> None:
        """Make the next `is_due` return True."""
        with self._lock:
            self._next = -float("inf")


class ThrottledFilter(logging.Filter):
    """Lets one warning or error of this package's threads pass each minute, and nothing below.

    In an outage Kafka's clients write dozens of lines a second, for each connection of each client. All lines of a
    DEBUG logger pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self._throttle = Throttle()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        if not str(record.threadName).startswith(_OURS) or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        return record.levelno >= logging.WARNING and self._throttle.is_due()


@dataclass(eq=False)
class _Told:
    """The state of one kind of trouble: when it was logged, and which warnings report it now."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    throttle: Throttle = field(default_factory=Throttle)
    troubled: WeakSet[ThrottledWarning] = field(default_factory=WeakSet)


@cache
def _told_as(_: Hashable) -> _Told:
    return _Told()


class ThrottledWarning:
    """Warns about one kind of trouble, and says when it is over.

    Args:
        log: receives the warnings.
        shared: warnings of this process with the same value are logged as one, which ends when the last one ends.
    """

    def __init__(self, log: logging.Logger, shared: Hashable = None) -> None:
        self._log = log
        self._since: float | None = None
        self._told = _Told() if shared is None else _told_as(shared)

    def say(self, text: str, *values: object) -> None:
        """Warn, unless the last warning was less than a minute ago."""
        with self._told.lock:
            self._since = self._since or time.monotonic()
            self._told.troubled.add(self)
            is_due = self._told.throttle.is_due()
        if is_due:
            self._log.warning(text, *values)

    def lasts_s(self) -> float:
        """Seconds since the trouble began; 0 when there is none."""
        since = self._since
        return time.monotonic() - since if since else 0.0

    def end(self) -> None:
        """Note that the trouble is over, and log it if no other warning shares it."""
        with self._told.lock:
            since, self._since = self._since, None
            if since is None:
                return
            self._told.troubled.discard(self)
            is_last = not self._told.troubled
            if is_last:
                self._told.throttle.reset()
        if is_last:
            self._log.warning("it works again, after %.0f s", time.monotonic() - since)


class IgnoredRecords:
    """Counts ignored records of a topic, and logs at most one a minute: nobody who writes to it can fill the log."""

    def __init__(self, topic: str) -> None:
        self.count = 0
        self._topic = topic
        self._lock, self._throttle = threading.Lock(), Throttle()

    def add(self, record: str, reason: object) -> None:
        """Count a record; `reason` names the problem."""
        with self._lock:
            self.count += 1
        if self._throttle.is_due():
            log.warning(
                "ignored record %s of %s, and %d so far: %s; the next warning comes in a minute or later",
                *(record, self._topic, self.count, f"{reason!s:.{_LONGEST_REASON}}"),
            )
