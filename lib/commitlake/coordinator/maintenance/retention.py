"""Which rows may be deleted by age, and in which order: never open, undelivered or resumable messages (contract 2).

Rows of topics go by `topics.retention`, by whole files (`delete_old_files`, contract 3). All other tables follow here.

All half messages of a transaction go together, once each has ended for good and long ago. Rows of the other tables go
when their messages are gone from `half` and `delayed`; there is no list kept on the side. So after a kill between two
deletes the next run finds the rest. In this order a start between any two deletes takes nothing for open again:

1. `op`: else a decision whose ledger row has gone would look like one that waits;
2. `half` and `delayed`, the messages;
3. `transactions`, while a delivery still says that a delay has ended; then `deliveries`;
4. `checks`, `discarded`, `reentries`, `rejected`: the rows that were written about them.

A discarded transaction stays for ever, since a RESUME may come for it; only an ORPHAN can't be resumed. In each table
the highest row of each Kafka partition stays too, with the messages that it names. Without any markers a start finds by
that row where to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.coordinator.coordination.input_rows import refused_rows
from commitlake.protocol.clock import as_datetime, now_ms
from commitlake.protocol.states import OFFSET_USED_BEFORE, Kind
from commitlake.tables import Warehouse, topic_table


@dataclass(frozen=True)
class Cut:
    """The old rows: of batches up to `last_batch`, ended before `ended_ms`, stored or written before `stored_ms`.

    Both are ms since epoch, UTC. `stored_ms` is later by the time for which an op may wait. So a repeated op or a late
    part, which came after the end of a transaction, goes along with it.
    """

    last_batch: int
    ended_ms: int
    stored_ms: int

    def ended(self, column: str) -> Column:
        """Rows of complete batches that are old by `column`."""
        return (F.col("batch_id") <= self.last_batch) & self.written(column)

    def written(self, column: str) -> Column:
        """Rows that are as old by `column`, of whatever batch, or of none."""
        return F.col(column) < F.timestamp_millis(F.lit(self.ended_ms))

    def stored(self, column: str) -> Column:
        """Rows that are old by `column`, also those that came soon after an old end."""
        return F.col(column) < F.timestamp_millis(F.lit(self.stored_ms))


@dataclass(frozen=True)
class RetentionStep:
    """Deletes from `table` the rows whose columns `on` stand in `rows()`."""

    table: str
    on: Sequence[str]
    rows: Callable[[], DataFrame]


def steps(warehouse: Warehouse, cut: Cut) -> list[RetentionStep]:
    """The deletes, in their order; each reads the tables when its turn comes."""
    old = _Old(warehouse, cut)
    return [
        RetentionStep("op", ["queue", "op_offset", "admin"], old.ops),
        RetentionStep("half", ["queue", "queue_offset"], old.halves),
        RetentionStep("delayed", ["queue", "queue_offset"], old.delayed),
        RetentionStep("transactions", ["queue", "half_offset"], old.transactions),
        RetentionStep("deliveries", ["source", "queue", "queue_offset"], old.deliveries),
        RetentionStep("checks", ["queue", "half_offset"], old.checks),
        RetentionStep("discarded", ["queue", "queue_offset"], old.discarded),
        RetentionStep("reentries", ["queue", "offset", "part_queue", "part_offset", "kind", "batch_id"], old.reentries),
        RetentionStep("rejected", ["source", "kafka_partition", "kafka_offset"], old.rejected),
        RetentionStep("positions", ["landing_id"], old.positions),
    ]


_POSITIONS = 1_000
_PLACE = ["queue", "queue_offset"]
_HALF_PLACE = ["queue", "half_offset"]
_FIRST = ["first_queue", "first_offset"]


class _Old:
    """The rows of each table that may go."""

    def __init__(self, warehouse: Warehouse, cut: Cut) -> None:
        self._read, self._cut = warehouse.read, cut

    def ops(self) -> DataFrame:
        op, keys = self._stored("op"), ["queue", "op_offset", "admin"]
        about = [f"half_messages[0].{name} AS first_{name}" for name in ("queue", "offset")]
        named = op.selectExpr(*keys, "decision", *about)
        unknown = named.where("decision = 'UNKNOWN'").select(*keys)
        decisions = named.where("decision != 'RECALL'").join(self._done(), _FIRST, "left_semi").select(*keys)
        messages = self._delivered("messages").toDF(*_FIRST)
        recalls = named.where("decision = 'RECALL'").join(messages, _FIRST, "left_semi").select(*keys)
        refused = self._refused().selectExpr(
            "kafka_partition AS queue", "kafka_offset AS op_offset", "source = 'admin' AS admin"
        )
        rejected = named.join(refused, keys, "left_semi").select(*keys)
        found = unknown.union(decisions).union(recalls).union(rejected).distinct()
        return _but_highest(found, op, ["queue", "admin"], "op_offset")

    def halves(self) -> DataFrame:
        half = self._stored("half")
        done = half.join(self._done(), _FIRST, "left_semi").select(*_PLACE)
        return _but_highest(done, half, ["queue"], "queue_offset")

    def delayed(self) -> DataFrame:
        delayed = self._stored("delayed")
        done = delayed.join(self._delivered("messages"), _PLACE, "left_semi").select(*_PLACE)
        done = done.join(self._named_by_kept_ops().toDF(*_PLACE), _PLACE, "left_anti")
        return _but_highest(done, delayed, ["queue"], "queue_offset")

    def transactions(self) -> DataFrame:
        ended = self._read("transactions").where(self._cut.ended("resolved_at")).select(*_HALF_PLACE).distinct()
        return ended.join(self._halves_left(), _HALF_PLACE, "left_anti")

    def deliveries(self) -> DataFrame:
        keys = ["source", *_PLACE]
        ended = self._read("deliveries").where(self._cut.ended("resolved_at")).select(*keys)
        waited = self._stored("transactions").where("deliver_at IS NOT NULL").select(F.lit("half"), *_HALF_PLACE)
        left = waited.union(self._stored("delayed").select(F.lit("messages"), *_PLACE)).toDF(*keys)
        return ended.join(left, keys, "left_anti")

    def checks(self) -> DataFrame:
        asked = self._read("checks").where(self._cut.ended("requested_at")).select(*_HALF_PLACE).distinct()
        return asked.join(self._halves_left(), _HALF_PLACE, "left_anti")

    def discarded(self) -> DataFrame:
        kept = self._read("discarded").where(self._cut.ended("discarded_at")).select(*_PLACE).distinct()
        return kept.join(self._halves_left().toDF(*_PLACE), _PLACE, "left_anti")

    def reentries(self) -> DataFrame:
        """Rows of old batches, except the RESUME of a half message that is still there: only that is needed later."""
        rows = self._read("reentries").where(F.col("batch_id") <= self._old_batch())
        resumes = F.col("kind") == int(Kind.HALF)
        gone = rows.where(resumes).join(self._halves_left().toDF("queue", "offset"), ["queue", "offset"], "left_anti")
        keys = ["queue", "offset", "part_queue", "part_offset", "kind", "batch_id"]
        return rows.where(~resumes).select(*keys).union(gone.select(*keys)).distinct()

    def rejected(self) -> DataFrame:
        keys = ["source", "kafka_partition", "kafka_offset"]
        old = self._read("rejected").where(self._cut.stored("rejected_at"))
        source = F.when(F.col("admin"), "admin").otherwise("op")
        op = self._stored("op").select(source, "queue", "op_offset").toDF(*keys)
        is_old = self._cut.written("rejected_at")
        young = self._read("rejected").where(~is_old).select(*keys)  # an offset used before may have several rows
        gone = old.where(is_old).select(*keys)
        for kept in (young, self._parts_that_spoil(), op):
            gone = gone.join(kept, keys, "left_anti")
        return _but_highest(gone, old, keys[:2], keys[2])

    def _parts_that_spoil(self) -> DataFrame:
        """Refused parts of transactions in `half`: because of these rows no RESUME may reopen such a transaction."""
        parts = refused_rows(self._read("rejected")).select("queue", "offset", "part_queue", "part_offset")
        left = parts.join(self._halves_left().toDF("queue", "offset"), ["queue", "offset"], "left_semi")
        return left.selectExpr("'half'", "part_queue", "part_offset").toDF("source", "kafka_partition", "kafka_offset")

    def positions(self) -> DataFrame:
        """All but the newest 1 000: only the newest shows where landing goes on, the others are for people who ask."""
        rows = self._read("positions").select("landing_id")
        newest = rows.agg(F.max("landing_id")).collect()[0][0]
        return rows.where(F.col("landing_id") < (newest or 0) - _POSITIONS)

    def _stored(self, name: str) -> DataFrame:
        return self._read(name).where(self._cut.stored("stored_at"))

    def _halves_left(self) -> DataFrame:
        return self._stored("half").select(*_PLACE).toDF(*_HALF_PLACE)

    def _delivered(self, source: str) -> DataFrame:
        done = self._read("deliveries").where(self._cut.ended("resolved_at") & (F.col("source") == source))
        return done.select(*_PLACE)

    def _refused(self) -> DataFrame:
        rejected = self._read("rejected").where(f"source IN ('op', 'admin') AND reason != '{OFFSET_USED_BEFORE}'")
        return rejected.where(self._cut.written("rejected_at"))

    def _done(self) -> DataFrame:
        """The first half messages of transactions of which each half message that landed has ended for good."""
        half = self._stored("half").select(*_FIRST, *_PLACE)
        found = half.join(self._ended_for_good().toDF(*_PLACE, "good"), _PLACE, "left")
        every = found.groupBy(*_FIRST).agg(F.bool_and(F.coalesce("good", F.lit(False))).alias("every"))
        return every.where("every").select(*_FIRST).join(self._named_by_kept_ops(), _FIRST, "left_anti")

    def _named_by_kept_ops(self) -> DataFrame:
        """The messages that kept ops name: they stay too, or such an op would look like one that waits.

        A decision may be repeated long after the end. Most young ops name young half messages; only those that name an
        old message of a queue count.
        """
        op, partition, first = self._stored("op"), ["queue", "admin"], F.col("half_messages")[0]
        kept = op.join(F.broadcast(_highest(op, partition, "op_offset")), [*partition, "op_offset"], "left_semi")
        young = self._read("op").where(~self._cut.stored("stored_at"))
        named = kept.unionByName(young).select(first["queue"], first["offset"]).toDF(*_FIRST)
        until = _highest(self._stored("half"), ["first_queue"], "first_offset").toDF("first_queue", "until")
        waits = _highest(self._stored("delayed"), ["queue"], "queue_offset").toDF("first_queue", "until")
        ends = until.unionByName(waits).groupBy("first_queue").agg(F.max("until").alias("until"))
        return named.join(F.broadcast(ends), "first_queue").where("first_offset <= until").select(*_FIRST)

    def _ended_for_good(self) -> DataFrame:
        """Each half message with an old end, and whether its newest old end is final and, with a delay, delivered.

        No younger end can follow a final one, so the young part of the ledger is not read.
        """
        ended = self._read("transactions").where(self._cut.ended("resolved_at"))
        final = F.col("state").isin("COMMITTED", "ROLLED_BACK") | (F.col("reason") == "ORPHAN")
        newest = F.max_by(F.struct(final.alias("good"), "deliver_at"), "round").alias("end")
        ends = ended.groupBy(*_HALF_PLACE).agg(newest)
        done = self._delivered("half").toDF(*_HALF_PLACE).withColumn("delivered", F.lit(True))
        good = F.col("end.good") & (F.col("end.deliver_at").isNull() | F.coalesce("delivered", F.lit(False)))
        return ends.join(done, _HALF_PLACE, "left").select(*_HALF_PLACE, good)

    def _old_batch(self) -> int:
        old = self._read("batches").where(self._cut.ended("completed_at")).agg(F.max("batch_id")).collect()[0][0]
        return -1 if old is None else int(old)


def _but_highest(found: DataFrame, rows: DataFrame, partition: list[str], offset: str) -> DataFrame:
    return found.join(F.broadcast(_highest(rows, partition, offset)), [*partition, offset], "left_anti")


def _highest(rows: DataFrame, partition: list[str], offset: str) -> DataFrame:
    return rows.groupBy(*partition).agg(F.max(offset).alias(offset))


WINDOWS = 20
"""Files of a queue that compaction makes of a topic with a retention: so its rows stay a twentieth longer, or two."""
MOST_FILES = 1_000
"""Files that one commit removes; the next run goes on."""
_OLD_FILE = (
    "CAST(get_json_object(stats, '$.maxValues.visible_at') AS TIMESTAMP) < timestamp_millis({}L) AND "
    "coalesce(CAST(get_json_object(stats, '$.maxValues.batch_id') AS BIGINT), -1) <= {}"
)
"""SQL on Delta's entry of a file: all its rows are old, and of complete batches. A start completes only a later one."""
_LAST_SEEN = (
    "queue_id",
    "IF(batch_id IS NULL, source_queue, NULL) AS source_queue",
    "coalesce(batch_id, source_offset) AS last",
)


