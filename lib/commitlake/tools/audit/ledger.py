"""Reports from the ledger for people on call. Each is a query over the tables, and needs no running coordinator.

`pending` and `summary` hold as of the newest completed batch, so a batch that is just being written changes nothing.
`warehouse` is a directory, a URI, or `schema:<catalog>.<schema>`.
"""

from __future__ import annotations

from dataclasses import astuple, fields

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from commitlake.coordinator.coordination.unmatched.lookup import newest, reopened
from commitlake.protocol import headers
from commitlake.tables import Warehouse
from commitlake.tools.audit import audit
from commitlake.tools.audit.audit import TopicCounts
from commitlake.tools.audit.audit_rules import until

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
SELECT 3, requested_at, CONCAT('check ', check_no), queue, half_offset, CONCAT_WS(', ',
       IF(repeat > 0, 'sent again', NULL), IF(round > 0, CONCAT('round ', round), NULL)) FROM {checks}
UNION ALL
SELECT 4, resolved_at, state, queue, half_offset, CONCAT_WS(', ', CONCAT('reason ', reason),
       CONCAT('op ', op_queue, '-', op_offset), CONCAT('due ', deliver_at),
       CONCAT('not shown, duplicate of ', duplicate_of)) FROM {ended}
UNION ALL
SELECT 5, resolved_at, state, queue, queue_offset, CONCAT_WS(', ', CONCAT('was due ', deliver_at),
       CONCAT('duplicate of ', duplicate_of)) FROM {delivered}
UNION ALL
SELECT 6, rejected_at, CONCAT('rejected: ', reason), kafka_partition, kafka_offset, CONCAT('in ', source, ': ', detail)
       FROM {rejected}
) ORDER BY at, step, queue, offset
"""


def transaction(spark: SparkSession, warehouse: str, transaction_id: str) -> DataFrame:
    """Return the history of a transaction in time order: at, event, queue and offset of the record, detail.

    Its id is that of a half message, or of an op that was rejected.
    """
    tables = Warehouse(spark, warehouse)
    mine = F.col("transaction_id") == transaction_id
    half = tables.read("half").where(mine)
    header = F.coalesce(F.col("headers")[headers.TRANSACTION_ID], F.col("headers")[headers.UNIQ_KEY])
    named = F.when(F.col("source") == "half", header).otherwise(F.col("key")).cast("string")
    return spark.sql(
        _HISTORY,
        half=half,
        op=tables.read("op").where(mine),
        checks=tables.read("checks").where(mine),
        ended=tables.read("transactions").where(mine),
        delivered=tables.read("deliveries").where("source = 'half'").join(half.select(_PLACE), _PLACE, "left_semi"),
        rejected=tables.read("rejected").where((F.col("source") != "messages") & (named == transaction_id)),
    )


def pending(spark: SparkSession, warehouse: str) -> DataFrame:
    """Return the first half messages without an end, the oldest first, with the checks of their round."""
    tables = Warehouse(spark, warehouse)
    checks = tables.read("checks").groupBy("queue", F.col("half_offset").alias("queue_offset"), "round")
    sent = checks.agg(F.max("check_no").alias("sent"), F.max("requested_at").alias("last_check_at"))
    half = tables.read("half").where("queue = first_queue AND queue_offset = first_offset")
    ends = newest(until(tables.read("transactions"), tables.newest_batch())).select(
        "queue", F.col("half_offset").alias("queue_offset"), F.col("round").alias("last_round")
    )
    again = reopened(tables.read("reentries")).drop("open_since")
    found = half.join(ends, _PLACE, "left").join(again, ["first_queue", "first_offset"], "left")
    return (
        found.where("last_round IS NULL OR open_round > last_round")
        .withColumn("round", F.coalesce("open_round", F.lit(0)))
        .join(sent, [*_PLACE, "round"], "left")
        .select(
            *("stored_at", "topic", "producer_group", "transaction_id", *_PLACE, "round"),
            F.coalesce("sent", F.lit(0)).alias("checks"),
            "last_check_at",
        )
        .orderBy("stored_at", *_PLACE)
    )


def summary(spark: SparkSession, warehouse: str) -> DataFrame:
    """Return the counts of each topic, and in `holds` whether they agree, as an audit counts them (`TopicCounts`)."""
    numbers = ", ".join(f"{field.name} bigint" for field in fields(TopicCounts)[1:-1])
    counted = [astuple(counts) for counts in audit.counts(Warehouse(spark, warehouse))]
    return spark.createDataFrame(counted, f"topic string, {numbers}, holds boolean")
