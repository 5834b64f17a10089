"""The messages of a batch's events, whole, each with its event: read once, for all tables of the batch."""

from __future__ import annotations

from pyspark.sql import DataFrame

from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.coordination.half_cache import HalfCache
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
