"""The rows that coordination reads: narrow rows of half, op and delayed messages and of refused parts.

They hold no body, string or null. Strings become 64-bit hashes in the JVM. A null would turn a whole column into floats
in pandas, and offsets above 2^53 would break.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from commitlake.protocol import headers
from commitlake.protocol.encoding import MAX_OFFSET, MAX_QUEUE
from commitlake.protocol.statemachine.rows import ROW
from commitlake.protocol.states import Kind, Source
from commitlake.tables.columns import IS_FIRST, hashed_sql, millis_sql

_WIDTHS = {"i1": IntegerType(), "i2": IntegerType(), "i4": IntegerType(), "i8": LongType()}
FIELDS = ["src", "queue", *(ROW.names or ())]
INPUT_SCHEMA = StructType(
    [StructField(name, _WIDTHS[ROW[name].str[1:]] if name in (ROW.names or ()) else IntegerType()) for name in FIELDS]
)
"""A `ROW` with its source and its first half message's queue; also the columns of `reentries`."""

REOPENED = f"kind IN ({int(Kind.HALF)}, {int(Kind.PART)}) AND round > 0"
"""SQL: whether a RESUME has reopened a requeued row. A start works out all other requeued rows."""

_DECISIONS = tuple(kind.name for kind in (Kind.COMMIT, Kind.ROLLBACK, Kind.RESUME, Kind.RECALL))
_DECISION_KIND = " ".join(f"WHEN '{name}' THEN {int(Kind[name])}" for name in _DECISIONS)
_HALF = {
    "kind": f"IF({IS_FIRST}, {int(Kind.HALF)}, {int(Kind.PART)})",
    "src": f"{int(Source.HALF)}",
    "queue": "first_queue",
    "offset": "first_offset",
    "part_queue": f"IF({IS_FIRST}, -1, queue)",
    "part_offset": f"IF({IS_FIRST}, -1, queue_offset)",
    "tid": hashed_sql("transaction_id"),
    "grp": hashed_sql("producer_group"),
    "stored": millis_sql("stored_at"),
    "immunity": "coalesce(check_immunity_s, -1)",
    "delay": "coalesce(delay_ms, -1)",
    "deliver_at": millis_sql("deliver_at"),
    "checks": "0",
    "round": "0",
}
IS_ANSWER = "(decision = 'UNKNOWN' AND NOT admin AND (from_check OR check_id IS NOT NULL))"
"""SQL: whether a row of `op` answers a check, and says that the outcome is still unknown."""
_NO_CHECK = -2  # the answer names a check of another transaction, or an impossible one


def _in_check_id(place: int) -> str:
    """A number of a CHECK_ID `<queue>-<offset>-<round>-<n>`, SQL; absent when the op names no check."""
    is_own = "startswith(check_id, concat_ws('-', half_messages[0].queue, half_messages[0].offset, ''))"
    number = f"TRY_CAST(split_part(check_id, '-', {place}) AS INT)"
    return f"IF(check_id IS NULL, -1, coalesce(IF({is_own}, {number}, NULL), {_NO_CHECK}))"


_GROUP = hashed_sql("coalesce(producer_group, '')")
_IS_RECALL = "decision = 'RECALL'"
_OP = {
    "kind": f"IF(at = 0, CASE decision {_DECISION_KIND} ELSE {int(Kind.UNKNOWN)} END, {int(Kind.LISTED)})",
    "src": f"IF({_IS_RECALL}, {int(Source.MESSAGES)}, {int(Source.HALF)})",
    "queue": "messages[0].queue",
    "offset": "messages[0].offset",
    "part_queue": "IF(at = 0, -1, message.queue)",
    "part_offset": "IF(at = 0, -1, message.offset)",
    "op_queue": "queue",
    "op_offset": "op_offset",
    "admin": "CAST(admin AS INT)",
    "from_check": "coalesce(CAST(from_check AS INT), 0)",
    "listed": "size(messages) - 1",
    "tid": f"IF({_IS_RECALL}, {hashed_sql('message_id')}, {hashed_sql('transaction_id')})",
    "grp": f"IF({_IS_RECALL}, {hashed_sql('topic')}, {_GROUP})",
    "stored": millis_sql("stored_at"),
    "checks": "check_times",
    "round": "check_round",
}
_IN_CHECK_ID = [f"{_in_check_id(3)} AS check_round", f"{_in_check_id(4)} AS check_times"]
"""Computed once for each op: computed for each of 1 000 half messages of an op, 900 kB of dashes took 171 s."""
_DELAYED = {
    "kind": f"{int(Kind.DELAYED)}",
    "src": f"{int(Source.MESSAGES)}",
    "queue": "queue",
    "offset": "queue_offset",
    "tid": hashed_sql("message_id"),
    "grp": hashed_sql("topic"),
    "stored": millis_sql("stored_at"),
    "deliver_at": millis_sql("deliver_at"),
}


