"""The driver's clock against the broker's: every age and delay is a time of the first minus a time of the second."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Self

log = logging.getLogger(__name__)

TOLERATED_MS = 1_000
"""As much as a trigger: a clock that is right to this makes nothing visibly early or late."""


def now_ms() -> int:
    """The clock of this machine, ms since epoch, UTC."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Skew:
    """The driver's clock is `ahead_ms` ahead of the broker's (below 0: behind), give or take `error_ms`."""

    ahead_ms: float
    error_ms: float

    @classmethod
    def of(cls, sent: int, appended: int, acknowledged: int) -> Self:
        """Compare the broker's append time of a record with the driver's times around it (ms since epoch, UTC).

        The append was at some moment of the round trip: half of it is the most by which its middle is wrong.
        """
        return cls((sent + acknowledged) / 2 - appended, (acknowledged - sent) / 2)

    @property
    def is_certain(self) -> bool:
        """Whether the clocks are further apart than tolerated, however wrong the measurement is."""
        return abs(self.ahead_ms) - self.error_ms > TOLERATED_MS


def warn(skew: Skew) -> None:
    """Log what a skew does, and what to do about it, if it is certain."""
    if skew.is_certain:
        side, effect = ("ahead of", "early") if skew.ahead_ms > 0 else ("behind", "late")
        log.warning(
            "the driver's clock is %.1f s %s Kafka's, so checks and delayed messages come as much too %s; "
            "set the clocks of both machines by NTP, then start again",
            abs(skew.ahead_ms) / 1_000,
            side,
            effect,
        )
