"""A limit for the log lines of an outage: Kafka's clients write dozens a second, for each connection of each client."""

from __future__ import annotations

import logging

from commitlake.throttled import Throttle

_OURS = "commitlake"
"""Prefix of the names of this package's threads. Only the thread shows to whom a line of kafka-python belongs."""


class ThrottledFilter(logging.Filter):
    """Lets one warning or error pass each minute, and nothing below; lets all lines of a DEBUG logger pass."""

    def __init__(self) -> None:
        super().__init__()
        self._throttle = Throttle()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        if not str(record.threadName).startswith(_OURS) or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        return record.levelno >= logging.WARNING and self._throttle.is_due()


def quieten_kafka_python() -> None:
    """Adds the filter to kafka-python's loggers; lines of the application's own clients stay as they are."""
    throttled = ThrottledFilter()
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("kafka."):
            logging.getLogger(name).addFilter(throttled)
