"""Records of others that are passed over."""

from __future__ import annotations

import logging
import threading

from commitlake.throttled import Throttle

log = logging.getLogger(__name__)

_LONGEST = 500


class Ignored:
    """Counts what is passed over, and logs one a minute: whoever may write to a topic must not fill the log.

    Args:
        topic: where it stands.
    """

    def __init__(self, topic: str) -> None:
        self.count = 0
        self._topic = topic
        self._lock, self._throttle = threading.Lock(), Throttle()

    def add(self, record: str, reason: object) -> None:
        """Note a record; `reason` says what is wrong with it."""
        with self._lock:
            self.count += 1
        if self._throttle.is_due():
            log.warning(
                "ignored record %s of %s, and %d so far: %s; the next warning comes in a minute or later",
                *(record, self._topic, self.count, f"{reason!s:.{_LONGEST}}"),
            )
