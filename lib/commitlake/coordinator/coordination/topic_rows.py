"""Rows of topic tables: the messages that a batch makes visible."""

from __future__ import annotations

from pyspark.sql import DataFrame

from commitlake.protocol.states import Delivery, Event, Source, State

SHOWN = (
    f"(event = {int(Event.DELIVERY)} AND e.state = {int(Delivery.DELIVERED)}) OR "
    f"(event = {int(Event.DECIDED)} AND e.state = {int(State.COMMITTED)} AND e.deliver_at < 0)"
)
"""SQL on messages with their events: whether a message becomes visible now."""


def topic_rows(messages: DataFrame, src: Source, batch_id: int) -> DataFrame:
    """Messages as rows of topic tables, without `visible_at`. No body becomes an object of Python.

    Args:
        messages: the messages that become visible, rows of `half` or `delayed`.
        src: which of the two tables.
        batch_id: the batch that shows them.
    """
    return messages.selectExpr(
        *("topic", "queue_id", "message_id"),
        "transaction_id" if src is Source.HALF else "CAST(NULL AS STRING) AS transaction_id",
        *("producer_group", "tags", "keys", "properties", "sharding_key", "body"),
        f"'{src.name.lower()}' AS source",
        *("queue AS source_queue", "queue_offset AS source_offset", "0 AS source_index", "born_at", "stored_at"),
        f"{batch_id}L AS batch_id",
    )
