"""The clock of this machine."""

from __future__ import annotations

import time


def now_ms() -> int:
    """The time now, ms since epoch, UTC."""
    return time.time_ns() // 1_000_000
