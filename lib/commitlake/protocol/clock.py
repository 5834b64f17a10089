"""The clock of this machine, and Kafka's."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

_RUNNING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Time since the machine started; nobody can set this clock. On Linux it includes time asleep."""


def now_ms() -> int:
    """The time now, ms since epoch, UTC."""
    return time.time_ns() // 1_000_000


def as_datetime(at_ms: float) -> datetime:
    """`at_ms` (ms since epoch) as a datetime in UTC."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC)


class BrokerClock:
    """Kafka's time, by which ages and due times count, running on from the append time of the last record.

    The driver's clock decides nothing: if it is a day ahead for a moment, no transaction ends. This clock is never
    ahead of the broker's, because the broker stored the record before the acknowledgement arrived. Before the first
    record it shows the driver's time.
    """

    def __init__(self) -> None:
        self._ahead_ms = now_ms() - _running_ms()
        self._lock, self._told_ms = threading.Lock(), 0

    def set(self, appended_ms: int) -> None:
        """Sets the clock to the append time (ms since epoch, UTC) of a record that was acknowledged right now."""
        self._ahead_ms = appended_ms - _running_ms()

    def now_ms(self) -> int:
        """The broker's time now, ms since epoch, UTC."""
        return _running_ms() + self._ahead_ms

    def onward_ms(self, least: int = 0) -> int:
        """The same, but never less than `least` or an earlier result, even after `set` has moved the clock back."""
        with self._lock:
            self._told_ms = max(self._told_ms, self.now_ms(), least)
            return self._told_ms


def _running_ms() -> int:
    return time.clock_gettime_ns(_RUNNING) // 1_000_000
