"""How long one step of publishing takes, with one job for all topics and with one for each, in turn.

    .venv/bin/python -m tests.bench.many_topics --topics 5 100 --rows 2000

The tables are those of topics, on a local disk. It times the append alone, in its own process, after a warm-up.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import pytest
from pyspark.sql import DataFrame, SparkSession

from commitlake.spark import session
from commitlake.tables import Warehouse, warehouse


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, nargs="+", default=[5, 100])
    parser.add_argument("--rows", type=int, default=2_000, help="rows of 256 B in a step")
    parser.add_argument("--steps", type=int, default=5, help="of each way, after one that does not count")
    given = parser.parse_args()
    spark = session.build(master="local[2]", app_name="many-topics")
    for number in given.topics:
        one, each = measure(spark, number, given.rows, given.steps)
        print(f"{number} topics: one job {one:.2f} s, one for each {each:.2f} s, {each / one:.1f} times", flush=True)


def measure(spark: SparkSession, number: int, rows: int, steps: int) -> tuple[float, float]:
    """Median seconds of a step, with one job for all topics, and with one for each."""
    topics = [f"topic{at}" for at in range(number)]
    took: dict[int, list[float]] = {0: [], number: []}
    with tempfile.TemporaryDirectory() as place:
        tables, frame = Warehouse(spark, place), rows_of(spark, number, rows).localCheckpoint()
        for step in range(steps + 1):
            for side_by_side, seconds in took.items():
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(warehouse, "_SIDE_BY_SIDE", side_by_side)
                    begun = time.monotonic()
                    tables.append_to_topics(frame, topics, {"batch_id": step})
                    seconds.append(time.monotonic() - begun)
    return statistics.median(took[0][1:]), statistics.median(took[number][1:])


def rows_of(spark: SparkSession, topics: int, rows: int) -> DataFrame:
    """Rows of topic tables."""
    return spark.range(rows).selectExpr(
        f"concat('topic', id % {topics}) AS topic",
        *("int(id % 4) AS queue_id", "uuid() AS message_id", "uuid() AS transaction_id", "'g' AS producer_group"),
        *("NULL AS tags", "uuid() AS keys", "map('color', 'red') AS properties", "NULL AS sharding_key"),
        *("cast(repeat(uuid(), 7) AS binary) AS body", "'half' AS source", "0 AS source_queue", "id AS source_offset"),
        *("0 AS source_index", "current_timestamp() AS born_at", "current_timestamp() AS stored_at"),
        *("current_timestamp() AS visible_at", "0L AS batch_id"),
    )


if __name__ == "__main__":
    main()
