"""Resolution of recalls of messages that were not waiting (contract 4.10)."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.coordination.unmatched.lookup import LedgerTables, near, number
from commitlake.coordinator.coordination.unmatched.resolution import Resolutions, judged
from commitlake.coordinator.coordination.unmatched.unmatched_ops import refusals, requeued, with_record
from commitlake.protocol.states import Delivery, Event, Source
from commitlake.spark.frames import checkpoint_now
from commitlake.tables.columns import hashed_sql

_AT = ["first_queue", "first_offset"]


def resolve(batch: Events, tables: LedgerTables) -> Resolutions:
    """Refuses a recall of a delivered message, or one with another id or topic; a repeated recall is harmless."""
    found = checkpoint_now(judged_recalls(batch.of(Event.UNMATCHED_OP, Source.MESSAGES), tables))
    return Resolutions(refusals(found), requeued(found))


def judged_recalls(unmatched: DataFrame, tables: LedgerTables) -> DataFrame:
    """Unmatched recalls, with `record`, the facts about the message that they name, and the `verdict` on each."""
    unmatched = checkpoint_now(with_record(unmatched, tables))
    where = (("queue", "first_queue"), ("queue_offset", "first_offset"))
    at = [F.col("queue").alias("first_queue"), F.col("queue_offset").alias("first_offset")]
    message = near(tables.delayed, unmatched, *where).select(*at, F.struct("message_id", "topic").alias("message"))
    ended = near(tables.deliveries.where("source = 'messages'"), unmatched, *where).select(
        *at, F.col("state").alias("ended")
    )
    facts = unmatched.join(message, _AT, "left").join(ended, _AT, "left")
    return judged(
        facts,
        kind="kind",
        last="last",
        tid=hashed_sql("record.message_id"),
        grp=hashed_sql("record.topic"),
        is_known="message IS NOT NULL",
        first_tid=hashed_sql("message.message_id"),
        first_grp=hashed_sql("message.topic"),
        state=number(Delivery, "ended"),
    )
