"""Columns that stand for others: coordinates, hashes, times and names as numbers."""

from __future__ import annotations

from enum import IntEnum

from pyspark.sql import Column
from pyspark.sql import functions as F

from commitlake.protocol.encoding import OFFSET_BITS


def coordinate(queue: str, offset: str) -> Column:
    """(queue, offset) as one number: a join on a single bigint is Spark's fastest, and cheap to broadcast."""
    return F.shiftleft(F.col(queue).cast("bigint"), OFFSET_BITS).bitwiseOR(F.col(offset))


def named(kinds: type[IntEnum], column: str) -> Column:
    """The contract's name of a number."""
    pairs = [F.lit(item) for kind in kinds for item in (int(kind), kind.name)]
    return F.create_map(*pairs)[F.col(column)]


def or_null(column: str) -> Column:
    """What is absent (-1) in a row is null in a table."""
    return F.when(F.col(column) >= 0, F.col(column))


def moment(column: str) -> Column:
    """Ms since epoch as a timestamp, null when absent."""
    return F.timestamp_millis(or_null(column))


def millis(column: str) -> Column:
    """A timestamp column as ms since epoch, -1 for null."""
    return F.coalesce(F.unix_millis(F.col(column)), F.lit(-1))


def hashed(column: str | Column) -> Column:
    """The 64-bit hash that stands for a string in a segment."""
    return F.xxhash64(column)
