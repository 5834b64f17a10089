"""Fills the Kafka topics with transactions, by Spark: kafka-python would be the slowest part of every measurement.

One Spark partition writes one Kafka partition, in order, so the offset of a half message is its place in that order.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.kafka.clients import spark_options

BODY_BYTES = 256
COMMITTED, ROLLED_BACK = 80, 10  # of 100; the rest stays open


def transactions(spark: SparkSession, config: Config, count: int, begin: int = 0) -> DataFrame:
    """`count` transactions, dealt to the queues in turn: (id, queue, half_offset); `begin` have been sent before."""
    queues = config.kafka.queues
    return spark.range(begin, begin + count).select(
        F.format_string("T%012d", "id").alias("transaction_id"),
        (F.col("id") % queues).cast("int").alias("queue"),
        F.expr(f"id div {queues}").alias("half_offset"),
        (F.col("id") * 7919 % 100).alias("lot"),
        "id",
    )


def send_half_messages(found: DataFrame, config: Config, topic: str = "orders") -> None:
    """Sends the half messages of `found`."""
    headers = {
        "REAL_TOPIC": F.lit(topic),
        "UNIQ_KEY": F.col("transaction_id"),
        "PGROUP": F.lit("bench"),
        "TAGS": F.lit("A"),
    }
    body = F.rpad(F.concat(F.lit("body of "), "transaction_id"), BODY_BYTES, ".")
    _send(found, config, "half", F.lit(None), body, headers)


def send_ops(found: DataFrame, config: Config) -> None:
    """Sends COMMIT or ROLLBACK for those of `found` that do not stay open."""
    ended = found.where(F.col("lot") < COMMITTED + ROLLED_BACK)
    decision = F.when(F.col("lot") < COMMITTED, "COMMIT").otherwise("ROLLBACK")
    listed = F.array(F.struct("queue", F.col("half_offset").alias("offset")))
    value = F.to_json(
        F.struct(
            "transaction_id",
            F.lit("bench").alias("producer_group"),
            decision.alias("decision"),
            listed.alias("half_messages"),
        )
    )
    _send(ended, config, "op", F.col("transaction_id"), value, {})


def send_delayed(found: DataFrame, config: Config, due_ms: Column, topic: str = "orders") -> None:
    """Sends a delayed message for each of `found`, due at `due_ms` (ms since epoch, UTC)."""
    headers = {
        "REAL_TOPIC": F.lit(topic),
        "UNIQ_KEY": F.col("transaction_id"),
        "TIMER_DELIVER_MS": due_ms.cast("string"),
    }
    body = F.rpad(F.concat(F.lit("body of "), "transaction_id"), BODY_BYTES, ".")
    _send(found, config, "messages", F.lit(None), body, headers)


def _send(found: DataFrame, config: Config, name: str, key: Column, value: Column, headers: dict[str, Column]) -> None:
    array = F.array(*[F.struct(F.lit(k).alias("key"), v.cast("binary").alias("value")) for k, v in headers.items()])
    rows = (
        found.repartitionByRange(config.kafka.queues, "queue")
        .sortWithinPartitions("queue", "half_offset")
        .select(
            F.lit(config.kafka.topic(name)).alias("topic"),
            F.col("queue").alias("partition"),
            key.cast("binary").alias("key"),
            value.cast("binary").alias("value"),
            *([array.alias("headers")] if headers else []),
        )
    )
    options = spark_options(config.kafka) | {"kafka.acks": "all", "kafka.linger.ms": "5", "kafka.batch.size": "262144"}
    rows.write.format("kafka").options(**options).option("includeHeaders", "true").save()


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
