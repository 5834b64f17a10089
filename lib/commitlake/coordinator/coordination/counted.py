"""What a batch counts, for metrics."""

from __future__ import annotations

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.column import Column

from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.counters import BOUNDS_S, Counters, Labels
from commitlake.protocol.states import Delivery, Event, Reason, Refusal, State


def count(counters: Counters, events: Events) -> None:
    """Counts the events of a batch that is complete."""
    for row in events.summary:
        told = _told(row)
        if told is not None:
            name, label = told
            counters.add(name, {label: row["n"]})


def _told(row: Row) -> tuple[str, Labels] | None:
    """The counter of an event, and its labels; None for what is not counted."""
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


def ages(age_ms: str) -> Column:
    """Aggregate of ages, for `Ages.add`: as JSON, since an observation hands no list to Python.

    Args:
        age_ms: SQL of the age in ms; null for rows that do not count.
    """
    within = ", ".join(f"count_if({age_ms} <= {bound * 1_000})" for bound in BOUNDS_S)
    total = f"coalesce(sum(greatest({age_ms}, 0)), 0)"
    return F.expr(f"to_json(array({within}, count({age_ms}), {total}))").alias("ages")
