"""Lines of the log: text, or JSON objects where the environment variable COMMITLAKE_LOG_FORMAT is json."""

from __future__ import annotations

import logging
import os
import time

from commitlake.config.terminal import json_line, lines
from commitlake.errors import SetupError

FORMAT = "COMMITLAKE_LOG_FORMAT"
FIELDS = "fields"
"""Name in a record's `extra` of the fields for programs, which JSON lines show beside the message."""


def formatter() -> logging.Formatter:
    """The formatter that the environment asks for; log4j2.properties does the same for Java.

    Raises:
        SetupError: the variable is neither text nor json.
    """
    wanted = os.environ.get(FORMAT, "text")
    if wanted not in _FORMATTERS:
        msg = f"{FORMAT}={wanted} is not allowed; set it to one of {', '.join(_FORMATTERS)}"
        raise SetupError(msg)
    return _FORMATTERS[wanted]()


def error(message: str) -> str:
    """The line with the error that ends a process."""
    if os.environ.get(FORMAT) != "json":
        return lines(f"error: {message}\n")
    record = logging.makeLogRecord({"name": "commitlake", "levelname": "ERROR", "msg": message})
    return f"{JsonLines().format(record)}\n"


class TextLines(logging.Formatter):
    """Lines without control characters: a message may quote a producer's text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The lines of a record."""
        return lines(super().format(record))


class JsonLines(logging.Formatter):
    """A JSON object for each record: time (UTC), level, logger, message, own fields, and an error's stack trace."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        row = {"time": f"{second}.{int(record.msecs):03d}Z", "level": record.levelname, "logger": record.name}
        row |= {"message": record.getMessage(), **getattr(record, FIELDS, {})}
        return json_line(row | ({"stack": self.formatException(record.exc_info)} if record.exc_info else {}))


_FORMATTERS: dict[str, type[logging.Formatter]] = {"text": TextLines, "json": JsonLines}
