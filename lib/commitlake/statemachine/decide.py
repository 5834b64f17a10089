"""What a decision does: the transaction ends as a whole, and a committed message with a delay starts to wait."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commitlake.protocol.states import Event, Kind, State
from commitlake.statemachine.model import Segment
from commitlake.statemachine.parts import attached, parts_of
from commitlake.statemachine.rows import ABSENT, EVENT, ROW, Longs, Rows, concat, make


def decide(
    segment: Segment, ended: npt.NDArray[np.intp], state: npt.ArrayLike, reason: npt.ArrayLike, ops: Rows | None = None
) -> None:
    """Ends the half messages at indices `ended`, with all their parts: same state, reason, op, checks and round.

    Args:
        segment: it loses what ends, and says so.
        ended: sorted indices into `segment.halves`.
        state: a `State`, one for all or one each.
        reason: a `Reason`, one for all or one each.
        ops: the op that decided each; None when a deadline did.
    """
    if not len(ended):
        return
    halves = segment.halves[ended]
    parts, first = parts_of(segment, halves["offset"])
    of = np.concatenate([np.arange(len(halves)), first])
    anchors = halves[of]
    op = (make(ROW, len(halves)) if ops is None else ops)[of]
    states = np.broadcast_to(state, len(halves))[of]
    messages = concat([halves, parts])
    due = np.where(states == State.COMMITTED, deliver_at(messages, op["stored"]), ABSENT)
    events = make(
        EVENT,
        len(messages),
        event=Event.DECIDED,
        queue=np.concatenate([np.full(len(halves), ABSENT), parts["part_queue"]]),
        offset=np.concatenate([halves["offset"], parts["part_offset"]]),
        anchor_offset=anchors["offset"],
        op_queue=op["op_queue"],
        op_offset=op["op_offset"],
        admin=op["admin"],
        state=states,
        reason=np.broadcast_to(reason, len(halves))[of],
        checks=anchors["checks"],
        round=anchors["round"],
        deliver_at=due,
    )
    segment.events.append(events)
    _forget(segment, ended, halves["offset"])
    _wait(segment, events[due >= 0])


def deliver_at(messages: Rows, committed: Longs) -> Longs:
    """When a committed message is due (ms since epoch, UTC), absolute or counted from its op; -1: no delay."""
    relative = np.where(messages["delay"] >= 0, committed + messages["delay"], ABSENT)
    return np.where(messages["deliver_at"] >= 0, messages["deliver_at"], relative)


def _forget(segment: Segment, ended: npt.NDArray[np.intp], offsets: Longs) -> None:
    segment.halves = np.delete(segment.halves, ended)
    gone = attached(segment.parts) & np.isin(segment.parts["offset"], offsets)
    segment.parts = segment.parts[~gone]


def _wait(segment: Segment, committed: Rows) -> None:
    """The timer stands in the first half message's segment; it has no more to do with it."""
    if not len(committed):
        return
    timer = make(
        ROW,
        len(committed),
        kind=Kind.WAITING,
        offset=committed["anchor_offset"],
        part_queue=committed["queue"],
        part_offset=committed["offset"],
        deliver_at=committed["deliver_at"],
    )
    segment.timers = concat([segment.timers, timer])
