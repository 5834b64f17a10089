"""Answers to recalls of messages that were not waiting (contract 4.10)."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.coordination.unmatched.lookup import LedgerTables, near
from commitlake.coordinator.coordination.unmatched.resolution import Resolutions, Ruling
from commitlake.coordinator.coordination.unmatched.unmatched_ops import once_more, refusals, with_record
from commitlake.protocol.states import Event, Refusal, Source
from commitlake.spark.frames import materialized

_AT = ["first_queue", "first_offset"]


def resolve(batch: Events, tables: LedgerTables) -> Resolutions:
    """Too late for a delivered message; nothing there for another id or topic; harmless when repeated."""
    unmatched = materialized(with_record(batch.of(Event.UNMATCHED_OP, Source.MESSAGES), tables))
    where = (("queue", "first_queue"), ("queue_offset", "first_offset"))
    at = [F.col("queue").alias("first_queue"), F.col("queue_offset").alias("first_offset")]
    message = near(tables.delayed, unmatched, *where).select(*at, F.struct("message_id", "topic").alias("message"))
    ended = near(tables.deliveries.where("source = 'messages'"), unmatched, *where).select(
        *at, F.col("state").alias("ended")
    )
    facts = unmatched.join(message, _AT, "left").join(ended, _AT, "left")
    judged = materialized(facts.withColumn("verdict", _verdict()))
    return Resolutions(refusals(judged), once_more(judged))


def _verdict() -> Column:
    last = F.col("last") == 1
    same = F.struct("message.message_id", "message.topic") == F.struct("record.message_id", "record.topic")
    return (
        F.when(F.col("message").isNull() & ~last, int(Ruling.AGAIN))
        .when(F.col("message").isNull() | ~same, int(Refusal.NO_DELAYED_MESSAGE))
        .when(F.col("ended") == "DELIVERED", int(Refusal.RECALL_TOO_LATE))
        .when(F.col("ended").isin("RECALLED", "DUPLICATE"), int(Ruling.NOTHING))
        .otherwise(int(Ruling.AGAIN))
    )
