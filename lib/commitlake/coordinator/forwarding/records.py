"""Kafka records of committed messages."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.coordinator.coordination.check_requests import present, property_headers
from commitlake.protocol import headers

_TEXTS = {
    headers.REAL_TOPIC: "topic",
    headers.REAL_QID: "queue_id",
    headers.UNIQ_KEY: "message_id",
    headers.TRANSACTION_ID: "transaction_id",
    headers.PGROUP: "producer_group",
    headers.TAGS: "tags",
    headers.KEYS: "keys",
    headers.POSITION: "position",
    headers.BATCH_ID: "batch_id",
}
_TIMES = {headers.BORN_TIMESTAMP: "born_at", headers.STORED_TIMESTAMP: "stored_at"}
_ORDER = ("queue_id", "batch_id", "source_queue", "source_offset", "source_index")


def records(messages: DataFrame, topic: str, target: str, partitions: int) -> DataFrame:
    """Kafka records of rows of a topic table, in the topic's order within each queue.

    Args:
        messages: rows of the topic table.
        topic: the name of that topic.
        target: the Kafka topic.
        partitions: how many the Kafka topic has; a queue is always in the same one.
    """
    place = F.concat_ws("-", "source", "source_queue", "source_offset", "source_index")
    in_order = messages.repartition(partitions, "queue_id").sortWithinPartitions(*_ORDER)
    return in_order.withColumns({"topic": F.lit(topic), "position": place}).select(
        F.lit(target).alias("topic"),
        F.pmod("queue_id", F.lit(partitions)).alias("partition"),
        F.col("sharding_key").alias("key"),
        F.col("body").alias("value"),
        _headers().alias("headers"),
        F.concat(F.lit(f"the message {topic} at "), "position").alias("name"),
    )


def _headers() -> Column:
    texts = {name: F.col(column).cast("string") for name, column in _TEXTS.items()}
    times = {name: F.unix_millis(F.col(column)).cast("string") for name, column in _TIMES.items()}
    return F.concat(property_headers(texts | times), present(texts | times))
