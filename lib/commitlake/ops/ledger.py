"""Questions to the ledger that people on call ask. Each is a query over the tables, and needs no running coordinator.

`pending` and `summary` hold as of the newest completed batch, so a batch that is just being written changes nothing.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from commitlake.protocol import wire
from commitlake.streams.lookup import newest, reopened
from commitlake.tables import Warehouse

_PLACE = ["queue", "queue_offset"]

_HISTORY = """
SELECT at, event, queue, offset, detail FROM (
SELECT 1 AS step, stored_at AS at, 'half message' AS event, queue, queue_offset AS offset, CONCAT_WS(', ',
       CONCAT('topic ', topic), CONCAT('group ', producer_group), CONCAT('message ', message_id),
       IF(queue = first_queue AND queue_offset = first_offset, NULL, CONCAT('part of ', first_queue, '-', first_offset))
       ) AS detail FROM {half}
UNION ALL
SELECT 2, stored_at, CONCAT(decision, ' op'), queue, op_offset, CONCAT_WS(', ',
       IF(admin, 'by an administrator', NULL), IF(from_check, 'answers a check', NULL), remark) FROM {op}
UNION ALL
SELECT 3, requested_at, CONCAT('check ', check_no), queue, half_offset, IF(round > 0, CONCAT('round ', round), '')
       FROM {checks}
UNION ALL
SELECT 4, resolved_at, state, queue, half_offset, CONCAT_WS(', ', CONCAT('reason ', reason),
       CONCAT('op ', op_queue, '-', op_offset), CONCAT('due ', deliver_at)) FROM {ended}
UNION ALL
SELECT 5, resolved_at, state, queue, queue_offset, CONCAT('was due ', deliver_at) FROM {delivered}
UNION ALL
SELECT 6, rejected_at, CONCAT('rejected: ', reason), kafka_partition, kafka_offset, CONCAT('in ', source, ': ', detail)
       FROM {rejected}
) ORDER BY at, step, queue, offset
"""

_SUMMARY = """
SELECT topic, half, committed, rolled_back, discarded, pending, delayed, delivered, recalled, waiting, visible,
       half = committed + rolled_back + discarded + pending
       AND delayed + committed_later = delivered + recalled + waiting
       AND visible = committed - committed_later + delivered AND visible = places AS holds
