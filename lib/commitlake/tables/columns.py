"""Columns that stand for others: coordinates, hashes, times and names as numbers.

As SQL text where batches use them: an expression that Python builds call by call costs 0.2 ms a call, a batch has a
thousand; Spark parses the same text in less than one of them.
"""

from __future__ import annotations

from enum import IntEnum

from pyspark.sql import Column
from pyspark.sql import functions as F

from commitlake.protocol.encoding import OFFSET_BITS

IS_FIRST = "first_queue = queue AND first_offset = queue_offset"
"""Of a half message: whether it is its transaction's first."""


def coordinate_sql(queue: str, offset: str) -> str:
    """(queue, offset) as one number: a join on a single bigint is Spark's fastest, and cheap to broadcast."""
    return f"(shiftleft(CAST({queue} AS BIGINT), {OFFSET_BITS}) + {offset})"


def coordinate(queue: str, offset: str) -> Column:
    """As `coordinate_sql`."""
    return F.expr(coordinate_sql(queue, offset))


def named_sql(kinds: type[IntEnum], column: str) -> str:
    """The contract's name of a number."""
    cases = " ".join(f"WHEN {int(kind)} THEN '{kind.name}'" for kind in kinds)
    return f"(CASE {column} {cases} END)"


def named(kinds: type[IntEnum], column: str) -> Column:
    """As `named_sql`."""
    return F.expr(named_sql(kinds, column))


def or_null_sql(column: str) -> str:
    """What is absent (-1) in a row is null in a table."""
    return f"IF({column} >= 0, {column}, NULL)"


def moment_sql(column: str) -> str:
    """Ms since epoch as a timestamp, null when absent."""
    return f"timestamp_millis({or_null_sql(column)})"


def moment(column: str) -> Column:
    """As `moment_sql`."""
    return F.expr(moment_sql(column))


def millis_sql(column: str) -> str:
    """A timestamp column as ms since epoch, -1 for null."""
    return f"coalesce(unix_millis({column}), -1L)"


def hashed_sql(text: str) -> str:
    """The 64-bit hash that stands for a string in a segment."""
    return f"xxhash64({text})"


def visible_at_sql(at_ms: int) -> str:
    """`visible_at` of rows whose append begins now: one number for all of them, also where Spark does a task again.

    With the time of its batch a row could be read 8.6 s later (p50) on a busy machine, and who read by time missed it.

    Args:
        at_ms: Kafka's time, ms since epoch, UTC.
    """
    return f"greatest(timestamp_millis({at_ms}L), stored_at) AS visible_at"
