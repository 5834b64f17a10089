"""Transactions per second from a filled Kafka to topic tables, beside a plain Spark copy of the topics to Delta.

    .venv/bin/python tests/bench/throughput.py --transactions 500000

Both run in one session, one after the other, twice: the first round warms the JVM, the second is told.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import load  # type: ignore[import-not-found]
from pyspark.sql import SparkSession

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
    parser.add_argument("--transactions", type=int, default=500_000)
    parser.add_argument("--warm-up", type=int, default=100_000)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="commitlake-bench-") as place,
        EmbeddedBroker(Path(place, "kafka")) as broker,
    ):
        conf = config.from_mapping(
            {"kafka": {"bootstrap_servers": broker.bootstrap_servers}, "transaction": {"timeout": "1h"}}
        )
        spark = session.build(conf, app_name="throughput")
        for name, count in (("warm-up", given.warm_up), ("measured", given.transactions)):
            compare(spark, replace(conf, kafka=replace(conf.kafka, topic_prefix=f"{name}.")), Path(place), name, count)
        spark.stop()


def compare(spark: SparkSession, conf: Config, place: Path, name: str, count: int) -> None:
    """Fills the topics, then copies them and coordinates them."""
    topics.ensure_topics(conf)
    found = load.transactions(spark, conf, count)
    filled = load.timed(lambda: (load.send_half_messages(found, conf), load.send_ops(found, conf)))
    own = replace(conf, warehouse=str(place / name / "warehouse"), checkpoints=str(place / name / "checkpoints"))
    copied = load.timed(lambda: copy(spark, conf, str(place / name / "copy")))
    coordinated = load.timed(lambda: coordinate(spark, own))
    rows = spark.read.format("delta").load(f"{own.warehouse}/topics/orders").count()
    assert rows == found.where(f"lot < {load.COMMITTED}").count(), rows
    print(
        f"{name}: {count} transactions; filled in {filled:.1f} s; plain copy {copied:.1f} s = {count / copied:,.0f}/s; "
        f"coordinated {coordinated:.1f} s = {count / coordinated:,.0f}/s; ratio {copied / coordinated:.2f}",
        flush=True,
    )
    shutil.rmtree(place / name)


def copy(spark: SparkSession, conf: Config, place: str) -> None:
    """The plain copy: two topics to one Delta table, Delta's own sink."""
    subscribed = f"{conf.kafka.topic('half')},{conf.kafka.topic('op')}"
    source = spark.readStream.format("kafka").options(**spark_options(conf.kafka), subscribe=subscribed)
    raw = (
        source.option("includeHeaders", "true")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 400_000)
    )
    writer = raw.load().writeStream.format("delta").option("checkpointLocation", f"{place}/_checkpoint")
    writer.trigger(availableNow=True).start(f"{place}/table").awaitTermination()


def coordinate(spark: SparkSession, conf: Config) -> None:
    """The coordinator, until all is done."""
    with Coordinator(spark, conf).start(available_now=True):
        pass


if __name__ == "__main__":
    main()
