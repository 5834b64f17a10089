"""The Kafka topics of the protocol, named without `kafka.topic_prefix` (contract, section 1)."""

from __future__ import annotations

HALF, OP, MESSAGES, ADMIN = "half", "op", "messages", "admin"
CHECK, SETTINGS = "check", "settings"

LANDED = (HALF, OP, MESSAGES, ADMIN)
"""Landing brings every record of these into a table, so they must keep all records."""
PAIRED = (HALF, OP, MESSAGES)
"""An op goes to the partition of its message, so these have equally many partitions."""
QUEUED = (*PAIRED, CHECK)
"""Topics with `kafka.queues` partitions; the others have one."""
MOST_OF_A_NAME = 249
"""Characters in the name of a Kafka topic."""
ALL = (*LANDED, CHECK, SETTINGS)


def check_topic(group: str) -> str:
    """The check topic of a producer group's own."""
    return f"{CHECK}.{group}"
