"""The Kafka topics of the protocol, named without `kafka.topic_prefix` (contract, section 1)."""

from __future__ import annotations

HALF, OP, MESSAGES, ADMIN = "half", "op", "messages", "admin"
CHECK, SETTINGS = "check", "settings"

LANDED = (HALF, OP, MESSAGES, ADMIN)
"""Landing copies every record of these topics into a table, so the topics must keep all records."""
PAIRED = (HALF, OP, MESSAGES)
"""An op goes to the partition of its message, so these topics have equally many partitions."""
QUEUED = (*PAIRED, CHECK)
"""Topics with `kafka.queues` partitions; the others have one."""
MOST_OF_A_NAME = 249
"""Characters that Kafka allows in the name of a topic."""
ALL = (*LANDED, CHECK, SETTINGS)


def check_topic(group: str) -> str:
    """Name of the check topic that one producer group has for itself."""
    return f"{CHECK}.{group}"
