"""Which topic names messages may have, and where a topic's table is."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from commitlake.errors import RecordError

MAX_LENGTH = 127
NAME = re.compile(r"[%a-zA-Z0-9_-]+")
SYSTEM_PREFIX = "RMQ_SYS_"
SYSTEM_TOPICS = frozenset(
    {"SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC", "TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}
    | {"_delta_log"}  # no table can have the name of its own log
)
RETRY_PREFIX = "%RETRY%"
"""RocketMQ's topics of messages that consumers send back; no batch may go there."""


def _is_system(topic: str) -> bool:
    return topic.startswith(SYSTEM_PREFIX) or topic in SYSTEM_TOPICS


def is_allowed(topic: str, patterns: Sequence[str]) -> bool:
    """Whether one of `topics.allowed` (shell patterns, case counts) matches."""
    return any(fnmatchcase(topic, pattern) for pattern in patterns)


def check_name(topic: str) -> None:
    """Raise `MISSING_REAL_TOPIC` or `ILLEGAL_TOPIC` unless messages may be sent to `topic`."""
    if not 1 <= len(topic) <= MAX_LENGTH:
        msg = f"the topic's name has {len(topic)} characters; it must have 1 to {MAX_LENGTH}"
        raise RecordError(msg, "MISSING_REAL_TOPIC")
    if not NAME.fullmatch(topic):
        msg = f"topic {topic!r} is not a legal name; use letters, digits, and % _ - only"
        raise RecordError(msg, "ILLEGAL_TOPIC")
    if _is_system(topic):
        msg = f"topic {topic!r} is a system name; choose another"
        raise RecordError(msg, "ILLEGAL_TOPIC")


def check_admitted(topic: str, allowed: Sequence[str], known: Collection[str], most: int) -> None:
    """Check that messages may be sent to `topic` under a configuration.

    Raises:
        RecordError: `TOPIC_NOT_ALLOWED` when no pattern matches, or when it would be one more than `topics.max`.
    """
    if not is_allowed(topic, allowed):
        msg = f"topic {topic!r} is not allowed; topics.allowed is {list(allowed)}"
        raise RecordError(msg, "TOPIC_NOT_ALLOWED")
    if topic not in known and len(known) >= most:
        msg = f"topic {topic!r} would be one more than topics.max = {most}; use an existing one, or raise topics.max"
        raise RecordError(msg, "TOPIC_NOT_ALLOWED")


_VISIBLE = "topic."
"""Prefix where a topic's name begins with `_`: Spark and Hive hide such a directory, or it is Delta's own, as
`_samples` is."""


def plain_name(topic: str) -> str:
    """The topic's name with `~` for `%`, which Hadoop would decode; no topic's name has a `~`."""
    return topic.replace("%", "~")


def catalog_name(topic: str) -> str:
    """Name of the topic's table in a catalog's schema."""
    return f"topic_{plain_name(topic)}"


def path_name(topic: str) -> str:
    """Name of the topic's directory."""
    return f"{_VISIBLE}{plain_name(topic)}" if topic.startswith("_") else plain_name(topic)


def older_path_name(topic: str) -> str | None:
    """Name of the directory that an older version gave to a topic; None where it is the same.

    None for `_samples`, too: Delta takes no directory of that name for a table.
    """
    return plain_name(topic) if topic.startswith("_") and topic != "_samples" else None


def from_path_name(name: str) -> str:
    """The topic whose directory is `name`."""
    return name.removeprefix(_VISIBLE).replace("~", "%")


def has_twin(topic: str, known: Collection[str]) -> bool:
    """Whether a catalog, or a file system that ignores case, takes another of the `known` topics for `topic`."""
    folded = topic.lower()
    return any(other != topic and other.lower() == folded for other in known)
