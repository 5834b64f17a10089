"""Rows of the tables that landing writes, from classified records (`classify`)."""

from __future__ import annotations

from pyspark.sql import DataFrame

from commitlake.coordinator.landing import classify
from commitlake.coordinator.landing.message_columns import member_columns

_PLACE = ("partition AS queue", "offset AS queue_offset")
_MESSAGE = (
    *("message_id", "producer_group", "topic", "queue_id", "tags", "keys", "properties"),
    *("key AS sharding_key", "value AS body", "delay_ms", "born_at", "stored_at"),
)
_HALF = ("transaction_id", "first_queue", "first_offset", "check_immunity_s", "deliver_at")
_OP = (
    *("partition AS queue", "offset AS op_offset", "source = 'admin' AS admin"),
    *("op.transaction_id", "op.producer_group", "op.decision", "op.message_id", "op.topic", "op.remark"),
    "IF(op.decision = 'RECALL', op.messages, array_distinct(op.half_messages)) AS half_messages",
    *("coalesce(op.from_check, false) AS from_check", "op.check_id"),
    "stored_at",
)


def half_rows(classified: DataFrame) -> DataFrame:
    """Rows of `half`."""
    return _going_to(classified, classify.HALF).selectExpr(*_PLACE, *_MESSAGE, *_HALF)


def op_rows(classified: DataFrame) -> DataFrame:
    """Rows of `op`; a place that is listed twice counts once."""
    return _going_to(classified, classify.OP).selectExpr(*_OP)


def delayed_rows(classified: DataFrame) -> DataFrame:
    """Rows of `delayed`; a due time in the past is kept, and the message is delivered at once."""
    return _going_to(classified, classify.DELAYED).selectExpr(*_PLACE, *_MESSAGE, "due_at AS deliver_at")


def topic_rows(classified: DataFrame, landing_id: int) -> DataFrame:
    """Rows of topic tables, without `visible_at`: one for a normal message, one for each member of a batch."""
    of_topic = _going_to(classified, classify.TOPIC)
    plain = "array(struct(value AS body, CAST(NULL AS map<string, string>) AS properties))"
    each = of_topic.selectExpr("*", f"posexplode(coalesce(members, {plain})) AS (source_index, member)")
    return each.withColumns(member_columns()).selectExpr(
        *(
            "topic",
            "queue_id",
            "message_id",
            "CAST(NULL AS STRING) AS transaction_id",
            "producer_group",
            "tags",
            "keys",
        ),
        *("properties", "key AS sharding_key", "member.body AS body", "'messages' AS source"),
        *("partition AS source_queue", "offset AS source_offset", "source_index", "born_at", "stored_at"),
        *("CAST(NULL AS TIMESTAMP) AS due_at", "CAST(NULL AS BIGINT) AS batch_id", f"{landing_id}L AS landing_id"),
    )


def rejected_rows(classified: DataFrame, now_ms: int) -> DataFrame:
    """Rows of `rejected`, with the original bytes."""
    return _going_to(classified, classify.REJECTED).selectExpr(
        *("source", "partition AS kafka_partition", "offset AS kafka_offset", "reason", "detail"),
        *("key", "value", "headers", f"timestamp_millis({now_ms}L) AS rejected_at"),
    )


def _going_to(classified: DataFrame, target: str) -> DataFrame:
    return classified.where(f"target = '{target}'")
