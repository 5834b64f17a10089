"""Rounds of a half message: a RESUME opens one, and each that ends has a row in `transactions`."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.protocol.states import Kind


def newest(transactions: DataFrame) -> DataFrame:
    """The ledger row of each half message's newest round that has ended."""
    keys = ["queue", "half_offset"]
    rest = [name for name in transactions.columns if name not in keys]
    last = F.max_by(F.struct(*rest), F.col("round")).alias("row")
    return transactions.groupBy(*keys).agg(last).select(*keys, "row.*")


def reopened(reentries: DataFrame) -> DataFrame:
    """The newest RESUME of each first half message: the round that it opened, its time (ms) and its offset."""
    halves = reentries.where((F.col("kind") == int(Kind.HALF)) & (F.col("round") > 0))
    latest = F.max(F.struct("round", "since", "op_offset")).alias("r")
    return (
        halves.groupBy("queue", "offset")
        .agg(latest)
        .select(
            F.col("queue").alias("first_queue"),
            F.col("offset").alias("first_offset"),
            F.col("r.round").alias("open_round"),
            F.col("r.since").alias("open_since"),
            F.col("r.op_offset").alias("open_op_offset"),
        )
    )
