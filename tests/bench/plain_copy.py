"""The measure of all figures: plain Spark that copies `half` and `op` to a Delta table each, a streaming query each.

    .venv/bin/python -m tests.bench.plain_copy --servers 127.0.0.1:9092 --place /tmp/copy

It has the jars, the heap and the settings of a coordinator. Runs until it is killed, with `--available-now` until all
is copied.
"""

from __future__ import annotations

import argparse

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
    given = parser.parse_args()
    spark = session.build(app_name="plain-copy")
    queries = [start(spark, given, topic) for topic in TOPICS]
    print("READY", flush=True)
    for query in queries:
        query.awaitTermination()
    spark.stop()


def start(spark: SparkSession, given: argparse.Namespace, topic: str) -> StreamingQuery:
    """The query of one topic, with a trigger of 1 s."""
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", given.servers)
    source = source.option("subscribe", given.prefix + topic).option("startingOffsets", "earliest")
    rows = source.option("includeHeaders", "true").load()
    writer = rows.writeStream.format("delta").option("checkpointLocation", f"{given.place}/{topic}-checkpoint")
    timed = writer.trigger(availableNow=True) if given.available_now else writer.trigger(processingTime="1 second")
    return timed.start(f"{given.place}/{topic}")


if __name__ == "__main__":
    main()
