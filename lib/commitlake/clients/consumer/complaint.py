"""Warnings about something that goes on: at once, and then now and then."""

from __future__ import annotations

import logging
import time

_EVERY_S = 60.0


class Complaint:
    """One kind of trouble.

    Args:
        log: where warnings go.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._since: float | None = None
        self._said = -float("inf")

    def say(self, text: str, *values: object) -> None:
        """Warn, unless that was done within the last minute."""
        now = time.monotonic()
        self._since = self._since or now
        if now - self._said > _EVERY_S:
            self._said = now
            self._log.warning(text, *values)

    def lasts_s(self) -> float:
        """For how many seconds there has been trouble."""
        return time.monotonic() - self._since if self._since else 0.0

    def end(self) -> None:
        """The trouble is over."""
        if self._since:
            self._log.warning("it works again, after %.0f s", self.lasts_s())
        self._since, self._said = None, -float("inf")
