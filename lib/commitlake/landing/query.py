"""The streaming query that reads Kafka; what it calls with a batch lands it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import Config
from commitlake.kafka.clients import spark_options, spark_source_limits
from commitlake.landing import start as start_of_landing
from commitlake.landing.land import MAX_RECORDS
from commitlake.landing.landed_time import DECIDING
from commitlake.landing.positions import Offsets, Position


def start(
    spark: SparkSession,
    config: Config,
    offsets: Offsets,
    land: Callable[[DataFrame, int], None],
    checkpoint: str,
    *,
    available_now: bool,
) -> StreamingQuery:
    """Starts the query. Its checkpoint is a new one at every start: where to go on stands in the tables.

    Args:
        spark: the coordinator's session.
        config: says where Kafka is, and how often to look.
        offsets: the next offset to land of each partition, by source.
        land: called with each batch of Kafka records and its number.
        checkpoint: a directory for this run.
        available_now: land what is there and end, instead of a batch every `trigger_interval`.
    """
    begins = {config.kafka.topic(source): numbers for source, numbers in offsets.items()}
    raw = (
        spark.readStream.format("kafka")
        .options(**spark_options(config.kafka), **spark_source_limits(config))
        .option("subscribe", ",".join(begins))
        .option("startingOffsets", json.dumps(begins))
        .option("maxOffsetsPerTrigger", MAX_RECORDS)
        .options(includeHeaders="true", failOnDataLoss="true")
        .load()
    )
    writer = raw.writeStream.queryName("landing").foreachBatch(land).option("checkpointLocation", checkpoint)
    interval = f"{config.trigger_interval_ms} milliseconds"
    return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=interval)).start()


def is_landed(query: StreamingQuery, config: Config, position: Position) -> bool:
    """Whether Kafka holds no half message and no op that has not landed.

    Args:
        query: landing's query. Kafka's own transaction markers take offsets too, but only its progress counts them.
        config: says where Kafka is.
        position: how far landing has come.

    Raises:
        KafkaError: Kafka is out of reach.
    """
    progress: Any = query.lastProgress
    consumed = (json.loads(progress.json)["sources"][0]["endOffset"] if progress else None) or {}
    for source, ends in start_of_landing.ends(config, DECIDING).items():
        read = consumed.get(config.kafka.topic(source), {})
        if any(end > max(position.next(source, number), read.get(str(number), 0)) for number, end in ends.items()):
            return False
    return True
