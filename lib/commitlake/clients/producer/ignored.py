"""Counts records that a reader ignores."""

from __future__ import annotations

import logging
import threading

from commitlake.throttled import Throttle

log = logging.getLogger(__name__)

_LONGEST = 500


class Ignored:
    """Counts ignored records, and logs at most one a minute: nobody who writes to the topic can fill the log.

    Args:
        topic: topic of the records.
    """

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
                *(record, self._topic, self.count, f"{reason!s:.{_LONGEST}}"),
            )
