"""Log lines of an outage: Kafka's clients write dozens a second, of each connection of each client."""

from __future__ import annotations

import logging
import threading
import time

_EVERY_S = 60.0
_OURS = "commitlake"
"""How the names of the threads begin in which this package uses kafka-python, whose lines don't say whose they are."""


class ThrottledFilter(logging.Filter):
    """Lets warnings and errors pass once a minute, and nothing below; all of a logger that is set to DEBUG."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        if not str(record.threadName).startswith(_OURS) or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        return record.levelno >= logging.WARNING and self.is_due()

    def is_due(self) -> bool:
        """Whether a minute has passed since this was so before."""
        with self._lock:
            now = time.monotonic()
            is_due = now >= self._next
            if is_due:
                self._next = now + _EVERY_S
            return is_due


def quieten_kafka_python() -> None:
    """For its loggers in threads of this package; the application's own clients say what they said."""
    throttled = ThrottledFilter()
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("kafka."):
            logging.getLogger(name).addFilter(throttled)
