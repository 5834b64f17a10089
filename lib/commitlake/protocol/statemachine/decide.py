"""The effect of a decision: the transaction ends as a whole, and a committed message with a delay starts to wait."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commitlake.protocol.statemachine.model import Segment
from commitlake.protocol.statemachine.parts import parts_of
from commitlake.protocol.statemachine.rows import ABSENT, EVENT, ROW, Longs, Rows, concat, make
from commitlake.protocol.states import Event, Kind, State


def decide(
    segment: Segment, ended: npt.NDArray[np.intp], state: npt.ArrayLike, reason: npt.ArrayLike, ops: Rows | None = None
) -> None:
    """End half messages with all their parts, which get the same state, reason, op, checks and round.

    Args:
        segment: loses the messages that end, and gets an event for each.
        ended: sorted indices into `segment.halves`.
        state: a `State`, one for all or one each.
        reason: a `Reason`, one for all or one each.
        ops: the op that decided each; None when a deadline did.
    """
    if not len(ended):
        return
    halves = segment.halves[ended]
    parts, first = parts_of(segment, halves["offset"])
    of = np.concatenate([np.arange(len(halves)), first])  # for each message, its first half message in `halves`
    op = (make(ROW, len(halves)) if ops is None else ops)[of]
    states, reasons = (np.broadcast_to(values, len(halves))[of] for values in (state, reason))
    events = _decided(concat([halves, parts]), halves[of], op, states, reasons)
    segment.events.append(events)
    _forget(segment, ended, halves["offset"])
    _wait(segment, events[events["deliver_at"] >= 0])


def _decided(
    messages: Rows, first: Rows, op: Rows, state: npt.NDArray[np.integer], reason: npt.NDArray[np.integer]
) -> Rows:
    """An event for each message; all arguments have one entry for each message."""
    is_part = messages["kind"] == Kind.PART
    return make(
        EVENT,
        len(messages),
        event=Event.DECIDED,
        queue=np.where(is_part, messages["part_queue"], ABSENT),
        offset=np.where(is_part, messages["part_offset"], messages["offset"]),
        first_offset=first["offset"],
        op_queue=op["op_queue"],
        op_offset=op["op_offset"],
        op_stored=op["stored"],
        admin=op["admin"],
        state=state,
        reason=reason,
        checks=first["checks"],
        round=first["round"],
        deliver_at=np.where(state == State.COMMITTED, _deliver_at(messages, op["stored"]), ABSENT),
    )


def _deliver_at(messages: Rows, committed: Longs) -> Longs:
    """When a committed message is due (ms since epoch, UTC), absolute or counted from its op; -1: no delay."""
    relative = np.where(messages["delay"] >= 0, committed + messages["delay"], ABSENT)
    return np.where(messages["deliver_at"] >= 0, messages["deliver_at"], relative)


def _forget(segment: Segment, ended: npt.NDArray[np.intp], offsets: Longs) -> None:
    segment.halves = np.delete(segment.halves, ended)
    segment.parts = segment.parts[~np.isin(segment.parts["offset"], offsets)]


def _wait(segment: Segment, committed: Rows) -> None:
    """Keep a timer for each message, in the segment of its first half message; nothing else of it stays there."""
    if not len(committed):
        return
    timers = make(
        ROW,
        len(committed),
        kind=Kind.WAITING,
        offset=committed["first_offset"],
        part_queue=committed["queue"],
        part_offset=committed["offset"],
        deliver_at=committed["deliver_at"],
    )
    segment.timers = concat([segment.timers, timers])
