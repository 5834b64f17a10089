"""Columns made of others: coordinates, hashes, times, and names of numbers.

Batches use them as SQL text. To build an expression in Python costs 0.2 ms a call, and a batch has a thousand calls.
Spark parses the same text in less time than one call takes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from commitlake.protocol.encoding import OFFSET_BITS

IS_FIRST = "first_queue = queue AND first_offset = queue_offset"
"""Of a half message: whether it is its transaction's first."""


def coordinate_sql(queue: str, offset: str) -> str:
    """(queue, offset) as one number: a join on a single bigint is Spark's fastest, and cheap to broadcast."""
    return f"(shiftleft(CAST({queue} AS BIGINT), {OFFSET_BITS}) + {offset})"


def named_sql(kinds: type[IntEnum], column: str) -> str:
    """The contract's name for a number of `kinds`."""
    cases = " ".join(f"WHEN {int(kind)} THEN '{kind.name}'" for kind in kinds)
    return f"(CASE {column} {cases} END)"


def or_null_sql(column: str) -> str:
    """A value as tables have it: null where a row has -1, which means absent."""
    return f"IF({column} >= 0, {column}, NULL)"


def moment_sql(column: str) -> str:
    """Ms since epoch as a timestamp, null when absent."""
    return f"timestamp_millis({or_null_sql(column)})"


def millis_sql(column: str) -> str:
    """A timestamp column as ms since epoch, -1 for null."""
    return f"coalesce(unix_millis({column}), -1L)"


def hashed_sql(text: str) -> str:
    """The 64-bit hash that stands for a string in a segment."""
    return f"xxhash64({text})"


def visible_at_sql(at_ms: int) -> str:
    """`visible_at` of rows whose append begins now: one number for all of them, even if Spark repeats a task.

    With the time of its batch instead, a row became readable 8.6 s after it (p50) on a busy machine. A consumer that
    reads by time missed the row. `at_ms` is Kafka's time, ms since epoch, UTC.
    """
    return f"greatest(timestamp_millis({at_ms}L), stored_at) AS visible_at"


def any_sql(path: str, kind: DataType, wrong: Callable[[DataType], str | None]) -> str:
    """Whether any value is wrong in a column of a type, however deep; empty if none of its types has a condition.

    `wrong` gives the condition on a value of a type, with `{}` for the value; None for a type without one.
    """
    if isinstance(kind, MapType):
        return any_sql(f"map_values({path})", ArrayType(kind.valueType), wrong)
    if isinstance(kind, ArrayType):
        inner = any_sql("each", kind.elementType, wrong)
        return f"exists({path}, each -> {inner})" if inner else ""
    if isinstance(kind, StructType):
        below = (any_sql(f"{path}.`{field.name}`", field.dataType, wrong) for field in kind)
        return " OR ".join(filter(None, below))
    return (wrong(kind) or "").format(path)
