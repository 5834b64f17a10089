"""Rows of topic tables, and the one way in which a batch's ledger rows become visible."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.protocol.states import Delivery, Event, Source, State
from commitlake.spark.parallel import run_all
from commitlake.tables import Warehouse, topic_table

SHOWN = (
    f"(event = {int(Event.DELIVERY)} AND e.state = {int(Delivery.DELIVERED)}) OR "
    f"(event = {int(Event.DECIDED)} AND e.state = {int(State.COMMITTED)} AND e.deliver_at < 0)"
)
"""Of messages with their events: those that become visible now."""


def topic_rows(messages: DataFrame, src: Source, batch_id: int, now: int) -> DataFrame:
    """Messages as rows of their topic tables, with `topic`. Bodies go from Parquet to Parquet in the JVM.

    Args:
        messages: the messages that become visible, rows of `half` or `delayed`.
        src: which of the two.
        batch_id: the batch that shows them.
        now: its time, ms since epoch, UTC; no row is visible before it was stored.
    """
    return messages.selectExpr(
        *("topic", "queue_id", "message_id"),
        "transaction_id" if src is Source.HALF else "CAST(NULL AS STRING) AS transaction_id",
        *("producer_group", "tags", "keys", "properties", "sharding_key", "body"),
        f"'{src.name.lower()}' AS source",
        *("queue AS source_queue", "queue_offset AS source_offset", "0 AS source_index", "born_at", "stored_at"),
        f"greatest(timestamp_millis({now}L), stored_at) AS visible_at",
        f"{batch_id}L AS batch_id",
    )


def publish(warehouse: Warehouse, rows: DataFrame, topics: Sequence[str], marker: dict[str, int]) -> None:
    """Appends rows to their topic tables, several at once; each table gets one commit.

    Args:
        warehouse: the tables.
        rows: rows with `topic`; cached, or read again for each topic.
        topics: the topics that they are of.
        marker: for the commits.
    """

    def write(topic: str) -> None:
        warehouse.ensure_topic(topic)
        own = rows if len(topics) == 1 else rows.where(F.col("topic") == topic)
        warehouse.append(own, topic_table(topic), marker)

    run_all(warehouse.spark, [partial(write, topic) for topic in topics])
