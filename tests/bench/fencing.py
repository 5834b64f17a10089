"""What it costs to keep an older coordinator from the commit point: ms an append to `transactions`, all in one run.

python -m tests.bench.fencing --rounds 60 --rows 1000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from commitlake.coordinator.recovery import fencing
from commitlake.spark import session
from commitlake.tables import TABLES, Warehouse

APP = "commitlake"
KEYS = ["queue", "half_offset", "round", "batch_id"]


def decided(spark: SparkSession, rows: int, batch_id: int) -> DataFrame:
    """Ledger rows of one batch, cached as the batch's events are."""
    made = spark.range(batch_id * rows, (batch_id + 1) * rows).select(
        F.lit(batch_id).alias("batch_id"),
        (F.col("id") % 4).alias("queue"),
        F.col("id").alias("half_offset"),
        F.format_string("T%012d", "id").alias("transaction_id"),
        F.lit("COMMITTED").alias("state"),
        F.lit(0).alias("round"),
    )
    missing = [field for field in TABLES["transactions"].schema if field.name not in made.columns]
    made = made.select("*", *[F.lit(None).cast(field.dataType).alias(field.name) for field in missing]).persist()
    made.count()
    return made


def plain(warehouse: Warehouse, rows: DataFrame, batch_id: int) -> None:
    warehouse.append(rows, "transactions", {"batch_id": batch_id})


def checked(warehouse: Warehouse, rows: DataFrame, batch_id: int, epoch: int) -> None:
    fencing.check(warehouse, epoch)
    plain(warehouse, rows, batch_id)


def by_version(warehouse: Warehouse, rows: DataFrame, batch_id: int) -> None:
    """Delta's idempotent write: of two with one version the second conflicts, or is skipped."""
    schema = TABLES["transactions"].schema
    writer = rows.select(*[F.col(f.name).cast(f.dataType) for f in schema]).write.format("delta").mode("append")
    writer.option("txnAppId", APP).option("txnVersion", batch_id).save(warehouse.locate("transactions"))


def by_own_rows(warehouse: Warehouse, rows: DataFrame, batch_id: int) -> None:
    """An append that reads its own table conflicts with every other append to what it has read."""
    there = warehouse.read("transactions").where(F.col("batch_id") >= batch_id).select(*KEYS)
    plain(warehouse, rows.join(there, KEYS, "left_anti"), batch_id)


def measure(spark: SparkSession, rounds: int, rows: int) -> dict[str, list[float]]:
    ways: dict[str, Callable[[Warehouse, DataFrame, int], None]] = {}
    places: dict[str, Warehouse] = {}
    for name in ("plain", "check, then append", "epoch read in the append", "txnVersion", "anti-join with itself"):
        warehouse = places[name] = Warehouse(spark, tempfile.mkdtemp())
        warehouse.create()
        epoch = fencing.begin_epoch(warehouse, "bench")
        if name.startswith("epoch"):
            warehouse.guard = fencing.EpochGuard(warehouse, epoch)
        other: dict[str, Callable[[Warehouse, DataFrame, int], None]] = {
            "check, then append": partial(checked, epoch=epoch),
            "txnVersion": by_version,
            "anti-join with itself": by_own_rows,
        }
        ways[name] = other.get(name, plain)
    took: dict[str, list[float]] = {name: [] for name in ways}
    for batch_id in range(rounds):
        batch = decided(spark, rows, batch_id)
        for name, append in ways.items():
            begun = time.perf_counter()
            append(places[name], batch, batch_id)
            took[name].append((time.perf_counter() - begun) * 1_000)
        batch.unpersist()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rows", type=int, default=1_000)
    given = parser.parse_args()
    spark = session.build(master="local[2]")
    took = {name: ms[given.rounds // 3 :] for name, ms in measure(spark, given.rounds, given.rows).items()}
    base = statistics.median(took["plain"])
    print(f"{given.rows} rows an append, medians of the last {len(took['plain'])} of {given.rounds}")
    for name, ms in took.items():
        print(f"{name:26} {statistics.median(ms):6.0f} ms  {statistics.median(ms) / base:.2f} of plain")
    spark.stop()


if __name__ == "__main__":
    main()
