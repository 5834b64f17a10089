"""The driver's clock compared with the broker's: every age and delay is a time of the first minus one of the second."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from commitlake.clock import now_ms

log = logging.getLogger(__name__)

TOLERATED_MS = 1_000
"""As much as a trigger: a smaller skew makes nothing visibly early or late."""


@dataclass(frozen=True)
class Skew:
    """The driver's clock is `ahead_ms` ahead of the broker's (below 0: behind), accurate to `error_ms`."""

    ahead_ms: float
    error_ms: float

    @classmethod
    def of(cls, sent: int, appended: int, acknowledged: int) -> Self:
        """The skew by one record. It was appended at some moment of the round trip, so the error is half of that.

        Args:
            sent: the driver's time before the record was sent, ms since epoch, UTC.
            appended: the broker's append time of the record, ms since epoch, UTC.
            acknowledged: the driver's time after its acknowledgement, ms since epoch, UTC.
        """
        return cls((sent + acknowledged) / 2 - appended, (acknowledged - sent) / 2)

    @property
    def is_certain(self) -> bool:
        """Whether the clocks are further apart than tolerated even if the error is as large as it can be."""
        return abs(self.ahead_ms) - self.error_ms > TOLERATED_MS


def measured(append: Callable[[int], int]) -> Skew:
    """The skew by a record that `append` sends with the given time, returning its append time (ms since epoch, UTC)."""
    sent = now_ms()
    appended = append(sent)
    return Skew.of(sent, appended, now_ms())


def warn(skew: Skew) -> None:
    """Log the effect of a skew that is certain, and what to do about it."""
    if skew.is_certain:
        side, effect = ("ahead of", "early") if skew.ahead_ms > 0 else ("behind", "late")
        log.warning(
            "the driver's clock is %.1f s %s Kafka's, so checks and delayed messages come as much too %s; "
            "set the clocks of both machines by NTP, then start again",
            abs(skew.ahead_ms) / 1_000,
            side,
            effect,
        )