FROM {counts} ORDER BY topic
"""


def transaction(spark: SparkSession, warehouse: str, transaction_id: str) -> DataFrame:
    """All that is known of a transaction in time order: at, event, queue and offset of what it is about, detail."""
    tables = Warehouse(spark, warehouse)
    mine = F.col("transaction_id") == transaction_id
    half = tables.read("half").where(mine)
    header = F.coalesce(F.col("headers")[wire.TRANSACTION_ID], F.col("headers")[wire.UNIQ_KEY])
    about = F.when(F.col("source") == "half", header).otherwise(F.col("key")).cast("string")
    return spark.sql(
        _HISTORY,
        half=half,
        op=tables.read("op").where(mine),
        checks=tables.read("checks").where(mine),
        ended=tables.read("transactions").where(mine),
        delivered=tables.read("deliveries").where("source = 'half'").join(half.select(_PLACE), _PLACE, "left_semi"),
        rejected=tables.read("rejected").where((F.col("source") != "messages") & (about == transaction_id)),
    )


def pending(spark: SparkSession, warehouse: str) -> DataFrame:
    """First half messages without an end, the oldest first, with the checks of their round."""
    tables = Warehouse(spark, warehouse)
    checks = tables.read("checks").groupBy("queue", F.col("half_offset").alias("queue_offset"), "round")
    sent = checks.agg(F.max("check_no").alias("sent"), F.max("requested_at").alias("last_check_at"))
    return (
        states(tables, _last_batch(tables))
        .where("state = 'PENDING' AND queue = first_queue AND queue_offset = first_offset")
        .join(sent, [*_PLACE, "round"], "left")
        .select(
            *("stored_at", "topic", "producer_group", "transaction_id", *_PLACE, "round"),
            F.coalesce("sent", F.lit(0)).alias("checks"),
            "last_check_at",
        )
        .orderBy("stored_at", *_PLACE)
    )


def summary(spark: SparkSession, warehouse: str) -> DataFrame:
    """Counts for each topic, and in `holds` whether they agree.

    They do when every half message is committed, rolled back, discarded or pending; every delayed message, also a
    committed half message with a delay, was delivered or recalled, or waits; and what was committed or delivered is
    visible exactly once. Normal and batch messages, which pass no ledger, are not counted.
    """
    tables = Warehouse(spark, warehouse)
    last = _last_batch(tables)
    ended = _until(tables.read("deliveries"), last).select(
        "source", *_PLACE, F.col("state").alias("delivery"), F.lit(1).alias("known")
    )
    counts = [
        _count_half(states(tables, last), ended.where("source = 'half'")),
        _count_delayed(tables.read("delayed"), ended.where("source = 'messages'")),
        *[_count_visible(_until(tables.read_topic(topic), last), topic) for topic in sorted(tables.topics())],
    ]
    every = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), counts)
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in every.columns if name != "topic"]
    return spark.sql(_SUMMARY, counts=every.groupBy("topic").agg(*sums))


def states(tables: Warehouse, last_batch: int) -> DataFrame:
    """Every half message with its newest `state`, PENDING when it has none or was reopened since; its `round`."""
    half = tables.read("half").drop("body", "sharding_key", "properties")
    end = F.struct("state", "reason", "deliver_at", F.col("round").alias("last_round")).alias("end")
    ends = newest(_until(tables.read("transactions"), last_batch)).select(
        "queue", F.col("half_offset").alias("queue_offset"), end
    )
    again = reopened(tables.read("reentries")).drop("open_since")
    found = half.join(ends, _PLACE, "left").join(again, ["first_queue", "first_offset"], "left")
    is_reopened = (F.col("open_round") > F.col("end.last_round")) & (F.col("end.reason") != "ORPHAN")
    is_open = F.col("end").isNull() | F.coalesce(is_reopened, F.lit(False))
    return found.select(
        *half.columns,
        F.when(is_open, "PENDING").otherwise(F.col("end.state")).alias("state"),
        (~is_open & F.col("end.deliver_at").isNotNull()).alias("is_delayed"),
        F.coalesce("open_round", F.lit(0)).alias("round"),
    )


def _count_half(half: DataFrame, ended: DataFrame) -> DataFrame:
    later = "state = 'COMMITTED' AND is_delayed"
    return _count(
        half.join(ended, _PLACE, "left"),
        half="true",
        committed="state = 'COMMITTED'",
        rolled_back="state = 'ROLLED_BACK'",
        discarded="state = 'DISCARDED'",
        pending="state = 'PENDING'",
        committed_later=later,
        delivered="delivery = 'DELIVERED'",
        waiting=f"{later} AND known IS NULL",
    )


def _count_delayed(delayed: DataFrame, ended: DataFrame) -> DataFrame:
    return _count(
        delayed.join(ended, _PLACE, "left"),
        delayed="true",
        delivered="delivery = 'DELIVERED'",
        recalled="delivery = 'RECALLED'",
        waiting="known IS NULL",
    )


def _count_visible(rows: DataFrame, topic: str) -> DataFrame:
    places = F.count_distinct("source", "source_queue", "source_offset").alias("places")
    return rows.agg(F.lit(topic).alias("topic"), F.count("*").alias("visible"), places)


def _count(rows: DataFrame, **conditions: str) -> DataFrame:
    return rows.groupBy("topic").agg(*[F.expr(f"count_if({text})").alias(name) for name, text in conditions.items()])


def _until(rows: DataFrame, last_batch: int) -> DataFrame:
    """Rows of completed batches; of a topic table only those that passed the ledger have a batch."""
    return rows.where(F.col("batch_id") <= last_batch)


def _last_batch(tables: Warehouse) -> int:
    newest_batch = tables.read("batches").agg(F.max("batch_id")).collect()[0][0]
    return -1 if newest_batch is None else int(newest_batch)
