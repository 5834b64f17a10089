"""Several half messages in one transaction: all meet at the first one (contract 4.8).

A part (a further half message) has no checks, deadlines or decision of its own. Its row is in the state of its first
half message's segment, and waits there while the first is not open.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commitlake.protocol.statemachine.model import Segment
from commitlake.protocol.statemachine.rows import EVENT, Longs, Mask, Rows, coordinate, find, make
from commitlake.protocol.states import Event, Reason, State


def drop_strangers(segment: Segment) -> None:
    """End parts with another group or transaction id than their open first half message: each is an ORPHAN."""
    parts = segment.parts
    if not len(parts) or not len(segment.halves):
        return
    at = find(segment.halves["offset"], parts["offset"])
    first = segment.halves[at]
    strange = (at >= 0) & ((parts["tid"] != first["tid"]) | (parts["grp"] != first["grp"]))
    _orphans(segment, parts[strange])
    segment.parts = parts[~strange]


def spoiled(segment: Segment) -> Mask:
    """Which open first half messages have a part that landing has refused.

    The time of the refusal is not compared: it is the coordinator's time, which may be behind the broker's.
    """
    halves, refused = segment.halves, segment.refused
    found = np.zeros(len(halves), dtype=np.bool_)
    at = find(halves["offset"], refused["offset"])
    refused, at = refused[at >= 0], at[at >= 0]
    same = (refused["tid"] == halves["tid"][at]) & (refused["grp"] == halves["grp"][at])
    found[at[same]] = True
    return found


def waits(segment: Segment) -> Mask:
    """Which parts have no open first half message."""
    return np.asarray(find(segment.halves["offset"], segment.parts["offset"]) < 0)


def waiting(segment: Segment) -> Rows:
    """Parts without an open first half message."""
    return segment.parts[waits(segment)]


def parts_of(segment: Segment, offsets: Longs) -> tuple[Rows, npt.NDArray[np.intp]]:
    """The parts of the open first half messages at sorted `offsets`, and for each the index of its first."""
    parts = segment.parts
    at = find(offsets, parts["offset"])
    return parts[at >= 0], at[at >= 0]


def incomplete(segment: Segment) -> Mask:
    """Which ops about an open first half message list a further one that has not landed."""
    ops, listed = segment.ops, segment.listed
    if not len(listed):
        return np.zeros(len(ops), dtype=np.bool_)
    parts = segment.parts[np.argsort(part_key(segment.parts))]
    at = find(part_key(parts), part_key(listed))
    landed = at >= 0
    if len(parts):
        landed &= parts["offset"][at] == listed["offset"]
    return (ops["listed"] > 0) & np.isin(op_key(ops), op_key(listed[~landed]))


def part_key(rows: Rows) -> Longs:
    """One number for a further half message."""
    return coordinate(rows["part_queue"], rows["part_offset"])


def op_key(rows: Rows) -> Longs:
    """One number for an op record; the sign separates `op` from `admin`, whose offsets are independent."""
    return coordinate(rows["op_queue"], rows["op_offset"]) | (rows["admin"].astype(np.int64) << 63)


def forget_listed(segment: Segment) -> None:
    """Drop listed half messages when no op that lists them is open any longer."""
    if len(segment.listed):
        segment.listed = segment.listed[np.isin(op_key(segment.listed), op_key(segment.ops))]


def report_unmatched(segment: Segment, parts: Rows, last: Longs) -> None:
    """Report parts without an open first half message; their resolution reads how the first one ended.

    Args:
        segment: gets the events.
        parts: `ROW`s of parts, which leave the segment.
        last: for each, 1 where a first that has not landed by now counts as missing.
    """
    segment.events.append(_part_events(parts, event=Event.UNMATCHED_PART, last=last))


def _orphans(segment: Segment, parts: Rows) -> None:
    """End parts that belong to no transaction."""
    if len(parts):
        ended = {"state": State.DISCARDED, "reason": Reason.ORPHAN, "checks": 0, "round": 0}
        segment.events.append(_part_events(parts, event=Event.DECIDED, **ended))


def _part_events(parts: Rows, **columns: object) -> Rows:
    where = {"queue": parts["part_queue"], "offset": parts["part_offset"], "first_offset": parts["offset"]}
    return make(EVENT, len(parts), **where, **columns)
