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

from commitlake.spark.jvm import java
from commitlake.spark.session import is_classic, is_one_machine

_TWICE = StorageLevel(useDisk=True, useMemory=True, useOffHeap=False, deserialized=True, replication=2)
_arrow: Any = to_arrow_schema
"""Makes the Arrow schema of a Spark schema, with times in UTC; Spark 4.2 takes the time zone as an argument."""
if "timezone" in inspect.signature(to_arrow_schema).parameters:
    _arrow = partial(_arrow, timezone="UTC")
_SMALL = 500_000  # rows of some 100 bytes: 50 MB on the wire; a shuffle of the other side costs twice the time


def sized(frame: DataFrame, rows: int) -> DataFrame:
    """Tells Spark how to send the smaller side of a join; from compressed sizes it would guess 10 times too low."""
    return frame.hint("broadcast" if rows <= _SMALL else "shuffle_hash")


def checkpoint_now(frame: DataFrame) -> DataFrame:
    """The few rows of `frame`, computed now and never again, without the plan that led to them.

    `persist` is not enough: Spark computes cached frames again when a table that they read gets a commit. After the
    commit to the ledger the resolutions of the batch would differ. Also, each query would analyse and ship their plan.
    """
    return frame.localCheckpoint(storageLevel=_level(frame))


def checkpoint_lazily(frame: DataFrame) -> DataFrame:
    """The rows of `frame`, kept from the first action on until `release`, without the plan that led to them.

    `persist` keeps the plan: each frame that is made of it is analysed with it, and compared with it to find cached
    rows, which took one second of a round of six seconds. The first action must read all partitions.
    """
    return frame.localCheckpoint(eager=False, storageLevel=_level(frame))


def _level(frame: DataFrame) -> StorageLevel | None:
    """On a cluster rows are kept twice: if an executor is lost, there is no plan to compute them again."""
    return None if is_one_machine(str(frame.sparkSession.sparkContext.master)) else _TWICE


def of_rows(spark: SparkSession, rows: Iterable[Mapping[str, object]], schema: StructType) -> DataFrame:
    """A frame of a few rows that the driver has.

    With Python's own rows `createDataFrame` runs two tasks with Python workers, 0.3 s each; an Arrow table goes to the
    JVM unchanged.
    """
    return spark.createDataFrame(arrow_rows(rows, schema), schema)


def arrow_rows(rows: Iterable[Mapping[str, object]], schema: StructType) -> pa.Table:
    """A few rows that the driver has, as Arrow; a column that a row lacks is null."""
    return pa.Table.from_pylist(list(rows), schema=_arrow(schema))


def typed(frame: DataFrame, schema: StructType, *more: str) -> DataFrame:
    """The columns of a schema, in its order and types, after the frame's columns `more`."""
    return frame.select(*more, *[F.col(field.name).cast(field.dataType) for field in schema])


def to_arrow(frame: DataFrame) -> pa.Table:
    """The rows of a frame, which must be few, in the driver; none becomes an object of Python."""
    return frame.toArrow().cast(_arrow(StructType([StructField(each.name, each.dataType) for each in frame.schema])))


def in_few_tasks(frame: DataFrame) -> DataFrame:
    """The rows of `frame` in no more partitions than there are cores, without a shuffle.

    A task costs 20 to 60 ms of CPU, however few rows it has: each generates the code of wide projections and of Delta's
    statistics. Landing had a task for each partition of Kafka, four times over.
    """
    return frame.coalesce(frame.sparkSession.sparkContext.defaultParallelism)


def release(frame: DataFrame) -> None:
    """Frees the memory of a frame of `checkpoint_lazily`, which otherwise stays until the driver collects garbage."""
    with suppress(Py4JError):  # another vendor's plan may have no RDD
        plan: Any = frame._jdf.queryExecution().logical()
        # Not RDD.unpersist, which warns each time that the rows can't be computed again.
        frame.sparkSession.sparkContext._jsc.sc().unpersistRDD(plan.rdd().id(), False)


def forget_tables(spark: SparkSession) -> None:
    """Frees Delta's cache of tables that were read: 1.5 MB of plans each, so 1 000 fill a heap of 2 GiB."""
    if is_classic(spark):
        with suppress(Py4JError):  # a platform may block Delta's classes, or have renamed them
            java(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
