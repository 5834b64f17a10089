"""The Delta tables: their names, columns in order, partitions, and columns with statistics.

Other programs rely on column names, types and order; every timestamp is UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import types as T

from commitlake.protocol.durations import DAY_MS, HOUR_MS

_TYPES: dict[str, T.DataType] = {
    "int": T.IntegerType(),
    "bigint": T.LongType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "boolean": T.BooleanType(),
    "timestamp": T.TimestampType(),
    "strings": T.MapType(T.StringType(), T.StringType()),
    "binaries": T.MapType(T.StringType(), T.BinaryType()),
    "nexts": T.ArrayType(
        T.StructType(
            [
                T.StructField("source", T.StringType()),
                T.StructField("partition", T.IntegerType()),
                T.StructField("next", T.LongType()),
            ]
        )
    ),
    "parts": T.ArrayType(
        T.StructType([T.StructField("queue", T.IntegerType()), T.StructField("offset", T.LongType())])
    ),
}


APPEND_ONLY = "delta.appendOnly"
"""Whether Delta refuses deletes and updates."""
STATISTICS = "delta.dataSkippingStatsColumns"
"""Columns, and paths of fields, of which Delta's log has each file's lowest and highest value."""
FILE_RETENTION = "delta.deletedFileRetentionDuration"
"""How long files stay that compaction replaced. VACUUM of Delta 4.3 obeys this property and not its argument. VACUUM of
earlier versions keeps no file that the table has forgotten. So maintenance sets the property to its own retention."""


def interval(ms: int) -> str:
    """A duration as the text of a table property."""
    return f"interval {ms // 1_000} seconds"


# A commit a second makes 86 400 log files a day, and each commit must list all of them. Compaction leaves a tombstone
# for each file in the table's state. Delta's 30 days and 7 days are too long for that. Topic tables keep their log that
# long nevertheless: a consumer that was away continues where it was.
_OWN_LOG = {"delta.logRetentionDuration": "interval 1 day", FILE_RETENTION: interval(HOUR_MS)}
_TOPIC_LOG = {"delta.logRetentionDuration": "interval 30 days", FILE_RETENTION: interval(7 * DAY_MS)}


@dataclass(frozen=True)
class TableLayout:
    """One Delta table.

    Attributes:
        schema: Its columns, in the order readers see.
        partition_by: Its partition columns.
        stats: Columns and paths of fields with min/max statistics; without the list Delta would gather them for ids
            and bodies too.
        append_only: Whether Delta refuses deletes and updates (`delta.appendOnly`).
        checkpoint_interval: Commits after which Delta writes a checkpoint. Tables get a commit a second: with the
            default of 10 every tenth commit took 3 to 5 s.
        comment: What the table is, for those who look at it in a catalog.
        more: Further properties, which nothing but CommitLake heeds.
    """

    schema: T.StructType
    partition_by: tuple[str, ...] = ()
    stats: tuple[str, ...] = ()
    append_only: bool = False
    checkpoint_interval: int = 50
    comment: str = ""
    more: tuple[tuple[str, str], ...] = ()

    @property
    def columns(self) -> list[str]:
        """Column names, in order."""
        return self.schema.fieldNames()

    def properties(self) -> dict[str, str]:
        """Delta table properties that the table is created with."""
        return {
            **(_TOPIC_LOG if self.append_only else _OWN_LOG),
            "delta.enableDeletionVectors": "false",
            "delta.columnMapping.mode": "none",  # whatever a session's default is: readers without Spark go by name
            "delta.checkpointInterval": str(self.checkpoint_interval),
            STATISTICS: ",".join(self.stats),
            **({APPEND_ONLY: "true"} if self.append_only else {}),
            **dict(self.more),
        }


def columns(text: str) -> T.StructType:
    """Read a schema from lines of `<type> <name> <name> ...`; every column is nullable, as Delta readers expect."""
    fields = []
    for line in text.strip().splitlines():
        kind, *names = line.split()
        fields += [T.StructField(name, _TYPES[kind]) for name in names]
    return T.StructType(fields)


def _commented(schema: T.StructType, comments: Mapping[str, str]) -> T.StructType:
    """The schema with comments on some of its columns."""
    of = {name: {"comment": text} for name, text in comments.items()}
    return T.StructType([T.StructField(each.name, each.dataType, metadata=of.get(each.name)) for each in schema])


HALF = """
int       queue
bigint    queue_offset
string    transaction_id message_id producer_group topic
int       queue_id
string    tags keys
strings   properties
binary    sharding_key body
int       first_queue
bigint    first_offset
int       check_immunity_s
bigint    delay_ms
timestamp deliver_at born_at stored_at
"""

OP = """
int       queue
bigint    op_offset
boolean   admin
string    transaction_id producer_group decision
parts     half_messages
string    message_id topic
boolean   from_check
string    check_id remark
timestamp stored_at
"""

DELAYED = """
int       queue
bigint    queue_offset
string    message_id producer_group topic
int       queue_id
string    tags keys
strings   properties
binary    sharding_key body
bigint    delay_ms
timestamp born_at stored_at deliver_at
"""

TOPIC_COLUMNS = """
int       queue_id
string    message_id transaction_id producer_group tags keys
strings   properties
binary    sharding_key body
string    source
int       source_queue
bigint    source_offset
int       source_index
timestamp born_at stored_at due_at visible_at
bigint    batch_id landing_id
"""

TRANSACTIONS = """
int       queue
bigint    half_offset
string    transaction_id message_id producer_group topic state reason
int       op_queue
bigint    op_offset
int       checks round
timestamp deliver_at
string    duplicate_of
timestamp stored_at resolved_at
bigint    batch_id
"""

DELIVERIES = """
int       queue
string    source
bigint    queue_offset
string    message_id topic state duplicate_of
timestamp deliver_at resolved_at
bigint    batch_id
"""

DISCARDED = f"""{HALF}string    reason
int       checks round
timestamp discarded_at
bigint    batch_id
"""

CHECKS = """
int       queue
bigint    half_offset
string    transaction_id producer_group
int       round check_no repeat
timestamp requested_at
bigint    batch_id
"""

BATCHES = """
bigint    batch_id
timestamp completed_at
bigint    landing_id
"""

EPOCHS = """
bigint    epoch
string    host
int       pid
timestamp started_at
string    version
int       contract
"""

DESTINATIONS = """
string    topic table
timestamp created_at
"""

FORWARDED = """
string    topic target
bigint    next_version
"""

REJECTED = """
string    source
int       kafka_partition
bigint    kafka_offset
string    reason detail
binary    key value
binaries  headers
timestamp rejected_at
"""

POSITIONS = """
bigint    landing_id
nexts     offsets
timestamp landed_until completed_at
"""

MAINTENANCE = """
timestamp ended_before maintained_at
string    topic
int       queue_id source_queue
bigint    last
timestamp visible_before
"""

REENTRIES = """
int       kind src queue
bigint    offset
int       part_queue
bigint    part_offset
int       op_queue
bigint    op_offset
int       admin from_check listed
bigint    tid grp stored immunity delay deliver_at
int       checks repeat round
bigint    since due batch_id
"""

OPEN_ROWS = f"""{REENTRIES}bigint    landing_id
string    timing
"""

TOPIC_COMMENTS = {
    "queue_id": "queue of the topic",
    "message_id": "id that the producer gave, or its client made",
    "transaction_id": "null for a message without a transaction",
    "tags": "what consumers filter by",
    "keys": "business keys, separated by blanks",
    "properties": "what else the producer gave",
    "sharding_key": "messages of one key are in one queue, in order",
    "body": "the bytes that the producer sent",
    "source": "half or messages; with the three columns after it, it identifies the message for ever",
    "born_at": "when the producer made it, by its own clock",
    "stored_at": "when Kafka appended it; the message may be shown long after",
    "due_at": "when a message with a delay was due; null for others",
    "visible_at": "when the append of the row began, by Kafka's clock",
    "batch_id": "batch that shows it; null for normal messages and batches",
    "landing_id": "landing that wrote a normal message or a batch; null for others",
}
TOPIC = TableLayout(
    _commented(columns(TOPIC_COLUMNS), TOPIC_COMMENTS),
    ("queue_id",),
    ("source", "source_queue", "source_offset", "stored_at", "visible_at", "batch_id"),
    append_only=True,
    comment="committed messages of a topic, a row each",
)

TOPIC_SINCE = ("due_at", "landing_id")
"""Columns that topic tables of an older version lack. Their owner may have added others, and put them in any order."""

TABLES: dict[str, TableLayout] = {
    "half": TableLayout(
        columns(HALF),
        ("queue",),
        ("queue_offset", "first_queue", "first_offset", "stored_at"),
        comment="half messages, as they landed",
    ),
    "op": TableLayout(columns(OP), ("queue",), ("op_offset", "stored_at"), comment="decisions, answers and recalls"),
    "delayed": TableLayout(
        columns(DELAYED), ("queue",), ("queue_offset", "stored_at", "deliver_at"), comment="messages with a delay"
    ),
    "transactions": TableLayout(
        columns(TRANSACTIONS),
        ("queue",),
        ("half_offset", "stored_at", "resolved_at", "batch_id"),
        comment="how each half message ended",
    ),
    "deliveries": TableLayout(
        columns(DELIVERIES),
        ("queue",),
        ("source", "queue_offset", "deliver_at", "resolved_at", "batch_id"),
        comment="how each delay ended",
    ),
    "discarded": TableLayout(
        columns(DISCARDED),
        ("queue",),
        ("queue_offset", "stored_at", "discarded_at", "batch_id"),
        comment="half messages that ended without a decision; they can be resumed",
    ),
    "checks": TableLayout(
        columns(CHECKS), ("queue",), ("half_offset", "requested_at", "batch_id"), comment="check requests"
    ),
    "batches": TableLayout(
        columns(BATCHES), (), ("batch_id", "completed_at"), comment="complete batches of coordination"
    ),
    "epochs": TableLayout(columns(EPOCHS), (), ("epoch", "started_at"), comment="starts of coordinators"),
    "destinations": TableLayout(columns(DESTINATIONS), (), ("created_at",), comment="topics that have a table"),
    "rejected": TableLayout(
        columns(REJECTED),
        (),
        ("source", "kafka_partition", "kafka_offset", "rejected_at"),
        comment="records that changed nothing, with the reason",
    ),
    "forwarded": TableLayout(
        columns(FORWARDED), (), ("next_version",), comment="internal: how far topics.to_kafka has read"
    ),
    # A row for each run of retention: rows that ended before `ended_before` may be gone. Of a topic with a retention,
    # rows that became visible before `visible_before` may be: in a queue up to the batch `last`, and normal messages of
    # a `source_queue` up to the offset `last`.
    "maintenance": TableLayout(
        columns(MAINTENANCE), (), ("ended_before", "maintained_at"), comment="internal: rows that may be gone"
    ),
    # A row for each complete landing: the offsets at which the next one continues.
    "positions": TableLayout(
        columns(POSITIONS), (), ("landing_id",), comment="internal: complete landings, and where the next one begins"
    ),
    "reentries": TableLayout(
        columns(REENTRIES), (), ("batch_id",), comment="internal: rows that coordination sends to itself"
    ),
    # So that a start looks only at what came since.
    "open_rows": TableLayout(columns(OPEN_ROWS), (), ("kind",), comment="internal: what was open a while ago"),
}

OF_BATCHES = ("transactions", "deliveries", "discarded", "checks", "reentries")
"""Tables that a coordination batch writes before its row in `batches`; beside them it writes topics."""