def _text(name: str) -> str:
    """SQL of a header of a rejected record, as landing reads it."""
    return f"nullif(make_valid_utf8(CAST(headers['{name}'] AS STRING)), '')"


_REFUSED = {
    "kind": f"{int(Kind.REFUSED_PART)}",
    "src": f"{int(Source.HALF)}",
    "queue": "place.queue",
    "offset": "place.offset",
    "part_queue": "kafka_partition",
    "part_offset": "kafka_offset",
    "tid": hashed_sql(f"coalesce({_text(headers.TRANSACTION_ID)}, {_text(headers.UNIQ_KEY)})"),
    "grp": hashed_sql(_text(headers.PGROUP)),
    "stored": millis_sql("rejected_at"),
}


def rows(frame: DataFrame, **columns: str) -> DataFrame:
    """Input rows with the given columns, as SQL; all other columns are absent (-1)."""
    return frame.selectExpr(
        *[
            f"CAST({columns.get(field.name, '-1')} AS {field.dataType.simpleString()}) AS `{field.name}`"
            for field in INPUT_SCHEMA
        ]
    )


def stored_rows(table: DataFrame) -> DataFrame:
    """Input rows of a table that holds such rows; those of an older version have no `repeat`."""
    columns = {name: name for name in INPUT_SCHEMA.names}
    return rows(table, **columns | {"repeat": "coalesce(repeat, -1)"})


def half_rows(half: DataFrame, **more: str) -> DataFrame:
    """Input rows of the table `half`; a part goes to the segment of its first half message."""
    return rows(half, **(_HALF | more))


def op_rows(op: DataFrame, **more: str) -> DataFrame:
    """Input rows of the table `op`: one for the record, one more for each further half message that a decision lists.

    An UNKNOWN that answers no check changes nothing, so it gets no row.
    """
    kinds = ", ".join(f"'{name}'" for name in _DECISIONS)
    messages = "IF(decision = 'UNKNOWN', slice(half_messages, 1, 1), array_distinct(half_messages)) AS messages"
    listed = op.where(f"decision IN ({kinds}) OR {IS_ANSWER}").selectExpr("*", messages, *_IN_CHECK_ID)
    return rows(listed.selectExpr("*", "posexplode(messages) AS (at, message)"), **(_OP | more))


def refused_rows(rejected: DataFrame) -> DataFrame:
    """Input rows of the table `rejected`: the half messages that name a first one."""
    named = rejected.selectExpr("*", f"{_text(headers.FIRST_HALF)} AS first").where(
        "source = 'half' AND first RLIKE '^[0-9]{1,9}-[0-9]{1,18}$'"
    )
    number = "TRY_CAST(split_part(first, '-', {}) AS BIGINT)"
    place = f"struct({number.format(1)} AS queue, {number.format(2)} AS offset) AS place"
    there = f"place.queue <= {MAX_QUEUE} AND place.offset <= {MAX_OFFSET}"
    return rows(named.selectExpr("*", place).where(there), **_REFUSED)


def delayed_rows(delayed: DataFrame) -> DataFrame:
    """Input rows of the table `delayed`."""
    return rows(delayed, **_DELAYED)


def waiting_rows(committed: DataFrame, offset: str, due: str) -> DataFrame:
    """Input rows of committed half messages with a delay; each waits in its own segment, since its first has ended.

    Args:
        committed: rows with `queue`, and the offset of the half message.
        offset: the name of the offset's column.
        due: SQL of the time when it is due, ms since epoch, UTC.
    """
    place = {"part_queue": "queue", "part_offset": offset}
    return rows(
        committed,
        kind=f"{int(Kind.WAITING)}",
        src=f"{int(Source.HALF)}",
        queue="queue",
        offset=offset,
        deliver_at=due,
        **place,
    )
