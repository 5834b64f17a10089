"""Ledger rows of a batch: what its events say, with the names that only the message tables hold."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.coordination.events import Events
from commitlake.protocol.states import Delivery, Event, Reason, Source, State
from commitlake.spark.frames import sized
from commitlake.tables.columns import coordinate, moment, named, or_null
from commitlake.tables.spans import within


def messages_at(table: DataFrame, events: Events, event: Event, src: Source = Source.HALF) -> DataFrame:
    """The messages of `event`s, whole, each with its event's columns as `e.*`."""
    told = F.struct("state", "reason", "op_queue", "op_offset", "checks", "round", "deliver_at", "now").alias("e")
    found = events.of(event, src).select(coordinate("queue", "offset").alias("at"), told)
    near = table.where(within(events.spans(event, src), "queue", "queue_offset"))
    return near.withColumn("at", coordinate("queue", "queue_offset")).join(
        sized(found, events.count_of(event, src)), "at"
    )


def transactions(half: DataFrame, events: Events, batch_id: int) -> DataFrame:
    """Rows of `transactions`: one for each half message that reached its end."""
    return messages_at(half, events, Event.DECIDED).select(
        "queue",
        F.col("queue_offset").alias("half_offset"),
        *("transaction_id", "message_id", "producer_group", "topic"),
        named(State, "e.state").alias("state"),
        named(Reason, "e.reason").alias("reason"),
        or_null("e.op_queue").alias("op_queue"),
        or_null("e.op_offset").alias("op_offset"),
        *("e.checks", "e.round"),
        moment("e.deliver_at").alias("deliver_at"),
        "stored_at",
        _not_before_stored().alias("resolved_at"),
        F.lit(batch_id).alias("batch_id"),
    )


def deliveries(messages: DataFrame, events: Events, src: Source, batch_id: int) -> DataFrame:
    """Rows of `deliveries`: one for each message with a delay that reached its end."""
    return messages_at(messages, events, Event.DELIVERY, src).select(
        "queue",
        F.lit(src.name.lower()).alias("source"),
        "queue_offset",
        *("message_id", "topic"),
        named(Delivery, "e.state").alias("state"),
        moment("e.deliver_at").alias("deliver_at"),
        _not_before_stored().alias("resolved_at"),
        F.lit(batch_id).alias("batch_id"),
    )


def discarded(half: DataFrame, events: Events, batch_id: int) -> DataFrame:
    """Rows of `discarded`: the discarded half messages, whole."""
    found = messages_at(half, events, Event.DECIDED).where(F.col("e.state") == int(State.DISCARDED))
    return found.select(
        *half.columns,
        named(Reason, "e.reason").alias("reason"),
        *("e.checks", "e.round"),
        _not_before_stored().alias("discarded_at"),
        F.lit(batch_id).alias("batch_id"),
    )


def checks(half: DataFrame, events: Events, batch_id: int) -> DataFrame:
    """Rows of `checks`: one for each check request."""
    return messages_at(half, events, Event.CHECK).select(
        "queue",
        F.col("queue_offset").alias("half_offset"),
        *("transaction_id", "producer_group", "e.round"),
        F.col("e.checks").alias("check_no"),
        moment("e.now").alias("requested_at"),
        F.lit(batch_id).alias("batch_id"),
    )


def _not_before_stored() -> Column:
    """The driver's clock may run behind the broker's; nothing ends before it was stored."""
    return F.greatest(moment("e.now"), F.col("stored_at"))
