"""From op in Kafka to visible row, at a steady rate, beside a plain streaming copy of one topic to one Delta table.

    .venv/bin/python -m tests.bench.latency --rate 1000 --seconds 60

Both run in one session, one after the other, with the same trigger. The first half of each phase is for warming up.
A row is visible when the commit that holds it is: its time is that of the commit's file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.bench.producers import Load

from commitlake import config
from commitlake.config import Config
from commitlake.coordinator import Coordinator
from commitlake.kafka import topics
from commitlake.kafka.clients import spark_options
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.spark import session


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="commitlake-bench-") as place,
        EmbeddedBroker(Path(place, "kafka")) as broker,
    ):
        conf = config.from_mapping(
            {
                "kafka": {"bootstrap_servers": broker.bootstrap_servers},
                "warehouse": f"{place}/warehouse",
                "checkpoints": f"{place}/cp",
            }
        )
        spark = session.build(conf, app_name="latency")
        plain = measure_copy(
            spark, replace(conf, kafka=replace(conf.kafka, topic_prefix="copy.")), place, given.rate, given.seconds
        )
        told = measure_coordinator(spark, conf, given.rate, given.seconds)
        for name, latencies in (("plain copy", plain), ("op to visible row", told)):
            print(f"{name}: {describe(latencies)}")
        print("ratio: " + ", ".join(f"p{p} {np.percentile(told, p) / np.percentile(plain, p):.2f}" for p in (50, 99)))
        spark.stop()


def measure_copy(spark: SparkSession, conf: Config, place: str, rate: int, seconds: int) -> np.ndarray:
    """Latencies (s) of a plain streaming copy of `op`."""
    topics.ensure_topics(conf)
    source = spark.readStream.format("kafka").options(**spark_options(conf.kafka), subscribe=conf.kafka.topic("op"))
    source = source.option("startingOffsets", "earliest")
    writer = source.load().writeStream.format("delta").option("checkpointLocation", f"{place}/copy-cp")
    query = writer.trigger(processingTime=f"{conf.trigger_interval_ms} milliseconds").start(f"{place}/copy")
    begun = run_load(conf, rate, seconds, lambda: spark.read.format("delta").load(f"{place}/copy").count())
    query.stop()
    rows = (
        spark.read.format("delta").load(f"{place}/copy").select(F.col("timestamp").alias("at"), "_metadata.file_name")
    )
    return latencies(rows.toPandas(), f"{place}/copy", begun)


def measure_coordinator(spark: SparkSession, conf: Config, rate: int, seconds: int) -> np.ndarray:
    """Latencies (s) from an op's append in Kafka to its row in the topic table."""
    table = f"{conf.warehouse}/topics/orders"
    with Coordinator(spark, conf).start():
        begun = run_load(conf, rate, seconds, lambda: spark.read.format("delta").load(table).count())
    shown = spark.read.format("delta").load(table).select("transaction_id", "_metadata.file_name")
    ops = (
        spark.read.format("delta").load(f"{conf.warehouse}/op").select("transaction_id", F.col("stored_at").alias("at"))
    )
    return latencies(shown.join(ops, "transaction_id").toPandas(), table, begun)


def run_load(conf: Config, rate: int, seconds: int, seen: Callable[[], int]) -> float:
    """Loads for `seconds`, waits until all is seen; returns when the told part began (s since epoch)."""
    begun = time.time() + seconds / 2
    with Load(conf.kafka.bootstrap_servers, conf.kafka.topic_prefix, rate, lambda _: "COMMIT") as running:
        time.sleep(seconds)
    until = time.monotonic() + 120
    while seen() < running.sent and time.monotonic() < until:
        time.sleep(1)
    assert seen() == running.sent, (seen(), running.sent)
    return begun


def latencies(rows: object, table: str, begun: float) -> np.ndarray:
    """Seconds from `at` to the commit of the row's file, of rows since `begun`."""
    committed = {}
    for commit in Path(table, "_delta_log").glob("*.json"):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                committed[Path(action["add"]["path"]).name] = commit.stat().st_mtime
    at = rows["at"].astype("datetime64[ns]").astype("int64").to_numpy() / 1e9  # type: ignore[index]
    visible = rows["file_name"].map(committed).to_numpy()  # type: ignore[index]
    return np.asarray((visible - at)[at >= begun])


def describe(values: np.ndarray) -> str:
    """Percentiles in seconds."""
    told = ", ".join(f"p{p} {np.percentile(values, p):.2f} s" for p in (50, 90, 99))
    return f"{told}, max {values.max():.2f} s ({len(values):,} rows)"


if __name__ == "__main__":
    main()
