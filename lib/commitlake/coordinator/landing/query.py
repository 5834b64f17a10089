"""Spark's reads of Kafka: the streaming query, whose callback lands each batch, and ranges of offsets beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import Config
from commitlake.errors import WarehouseError
from commitlake.kafka.clients import spark_options, spark_source_limits
from commitlake.kafka.log_ends import Offsets
from commitlake.spark.files import FileSystem

MAX_RECORDS = 400_000
"""Records in one batch at most: some 4 s of work on 2 cores, so that a backlog lands in steps."""
_LOOK_MS = 100
"""A single record waits no longer. `Run` lets `trigger_interval` pass from the begin of one batch to the next."""


def start(
    spark: SparkSession,
    config: Config,
    offsets: Offsets,
    land: Callable[[DataFrame, int], None],
    checkpoint: str,
    *,
    available_now: bool,
) -> StreamingQuery:
    """Starts the query. Its checkpoint is a new one at every start: the position to go on from stands in the tables.

    With `available_now` it lands all records that are there and ends, instead of polling for more.
    """
    begins = _by_topic(config, offsets)
    raw = (
        spark.readStream.format("kafka")
        .options(**source_options(config))
        .option("subscribe", ",".join(begins))
        .option("startingOffsets", json.dumps(begins))
        .option("maxOffsetsPerTrigger", MAX_RECORDS)
        .load()
    )
    writer = raw.writeStream.queryName("landing").foreachBatch(land).option("checkpointLocation", checkpoint)
    interval = f"{min(_LOOK_MS, config.trigger_interval_ms)} milliseconds"
    return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=interval)).start()


def source_options(config: Config) -> dict[str, str]:
    """Options of Spark's Kafka source for records with their headers, secrets resolved."""
    own = {"includeHeaders": "true", "failOnDataLoss": "true"}
    return spark_options(config.kafka) | spark_source_limits(config) | own


def read(spark: SparkSession, config: Config, begin: Offsets, ends: Offsets, options: Mapping[str, str]) -> DataFrame:
    """The records of the partitions of `ends`, from `begin`, or 0 where that lacks one, up to `ends`."""
    begins = _by_topic(config, {place: begin.get(place, 0) for place in ends})
    source = spark.read.format("kafka").options(**options)
    source = source.option("assign", json.dumps({topic: sorted(numbers) for topic, numbers in begins.items()}))
    source = source.option("startingOffsets", json.dumps(begins))
    return source.option("endingOffsets", json.dumps(_by_topic(config, ends))).load()


def _by_topic(config: Config, offsets: Offsets) -> dict[str, dict[int, int]]:
    """Offsets as the JSON of Spark's Kafka source has them."""
    found: dict[str, dict[int, int]] = {}
    for (source, number), offset in offsets.items():
        found.setdefault(config.kafka.topic(source), {})[number] = offset
    return found


def ends_of(spark: SparkSession, config: Config, checkpoint: str, batch_id: int) -> Offsets:
    """Where a batch of the query ends: the next offset of each partition.

    Spark writes the ends to its offset log before it hands the batch out, a line for each stream that the query reads.
    The records of the batch do not show them: Kafka's own transaction markers take offsets too.

    Raises:
        WarehouseError: the log has no such batch.
    """
    name = f"offsets/{batch_id}"
    text = FileSystem(spark, checkpoint).read(name)
    if text is None:
        msg = f"checkpoints: {checkpoint}/{name} is missing; do not delete files there while the coordinator runs"
        raise WarehouseError(msg)
    by_topic: dict[str, dict[str, int]] = json.loads(text.splitlines()[-1])
    return {
        (config.kafka.source(topic), int(number)): end
        for topic, ends in by_topic.items()
        for number, end in ends.items()
    }
