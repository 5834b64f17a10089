"""Rows of the tables that landing writes, from judged records (`judge`)."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.landing import judge
from commitlake.landing.parse import at_most, timestamp, whole
from commitlake.protocol import headers

_DROPPED = sorted(headers.PROTOCOL_HEADERS)
_MAX_INT = 2**31 - 1


def half_rows(judged: DataFrame) -> DataFrame:
    """Rows of `half`."""
    place = F.struct(F.col("partition").alias("queue"), F.col("offset"))
    first = F.coalesce(F.col("first"), place)
    immunity = at_most(whole(_header(headers.CHECK_IMMUNITY), 18), _MAX_INT)
    return _with_message(_going_to(judged, judge.HALF)).withColumns(
        {
            "transaction_id": F.coalesce(_header(headers.TRANSACTION_ID), F.col("message_id")),
            "first_queue": first["queue"],
            "first_offset": first["offset"],
            "check_immunity_s": immunity,
            "deliver_at": timestamp(F.col("deliver_ms")),
        }
    )


def op_rows(judged: DataFrame) -> DataFrame:
    """Rows of `op`; a place that is listed twice counts once."""
    op = F.col("op")
    listed = F.when(op["decision"] == "RECALL", op["messages"]).otherwise(F.array_distinct(op["half_messages"]))
    return _going_to(judged, judge.OP).select(
        F.col("partition").alias("queue"),
        F.col("offset").alias("op_offset"),
        (F.col("source") == "admin").alias("admin"),
        *[op[name].alias(name) for name in ("transaction_id", "producer_group", "decision", "message_id", "topic")],
        listed.alias("half_messages"),
        F.coalesce(op["from_check"], F.lit(False)).alias("from_check"),
        op["remark"].alias("remark"),
        "stored_at",
    )


def delayed_rows(judged: DataFrame) -> DataFrame:
    """Rows of `delayed`; a due time in the past stays as it is and is delivered at once."""
    due = F.coalesce(F.col("deliver_ms"), F.unix_millis("stored_at") + F.col("delay_ms"))
    return _with_message(_going_to(judged, judge.DELAYED)).withColumn("deliver_at", timestamp(due))


def topic_rows(judged: DataFrame, topic: str, now_ms: int) -> DataFrame:
    """Rows of a topic's table: one for a normal message, one for each member of a batch.

    Args:
        judged: Judged records.
        topic: The topic.
        now_ms: Time of the landing batch, ms since epoch.
    """
    of_topic = _going_to(judged, judge.TOPIC).where(F.col("topic") == topic)
    plain = F.array(F.struct(F.col("value").alias("body"), F.lit(None).cast("map<string,string>").alias("properties")))
    each = _with_message(of_topic).select(
        "*", F.posexplode(F.coalesce("members", plain)).alias("source_index", "member")
    )
    return each.withColumns(
        {
            **_member_columns(),
            "body": F.col("member")["body"],
            "transaction_id": F.lit(None),
            "source": F.lit("messages"),
            "source_queue": F.col("partition"),
            "source_offset": F.col("offset"),
            "visible_at": F.greatest(F.timestamp_millis(F.lit(now_ms)), F.col("stored_at")),
            "batch_id": F.lit(None),
        }
    )


def rejected_rows(judged: DataFrame, now_ms: int) -> DataFrame:
    """Rows of `rejected`, with the original bytes."""
    return _going_to(judged, judge.REJECTED).withColumns(
        {
            "kafka_partition": F.col("partition"),
            "kafka_offset": F.col("offset"),
            "rejected_at": F.timestamp_millis(F.lit(now_ms)),
        }
    )


def _going_to(judged: DataFrame, target: str) -> DataFrame:
    return judged.where(F.col("target") == target)


def _with_message(judged: DataFrame) -> DataFrame:
    """Add the columns that `half`, `delayed` and topic tables share."""
    user = F.map_filter("headers", lambda name, _: ~name.isin(*_DROPPED))
    return judged.withColumns(
        {
            "queue": F.col("partition"),
            "queue_offset": F.col("offset"),
            "message_id": _header(headers.UNIQ_KEY),
            "producer_group": _header(headers.PGROUP),
            "queue_id": F.coalesce("queue_id", "partition"),
            "tags": _header(headers.TAGS),
            "keys": _header(headers.KEYS),
            "properties": F.transform_values(user, lambda _, value: F.make_valid_utf8(value.cast("string"))),
            "sharding_key": F.col("key"),
            "body": F.col("value"),
            "born_at": timestamp(whole(_header(headers.BORN_TIMESTAMP), 18)),
        }
    )


def _member_columns() -> dict[str, Column]:
    """What a member of a batch says itself; of the record's headers only topic, queue and group hold for it."""
    own = F.col("member")["properties"]
    is_member = own.isNotNull()

    def of(name: str, column: str) -> Column:
        return F.when(is_member, F.nullif(own[name], F.lit(""))).otherwise(F.col(column))

    born = timestamp(whole(own[headers.BORN_TIMESTAMP], 18))
    return {
        "message_id": of(headers.UNIQ_KEY, "message_id"),
        "tags": of(headers.TAGS, "tags"),
        "keys": of(headers.KEYS, "keys"),
        "producer_group": F.coalesce(own[headers.PGROUP], "producer_group"),
        "born_at": F.coalesce(born, "born_at"),
        "properties": F.when(is_member, F.map_filter(own, lambda name, _: ~name.isin(*_DROPPED))).otherwise(
            F.col("properties")
        ),
    }


def _header(name: str) -> Column:
    return F.col(f"h_{name}")
