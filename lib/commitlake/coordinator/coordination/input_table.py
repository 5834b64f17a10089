"""The table that coordination reads: a scratch table of the run, to which all input of the state machine is appended.

The input is the rows that were open at the start (the first rows), the rows of each landing, the requeued rows of a
batch, and ticks. One Delta source, not one for each table, makes a landing one batch. Compaction of `half` and `op`
does not concern the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import NamedTuple, Self

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from commitlake.config import TransactionConfig
from commitlake.config.rules import rules_of
from commitlake.coordinator.coordination import input_rows
from commitlake.coordinator.coordination.input_rows import INPUT_SCHEMA
from commitlake.coordinator.coordination.state import join_and_time
from commitlake.protocol.clock import BrokerClock
from commitlake.protocol.statemachine.rows import ABSENT, SEGMENT_SIZE
from commitlake.protocol.states import Kind
from commitlake.spark.files import FileSystem
from commitlake.spark.frames import of_rows, to_arrow
from commitlake.tables import commits, direct_append
from commitlake.tables.creation import create_at_path
from commitlake.tables.schemas import TableLayout

_ALL_NEW = {"maxFilesPerTrigger": str(1 << 30), "ignoreDeletes": "true"}
"""A batch takes all rows that were appended: ops come before deadlines, and a limit could leave some ops behind."""
_TICK = StructType([INPUT_SCHEMA[name] for name in ("kind", "src", "queue", "offset")])
_PART = 100
"""Appends in a partition. Old partitions are dropped whole: else the table's state would grow with every round. Their
log entries are dropped too: else each round would list the log of all rounds before."""
_KEPT_LOG_MS = 120_000
_TIMES = ("landed", "now")


class _Layout(TableLayout):
    """A layout without statistics."""

    def properties(self) -> dict[str, str]:
        return {
            "delta.checkpointInterval": str(_PART),
            "delta.dataSkippingNumIndexedCols": "0",
            "delta.logRetentionDuration": "interval 1 hour",
            "delta.deletedFileRetentionDuration": "interval 1 hour",
        }


_MORE = [*(StructField(name, LongType()) for name in _TIMES), StructField("part", IntegerType())]
_LAYOUT = _Layout(StructType([*INPUT_SCHEMA, *_MORE]), ("part",))


class SegmentKey(NamedTuple):
    """The key of a state: 16 384 offsets of a queue of `half` (`src` 0) or `messages` (1)."""

    src: int
    queue: int
    segment: int


class InputTable:
    """The scratch table of one run.

    Args:
        spark: the coordinator's session.
        path: a directory or URI of its own.
        clock: Kafka's time; its time at the append of rows is the time of their batch.
    """

    def __init__(self, spark: SparkSession, path: str, clock: BrokerClock) -> None:
        self.spark, self._path, self._clock = spark, path, clock
        self._files, self._direct = FileSystem(spark, path), direct_append.found(spark, path)
        self._appended = 1  # the rows that are open at the start
        self._lock = Lock()
        create_at_path(spark, path, _LAYOUT)

    def open(self, rows: DataFrame) -> Self:
        """Appends the rows that are open at the start, of `INPUT_SCHEMA` and of any session."""
        with self._lock:
            self._by_delta(self._own(rows, ABSENT))
        return self

    def append(self, rows: DataFrame, watermark: int, *, few: bool = False) -> None:
        """Appends rows of `INPUT_SCHEMA`.

        Args:
            rows: the rows.
            watermark: the time up to which all has landed, ms since epoch, UTC. Every row carries it, for the deadlines
                of the row's segment.
            few: whether the driver may hold the rows.
        """
        if self._appended % _PART == 0:  # first, so that a failure here leaves no rows for a batch
            self._forget(self._appended // _PART - 1)
        self._write(rows, watermark, few=few)

    def ticks(self, keys: Iterable[SegmentKey]) -> DataFrame:
        """A row for each segment in which something is due though no record came."""
        found = [
            {"kind": int(Kind.TICK), "src": key.src, "queue": key.queue, "offset": key.segment * SEGMENT_SIZE}
            for key in keys
        ]
        rows = of_rows(self.spark, found, _TICK)
        return input_rows.rows(rows, **{name: name for name in _TICK.names})

    def stream(self) -> DataFrame:
        """All rows, with the segment that they belong to."""
        rows = self.spark.readStream.format("delta").options(**_ALL_NEW).load(self._path)
        return rows.withColumn("segment", F.expr(f"offset div {SEGMENT_SIZE}")).drop("part")

    def coordinate(
        self, timing: TransactionConfig, write: Callable[[DataFrame, int], None], checkpoint: str
    ) -> StreamingQuery:
        """Starts the query that puts the rows through the state machine, and hands out batches of events.

        No clock starts a batch: the query runs one as soon as there are rows, and none without rows.
        """
        events = join_and_time(self.stream(), rules_of(timing))
        writer = events.writeStream.queryName("coordination").foreachBatch(write).outputMode("append")
        return writer.option("checkpointLocation", checkpoint).start()

    def _forget(self, part: int) -> None:
        """Drops the partitions below `part`, and the files of those that were dropped the last time.

        VACUUM would list all files for that. No batch in flight reads rows of a hundred appends ago.
        """
        gone = self.spark.createDataFrame([], _LAYOUT.schema).write.format("delta").mode("overwrite")
        gone.option("replaceWhere", f"part < {part}").save(self._path)  # no SQL: Databricks may know no volume there
        commits.forget(DeltaTable.forPath(self.spark, self._path), _KEPT_LOG_MS)
        if part > 1:
            self._files.delete(f"part={part - 2}")

    def _write(self, rows: DataFrame, watermark: int, *, few: bool) -> None:
        with self._lock:
            own = self._own(rows, watermark)
            self._appended += 1
            if self._direct is None:
                self._by_delta(own)
            elif not (few and self._direct.append_few(to_arrow(own), self._path, _LAYOUT, None)):
                self._direct.append(own, self._path, None)

    def _by_delta(self, own: DataFrame) -> None:
        own.write.format("delta").partitionBy(*_LAYOUT.partition_by).mode("append").save(self._path)

    def _own(self, rows: DataFrame, watermark: int) -> DataFrame:
        times = zip(_TIMES, (watermark, self._clock.now_ms()), strict=True)
        return rows.select(
            *INPUT_SCHEMA.names,
            *[F.lit(time).cast("bigint").alias(name) for name, time in times],
            F.lit(self._appended // _PART).alias("part"),
        )
