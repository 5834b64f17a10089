"""The messages of a batch's events, whole, each with its event: read once, for all tables of the batch.

Of topics that show a name once, `duplicate_of` says which message has shown it before; that is worked out before the
commit point.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.coordinator.coordination.batch_rows import SHOWN
from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.coordination.half_cache import HalfCache
from commitlake.coordinator.dedup.dedup_index import DedupIndex, place_sql
from commitlake.protocol.states import Event, Source
from commitlake.spark.frames import in_few_tasks, sized
from commitlake.tables import Warehouse
from commitlake.tables.columns import coordinate_sql
from commitlake.tables.spans import within

_EVENT = "struct(state, reason, op_queue, op_offset, op_stored, checks, repeat, round, deliver_at, now) AS e"
_EVENTS = (Event.DECIDED, Event.DELIVERY, Event.CHECK)


def halves(events: Events, cache: HalfCache) -> DataFrame:
    """The half messages that end, become visible or are checked: columns of `half`, `event` and `e.*`."""
    return _met(cache.at(events.spans(*_EVENTS)), events, Source.HALF)


def delayed(events: Events, warehouse: Warehouse) -> DataFrame:
    """The delayed messages whose delay ends: columns of `delayed`, `event` and `e.*`."""
    spans = events.spans(Event.DELIVERY, src=Source.MESSAGES)
    return _met(warehouse.read("delayed").where(within(spans, "queue", "queue_offset")), events, Source.MESSAGES)


def _met(messages: DataFrame, events: Events, src: Source) -> DataFrame:
    numbers = ", ".join(str(int(event)) for event in _EVENTS)
    found = events.frame.where(f"event IN ({numbers}) AND src = {int(src)}")
    found = found.selectExpr(f"{coordinate_sql('queue', 'offset')} AS at", "event", _EVENT)
    at = messages.selectExpr("*", f"{coordinate_sql('queue', 'queue_offset')} AS at")
    return in_few_tasks(at.join(sized(found, events.count(*_EVENTS, src=src)), "at"))


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
