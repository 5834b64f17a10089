"""Data frames that Spark must treat in a certain way: checkpointed ones, and the smaller side of a join."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from commitlake.spark.session import is_classic, is_one_machine

_TWICE = StorageLevel(useDisk=True, useMemory=True, useOffHeap=False, deserialized=True, replication=2)
_arrow: Any = to_arrow_schema
"""The Arrow schema of a schema, with times in UTC, which Spark 4.2 wants to be told."""
if "timezone" in inspect.signature(to_arrow_schema).parameters:
    _arrow = partial(_arrow, timezone="UTC")
_SMALL = 500_000  # rows of some 100 bytes: 50 MB on the wire; a shuffle of the other side costs twice the time


def sized(frame: DataFrame, rows: int) -> DataFrame:
    """Says how the smaller side of a join travels; Spark would guess, 10 times too low, from compressed sizes."""
    return frame.hint("broadcast" if rows <= _SMALL else "shuffle_hash")


def checkpoint_now(frame: DataFrame) -> DataFrame:
    """The few rows of `frame`, computed now and never again, without the plan that led to them.

    `persist` would not do: Spark computes cached frames again when a table that they read gets a commit, so after
    the commit to the ledger the resolutions of the batch would differ. And each query would analyse
    and ship their plan.
    """
    return frame.localCheckpoint(storageLevel=_level(frame))


def checkpoint_lazily(frame: DataFrame) -> DataFrame:
    """The rows of `frame`, kept from the first action on until `release`, without the plan that led to them.

    `persist` keeps the plan: each frame that is made of it is analysed with it, and compared with it to find what is
    cached. That took a second of a round of six. The first action must read all partitions.
    """
    return frame.localCheckpoint(eager=False, storageLevel=_level(frame))


def _level(frame: DataFrame) -> StorageLevel | None:
    """On a cluster rows are kept twice, since there is no plan to compute them again when an executor is lost."""
    return None if is_one_machine(str(frame.sparkSession.sparkContext.master)) else _TWICE


def of_rows(spark: SparkSession, rows: Iterable[Mapping[str, object]], schema: StructType) -> DataFrame:
    """A frame of a few rows that the driver has.

    `createDataFrame` of Python's own rows runs two tasks with Python workers, 0.3 s each; an Arrow table goes to the
    JVM as it is.
    """
    return spark.createDataFrame(arrow_rows(rows, schema), schema)


def arrow_rows(rows: Iterable[Mapping[str, object]], schema: StructType) -> pa.Table:
    """A few rows that the driver has, as Arrow; a column that a row lacks is null."""
    return pa.Table.from_pylist(list(rows), schema=_arrow(schema))


def typed(frame: DataFrame, schema: StructType, *more: str) -> DataFrame:
    """The columns of a schema, in order and of its types, behind `more` of the frame's."""
    return frame.select(*more, *[F.col(field.name).cast(field.dataType) for field in schema])


def to_arrow(frame: DataFrame) -> pa.Table:
    """The rows of a frame in the driver: few, and never Python's own objects."""
    return frame.toArrow().cast(_arrow(StructType([StructField(each.name, each.dataType) for each in frame.schema])))


def in_few_tasks(frame: DataFrame) -> DataFrame:
    """The rows of `frame` in no more partitions than there are cores, without a shuffle.

    A task costs 20 to 60 ms of CPU, however few rows it has: Spark generates the code of wide projections and of
    Delta's statistics in each, and landing had one for each partition of Kafka, four times over.
    """
    return frame.coalesce(frame.sparkSession.sparkContext.defaultParallelism)


def release(frame: DataFrame) -> None:
    """Frees the memory of a frame of `checkpoint_lazily`; else it stays until the driver collects garbage."""
    plan: Any = frame._jdf.queryExecution().logical()
    # Not RDD.unpersist, which warns each time that the rows can't be computed again.
    frame.sparkSession.sparkContext._jsc.sc().unpersistRDD(plan.rdd().id(), False)


def forget_tables(spark: SparkSession) -> None:
    """Frees what Delta keeps of tables that were read: 1.5 MB of plans each, so 1 000 fill a heap of 2 GiB."""
    if is_classic(spark):
        with suppress(Py4JError):  # a platform may lock Delta's classes away
            getattr(spark.sparkContext._jvm, "org.apache.spark.sql.delta.DeltaLog").clearCache()
