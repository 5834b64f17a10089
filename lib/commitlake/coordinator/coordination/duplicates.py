"""Messages whose name a batch would show a second time: `duplicate_of`, worked out before the commit point."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.coordinator.coordination.topic_rows import SHOWN
from commitlake.coordinator.dedup.dedup_index import DedupIndex, place_sql
from commitlake.protocol.states import Event, Source

_RANK = f"INT(event = {int(Event.DELIVERY)})"
"""Decisions claim names before deliveries: a kill may come between the ledger rows of the two."""


def without_duplicates(messages: Mapping[Source, DataFrame], dedup: DedupIndex, now: int) -> dict[Source, DataFrame]:
    """Adds `duplicate_of`: the position of the message that holds the name; null if this one may be shown, or is not.

    Args:
        messages: by source, messages with their events.
        dedup: the topics that show a name once.
        now: the batch's time, ms since epoch, UTC.
    """
    found = _duplicates(messages, dedup, now) if dedup.topics else None
    if found is None:
        nothing = F.lit(None).cast("string")
        return {src: frame.withColumn("duplicate_of", nothing) for src, frame in messages.items()}
    return {
        src: frame.selectExpr("*", f"IF({SHOWN}, {_place(src)}, NULL) AS place").join(found, "place", "left")
        for src, frame in messages.items()
    }


def _duplicates(messages: Mapping[Source, DataFrame], dedup: DedupIndex, now: int) -> DataFrame | None:
    shown = [
        frame.where(SHOWN).selectExpr(
            *("topic", "keys", "message_id", f"{_place(src)} AS place"),
            f"greatest({now}L, unix_millis(stored_at)) AS at",
            f"{_RANK} AS rank",
            "0 AS member",
        )
        for src, frame in messages.items()
    ]
    return dedup.duplicates(reduce(DataFrame.unionAll, shown)) if shown else None


def _place(src: Source) -> str:
    return place_sql(f"'{src.name.lower()}'", "queue", "queue_offset")