def delete_old_files(
    warehouse: Warehouse, topic: str, before_ms: int, pause: Callable[[], AbstractContextManager[object]]
) -> int:
    """Removes files of a topic whose rows all became visible before a time; returns how many, at most `MOST_FILES`.

    A commit that only removes files disturbs no reader: a stream with `ignoreDeletes` goes on. One that rewrote a file
    would show the rows that stay as new ones. So a row goes once every row of its file is old.

    Rows in the table `maintenance` come first. By these an audit knows which rows may be gone, and a consumer which it
    has missed.

    Args:
        warehouse: the tables.
        topic: the topic, which has a table.
        before_ms: ms since epoch, UTC.
        pause: a context in which no batch runs: a table's property changes, and an append beside that would fail.
    """
    warehouse.allow_changes(topic, pause)
    condition = _OLD_FILE.format(before_ms, warehouse.newest_batch())
    note = partial(_note, warehouse, topic, before_ms)
    return warehouse.remove_files(topic_table(topic), condition, MOST_FILES, note)


def _note(warehouse: Warehouse, topic: str, before_ms: int, files: list[str]) -> None:
    """Notes the last rows that may be gone, by queue, in place of the notes about earlier ones."""
    in_files = F.col("_metadata.file_name").isin(files)
    gone = warehouse.read(topic_table(topic)).where(in_files).selectExpr(*_LAST_SEEN)
    noted = warehouse.read("maintenance").where(F.col("topic") == topic).select("queue_id", "source_queue", "last")
    last = gone.unionByName(noted).groupBy("queue_id", "source_queue").agg(F.max("last").alias("last"))
    now = now_ms()
    same = {"topic": topic, "visible_before": as_datetime(before_ms), "maintained_at": as_datetime(now)}
    warehouse.add([{**row.asDict(), **same} for row in last.collect()], "maintenance")
    warehouse.table("maintenance").delete(f"topic = '{topic}' AND maintained_at < timestamp_millis({now}L)")
