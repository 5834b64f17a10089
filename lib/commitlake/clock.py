"""The clock of this machine."""

from __future__ import annotations

import time


def now_ms() -> int:
    """The time now, ms since epoch, UTC."""
    return time.time_ns() // 1_000_000


class SteadyClock:
    """The time since the start of a program by a clock that nobody sets, or that of this machine if that is earlier.

    So a time ahead, to which somebody sets the machine for a moment, does not show.
    """

    def __init__(self) -> None:
        self._ahead_ms = now_ms() - _monotonic_ms()

    def now_ms(self) -> int:
        """The time now, ms since epoch, UTC."""
        return min(now_ms(), _monotonic_ms() + self._ahead_ms)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
