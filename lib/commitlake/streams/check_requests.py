"""Check requests: what a producer gets when its transaction is still open."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_TIMES = {"BORN_TIMESTAMP": "born_at", "STORED_TIMESTAMP": "stored_at"}
_TEXTS = {
    "PGROUP": "producer_group",
    "UNIQ_KEY": "message_id",
    "__transactionId__": "transaction_id",
    "REAL_TOPIC": "topic",
    "REAL_QID": "queue_id",
    "TAGS": "tags",
    "KEYS": "keys",
    "HALF_QUEUE": "queue",
    "HALF_OFFSET": "queue_offset",
    "HALF_MESSAGES": "half_messages",
    "TRANSACTION_CHECK_TIMES": "check_no",
    "CHECK_ID": "check_id",
}


def records(half: DataFrame, checks: DataFrame, parts: DataFrame | None, topic: str) -> DataFrame:
    """Kafka records for rows of `checks`; a row always gives the same record, but for parts that came since.

    Args:
        half: the half messages that are checked, bodies and all; others are ignored.
        checks: rows of `checks`.
        parts: (first_queue, first_offset, queue, queue_offset) of the parts that have landed; None: there are none.
        topic: the Kafka topic.
    """
    asked = checks.select("queue", F.col("half_offset").alias("queue_offset"), "round", "check_no")
    found = half.join(asked, ["queue", "queue_offset"])
    listed = found.withColumn("parts", F.array()) if parts is None else _with_parts(found, parts)
    first = F.struct("queue", F.col("queue_offset").alias("offset"))
    return (
        listed.withColumn("half_messages", F.to_json(F.concat(F.array(first), F.col("parts").cast(_LIST))))
        .withColumn("check_id", F.concat_ws("-", "queue", "queue_offset", "round", "check_no"))
        .select(
            F.lit(topic).alias("topic"),
            F.col("queue").alias("partition"),
            F.col("transaction_id").cast("binary").alias("key"),
            F.col("body").alias("value"),
            _headers().alias("headers"),
        )
    )


_LIST = "array<struct<queue:int,offset:bigint>>"


def _with_parts(found: DataFrame, parts: DataFrame) -> DataFrame:
    """A list in the order of (queue, offset): a repeated check names the same parts in the same order."""
    item = F.struct(F.col("queue"), F.col("queue_offset").alias("offset"))
    lists = (
        parts.withColumn("item", item)
        .groupBy(F.col("first_queue").alias("queue"), F.col("first_offset").alias("queue_offset"))
        .agg(F.sort_array(F.collect_set("item")).alias("parts"))
    )
    joined = found.join(lists, ["queue", "queue_offset"], "left")
    return joined.withColumn("parts", F.coalesce("parts", F.array().cast(_LIST)))


def _headers() -> Column:
    """User properties, then the contract's own headers; what the message does not have is left out."""
    times = {name: F.unix_millis(F.col(column)).cast("string") for name, column in _TIMES.items()}
    texts = {name: F.col(column).cast("string") for name, column in _TEXTS.items()}
    own = [
        F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
        for name, value in (texts | times).items()
    ]
    users = F.transform(
        F.map_entries(F.coalesce("properties", F.create_map().cast("map<string,string>"))),
        lambda entry: F.struct(entry["key"].alias("key"), entry["value"].cast("binary").alias("value")),
    )
    return F.concat(users, F.filter(F.array(*own), lambda header: header["value"].isNotNull()))
