"""The measure of all figures: plain Spark that copies `half` and `op` to a Delta table each, a streaming query each.

    .venv/bin/python -m tests.bench.plain_copy --servers 127.0.0.1:9092 --place /tmp/copy

It has the jars, the heap and the settings of a coordinator; with `--defaults` it has the jars, and Spark's defaults for
all else, as an untuned job has. Runs until it is killed, with `--available-now` until all is copied.
"""

from __future__ import annotations

import argparse
import os

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.spark import session

TOPICS = ("half", "op")


def main() -> None:
    """Starts the queries and prints READY."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="Kafka's address")
    parser.add_argument("--prefix", default="commitlake.", help="of the Kafka topics")
    parser.add_argument("--place", required=True, help="the directory of tables and checkpoints")
    parser.add_argument("--available-now", action="store_true")
    parser.add_argument("--defaults", action="store_true", help="nothing but the jars of a coordinator")
    given = parser.parse_args()
    spark = untuned() if given.defaults else session.build(app_name="plain-copy")
    queries = [start(spark, given, topic) for topic in TOPICS]
    print("READY", flush=True)
    for query in queries:
        query.awaitTermination()
    spark.stop()


def untuned() -> SparkSession:
    """A session with Delta, and Spark's defaults."""
    builder = SparkSession.builder.appName("plain-copy").master("local[*]")
    for name, value in session.DELTA_SETTINGS.items():
        builder = builder.config(name, value)
    return builder.config("spark.driver.extraClassPath", os.pathsep.join(session.jars_of_one_machine())).getOrCreate()


def start(spark: SparkSession, given: argparse.Namespace, topic: str) -> StreamingQuery:
    """The query of one topic, with a trigger of 1 s; with Spark's defaults as often as it can."""
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", given.servers)
    source = source.option("subscribe", given.prefix + topic).option("startingOffsets", "earliest")
    rows = source.option("includeHeaders", "true").load()
    writer = rows.writeStream.format("delta").option("checkpointLocation", f"{given.place}/{topic}-checkpoint")
    if given.available_now:
        writer = writer.trigger(availableNow=True)
    elif not given.defaults:
        writer = writer.trigger(processingTime="1 second")
    return writer.start(f"{given.place}/{topic}")


if __name__ == "__main__":
    main()
