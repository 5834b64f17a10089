"""The first act of every start: finish the batch that a kill cut short, from its ledger rows alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.coordination import check_requests, topic_rows
from commitlake.coordination.commit import send_checks
from commitlake.protocol.states import Source
from commitlake.tables import Warehouse
from commitlake.tables.columns import coordinate

_MARKED = ("transactions", "deliveries", "discarded", "checks", "reentries", "batches")
_SHOWN = ["source", "source_queue", "source_offset"]


def finish_last_batch(warehouse: Warehouse) -> int:
    """Completes the newest batch; returns its batch_id, -1 when there was none yet.

    A batch is whole when it stands in `batches`. If not, its ledger rows are final all the same: what they make
    visible, or discard, is written now where it is missing. Refusals and checks need no finishing: what was not told
    is still open.
    """
    with ThreadPoolExecutor(len(_MARKED)) as pool:
        newest = dict(zip(_MARKED, pool.map(warehouse.newest_batch, _MARKED), strict=True))
    last = max(newest.values())
    if newest["batches"] == last:
        return last
    ended = warehouse.read("transactions").where(F.col("batch_id") == last)
    delivered = warehouse.read("deliveries").where(F.col("batch_id") == last)
    _finish_topics(warehouse, ended, delivered, last)
    _finish_discarded(warehouse, ended, last)
    done = warehouse.spark.sql(f"SELECT CAST({last} AS BIGINT) AS batch_id, current_timestamp() AS completed_at")
    warehouse.append(done, "batches", {"batch_id": last})
    return last


def _finish_topics(warehouse: Warehouse, ended: DataFrame, delivered: DataFrame, batch_id: int) -> None:
    committed = ended.where("state = 'COMMITTED' AND deliver_at IS NULL").select("topic")
    topics = [
        row["topic"]
        for row in committed.union(delivered.where("state = 'DELIVERED'").select("topic")).distinct().collect()
    ]
    if not topics:
        return
    ends = ended.select("resolved_at").union(delivered.select("resolved_at"))
    at = F.lit(ends.agg(F.min("resolved_at")).collect()[0][0])  # the batch's time, as no row ends before it was stored
    frames = []
    for source, table in ((Source.HALF, "half"), (Source.MESSAGES, "delayed")):
        shown = topic_rows.shown_by_ledger(ended, delivered, source)
        frames.append(topic_rows.topic_rows(warehouse.read(table), shown, source, batch_id, at))
    for topic in topics:
        warehouse.ensure_topic(topic)
    warehouse.guard.claim(topics)
    there = [
        warehouse.read_topic(topic).where(F.col("batch_id") == batch_id).select(F.lit(topic).alias("topic"), *_SHOWN)
        for topic in topics
    ]
    missing = reduce(DataFrame.union, frames).join(reduce(DataFrame.union, there), ["topic", *_SHOWN], "left_anti")
    topic_rows.publish(warehouse, missing, topics, {"batch_id": batch_id})


def _finish_discarded(warehouse: Warehouse, ended: DataFrame, batch_id: int) -> None:
    told = ended.where("state = 'DISCARDED'").select(
        coordinate("queue", "half_offset").alias("at"),
        *("reason", "checks", "round"),
        F.col("resolved_at").alias("discarded_at"),
        "batch_id",
    )
    there = (
        warehouse.read("discarded")
        .where(F.col("batch_id") == batch_id)
        .select(coordinate("queue", "queue_offset").alias("at"))
    )
    missing = told.join(there, "at", "left_anti")
    if missing.isEmpty():
        return
    half = warehouse.read("half").withColumn("at", coordinate("queue", "queue_offset"))
    warehouse.append(half.join(F.broadcast(missing), "at"), "discarded", {"batch_id": batch_id})


def resend_checks(warehouse: Warehouse, config: Config) -> None:
    """Sends the newest checks again: a kill before Kafka would leave a producer unasked for an interval."""
    checks = warehouse.read("checks")
    last = warehouse.newest_batch("checks")
    ended = warehouse.read("transactions").select("queue", "half_offset", "round")
    asked = (
        checks.where(F.col("batch_id") == last).join(ended, ["queue", "half_offset", "round"], "left_anti").persist()
    )
    if last < 0 or asked.isEmpty():
        return
    half = warehouse.read("half")
    whole = ["first_queue", "first_offset", "transaction_id", "producer_group"]  # another id or group: an ORPHAN
    firsts = asked.withColumnsRenamed({"queue": "first_queue", "half_offset": "first_offset"}).select(*whole)
    parts = half.join(F.broadcast(firsts), whole).where("queue != first_queue OR queue_offset != first_offset")
    parts = parts.select("first_queue", "first_offset", "queue", "queue_offset")
    send_checks(config, check_requests.records(half, F.broadcast(asked), parts, config.kafka.topic("check")))
    asked.unpersist()
