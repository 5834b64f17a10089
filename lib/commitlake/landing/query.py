"""The streaming query that reads Kafka; what it calls with a batch lands it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import Config
from commitlake.kafka.clients import spark_options, spark_source_limits
from commitlake.landing.land import MAX_RECORDS
from commitlake.landing.positions import Offsets


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


def consumed(query: StreamingQuery) -> Mapping[str, Mapping[str, int]]:
    """The offsets up to which the query has read, by full topic name and partition, as its progress reports them.

    Kafka's own transaction markers take offsets too, but are no records: no row tells of them.
    """
    progress: Any = query.lastProgress
    ends: Mapping[str, Mapping[str, int]] = (
        json.loads(progress.json)["sources"][0]["endOffset"] or {} if progress else {}
    )
    return ends
