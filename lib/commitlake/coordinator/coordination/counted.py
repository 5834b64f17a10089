"""The counts of a batch, for metrics."""

from __future__ import annotations

import json

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.column import Column

from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.counters import Counters, Labels, Times
from commitlake.protocol.states import Delivery, Event, Reason, Refusal, State


def count(counters: Counters, events: Events) -> None:
    """Counts the events of a batch that is complete."""
    for row in events.summary:
        told = _told(row)
        if told is not None:
            name, label = told
            counters.add(name, {label: row["n"]})


def _told(row: Row) -> tuple[str, Labels] | None:
    """The counter of an event, and its labels; None for an event that is not counted."""
    match row["event"]:
        case Event.DECIDED:
            return "ended", (State(row["state"]).name, Reason(row["reason"]).name)
        case Event.DELIVERY:
            return "deliveries", (Delivery(row["state"]).name,)
        case Event.REFUSED:
            return "rejected", (Refusal(row["reason"]).name,)
        case Event.CHECK:
            return "checks", ("repeated" if row["is_again"] else "sent",)
    return None


def times(at_ms: str, name: str) -> Column:
    """Aggregate of times, which `told_times` reads: as JSON, since an observation hands no list to Python.

    Their ages count up to a commit that is still to come. So the times themselves are kept: some 64 of them, each with
    the number of rows at or near it.

    Args:
        at_ms: SQL of the time, ms since epoch, UTC; null for rows that do not count.
        name: the name of the column.
    """
    return F.expr(f"to_json(histogram_numeric({at_ms}, 64))").alias(name)


def told_times(text: str | None) -> Times:
    """The times that `times` has gathered, from its JSON."""
    return [(part["x"], round(part["y"])) for part in json.loads(text or "[]")]
