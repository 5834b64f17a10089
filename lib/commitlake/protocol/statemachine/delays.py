"""Delays: a message is delivered at the first batch after its due time, unless it was recalled (contract 4.10)."""

from __future__ import annotations

import numpy as np

from commitlake.protocol.statemachine.model import Segment
from commitlake.protocol.statemachine.ops import report
from commitlake.protocol.statemachine.rows import EVENT, Mask, find, make
from commitlake.protocol.states import Delivery, Event, Kind, Refusal


def sweep(segment: Segment, watermark: int) -> None:
    """Apply recalls, as ops come before deadlines; then deliver messages that are due.

    Messages are due by the watermark, not by the clock: a recall that Kafka had in time may not have landed yet. A
    message that was due when it was stored can have no such recall, and is delivered at once.
    """
    _recall(segment)
    timers = segment.timers
    due = (timers["deliver_at"] <= watermark) | (timers["deliver_at"] <= timers["stored"])
    _end(segment, due, Delivery.DELIVERED)


def _recall(segment: Segment) -> None:
    """A recall must name the id and the topic of its message; it waits if that message is not open (`park`)."""
    ops = segment.ops
    recalls = ops["kind"] == Kind.RECALL
    if not recalls.any():
        return
    order = np.argsort(segment.timers["offset"], kind="stable")
    waiting = segment.timers[order]
    at = find(waiting["offset"], ops["offset"])
    met = recalls & (at >= 0)
    message = waiting[at] if len(waiting) else ops
    same = (ops["tid"] == message["tid"]) & (ops["grp"] == message["grp"])
    report(segment, ops[met & ~same], event=Event.REFUSED, reason=Refusal.NO_DELAYED_MESSAGE)
    recalled = np.isin(segment.timers["offset"], ops["offset"][met & same])
    segment.ops = ops[~met]
    _end(segment, recalled, Delivery.RECALLED)


def _end(segment: Segment, ended: Mask, state: Delivery) -> None:
    """Report the end of timers under the message's own coordinates; those of a part are not those of its first."""
    rows = segment.timers[ended]
    if not len(rows):
        return
    committed = rows["kind"] == Kind.WAITING
    event = make(
        EVENT,
        len(rows),
        event=Event.DELIVERY,
        queue=np.where(committed, rows["part_queue"], -1),
        offset=np.where(committed, rows["part_offset"], rows["offset"]),
        first_offset=rows["offset"],
        state=state,
        deliver_at=rows["deliver_at"],
    )
    segment.events.append(event)
    segment.timers = segment.timers[~ended]
