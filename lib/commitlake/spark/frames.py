"""Data frames that Spark must treat in a certain way: kept or materialized ones, and the smaller side of a join."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

_SMALL = 500_000  # rows of some 100 bytes: 50 MB on the wire; a shuffle of the other side costs twice the time


def sized(frame: DataFrame, rows: int) -> DataFrame:
    """Says how the smaller side of a join travels; Spark would guess, 10 times too low, from compressed sizes."""
    return frame.hint("broadcast" if rows <= _SMALL else "shuffle_hash")


def materialized(frame: DataFrame) -> DataFrame:
    """The few rows of `frame`, computed now and never again, without the plan that led to them.

    `persist` would not do: Spark computes cached frames again when a table that they read gets a commit, so after
    the commit to the ledger the resolutions of the batch would differ. And each query would analyse
    and ship their plan.
    """
    return frame.localCheckpoint()


def kept(frame: DataFrame) -> DataFrame:
    """The rows of `frame`, kept from the first action on until `release`, without the plan that led to them.

    `persist` keeps the plan: each frame that is made of it is analysed with it, and compared with it to find what is
    cached. That took a second of a round of six. The first action must read all partitions.
    """
    return frame.localCheckpoint(eager=False)


def release(frame: DataFrame) -> None:
    """Frees the memory of a `kept` frame; else it stays until the driver collects garbage."""
    plan: Any = frame._jdf.queryExecution().logical()
    # Not RDD.unpersist, which warns each time that the rows can't be computed again.
    frame.sparkSession.sparkContext._jsc.sc().unpersistRDD(plan.rdd().id(), False)
