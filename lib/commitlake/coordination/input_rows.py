"""What coordination reads: narrow rows of half, op and delayed messages, never a body, never a string, never a null.

Strings become 64-bit hashes in the JVM; a null would turn a whole column into floats in pandas (offsets above 2^53
would break).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from commitlake.protocol.states import Kind, Source
from commitlake.statemachine.rows import ROW
from commitlake.tables.columns import hashed, millis

KEY = ("src", "queue", "segment")
_WIDTHS = {"i1": IntegerType(), "i2": IntegerType(), "i4": IntegerType(), "i8": LongType()}
FIELDS = ["src", "queue", *(ROW.names or ())]
INPUT_SCHEMA = StructType(
    [StructField(name, _WIDTHS[ROW[name].str[1:]] if name in (ROW.names or ()) else IntegerType()) for name in FIELDS]
)
"""A `ROW` with its source and its first half message's queue; also the columns of the feedback rows in `reentries`."""

_DECISION_KINDS = {kind.name: int(kind) for kind in (Kind.COMMIT, Kind.ROLLBACK, Kind.RESUME, Kind.RECALL)}


def rows(frame: DataFrame, **columns: Column | int) -> DataFrame:
    """Input rows with the given columns; what is not given is absent (-1)."""
    given = {name: value if isinstance(value, Column) else F.lit(value) for name, value in columns.items()}
    return frame.select(
        *[given.get(field.name, F.lit(-1)).cast(field.dataType).alias(field.name) for field in INPUT_SCHEMA]
    )


def half_rows(half: DataFrame, **more: Column | int) -> DataFrame:
    """Rows of the table `half`: a first half message stands for itself, a part for its place in its first's segment."""
    first = (F.col("first_queue") == F.col("queue")) & (F.col("first_offset") == F.col("queue_offset"))
    columns: dict[str, Column | int] = {
        "kind": F.when(first, F.lit(int(Kind.HALF))).otherwise(F.lit(int(Kind.PART))),
        "src": Source.HALF,
        "queue": F.col("first_queue"),
        "offset": F.col("first_offset"),
        "part_queue": F.when(first, -1).otherwise(F.col("queue")),
        "part_offset": F.when(first, -1).otherwise(F.col("queue_offset")),
        "tid": hashed("transaction_id"),
        "grp": hashed("producer_group"),
        "stored": millis("stored_at"),
        "immunity": F.coalesce("check_immunity_s", F.lit(-1)),
        "delay": F.coalesce("delay_ms", F.lit(-1)),
        "deliver_at": millis("deliver_at"),
        "checks": 0,
        "round": 0,
    }
    return rows(half, **(columns | more))


def op_rows(op: DataFrame, **more: Column) -> DataFrame:
    """Rows of the table `op`: one for the record, one more for each further half message that it lists.

    UNKNOWN changes nothing, so it never comes here.
    """
    decisions = F.create_map(*[F.lit(item) for pair in _DECISION_KINDS.items() for item in pair])
    listed = (
        op.where(F.col("decision").isin(*_DECISION_KINDS))
        .withColumn("messages", F.array_distinct("half_messages"))
        .select("*", F.posexplode("messages").alias("at", "message"))
    )
    first = F.col("at") == 0
    recall = F.col("decision") == "RECALL"
    return rows(
        listed,
        kind=F.when(first, decisions[F.col("decision")]).otherwise(int(Kind.LISTED)),
        src=F.when(recall, int(Source.MESSAGES)).otherwise(int(Source.HALF)),
        queue=F.col("messages")[0]["queue"],
        offset=F.col("messages")[0]["offset"],
        part_queue=F.when(first, -1).otherwise(F.col("message.queue")),
        part_offset=F.when(first, -1).otherwise(F.col("message.offset")),
        op_queue=F.col("queue"),
        op_offset=F.col("op_offset"),
        admin=F.col("admin").cast("int"),
        from_check=F.coalesce(F.col("from_check").cast("int"), F.lit(0)),
        listed=F.size("messages") - 1,
        tid=F.when(recall, hashed("message_id")).otherwise(hashed("transaction_id")),
        grp=F.when(recall, hashed("topic")).otherwise(hashed(F.coalesce("producer_group", F.lit("")))),
        stored=millis("stored_at"),
        **more,
    )


def delayed_rows(delayed: DataFrame) -> DataFrame:
    """Rows of the table `delayed`."""
    return rows(
        delayed,
        kind=Kind.DELAYED,
        src=Source.MESSAGES,
        queue=F.col("queue"),
        offset=F.col("queue_offset"),
        tid=hashed("message_id"),
        grp=hashed("topic"),
        stored=millis("stored_at"),
        deliver_at=millis("deliver_at"),
    )


def waiting_rows(committed: DataFrame, offset: str, due: Column) -> DataFrame:
    """Rows of committed half messages with a delay; each waits in its own segment, its first one is done with."""
    return rows(
        committed,
        kind=Kind.WAITING,
        src=Source.HALF,
        queue=F.col("queue"),
        offset=F.col(offset),
        part_queue=F.col("queue"),
        part_offset=F.col(offset),
        deliver_at=due,
    )
