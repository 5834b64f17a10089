"""Several half messages in one transaction: all meet at the first one (contract 4.8).

A part (a further half message) has no checks, deadlines or decision of its own. It is a row in the state of its first
half message's segment: attached while the first is open, parked while it is not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commitlake.protocol.statemachine.model import Segment
from commitlake.protocol.statemachine.rows import ABSENT, EVENT, Longs, Mask, Rows, coordinate, find, make
from commitlake.protocol.states import Event, Reason, State


def attach(segment: Segment) -> None:
    """Attach parts to their open first half message; a part with another group or transaction id is an ORPHAN at once.

    A part that has just arrived without an open first is unmatched: the first may have ended already. In later batches
    only its resolution may end it as an ORPHAN, since a RESUME of the first could otherwise do so a second time.
    """
    parts = segment.parts
    if not len(parts):
        return
    at = find(segment.halves["offset"], parts["offset"])
    hit = at >= 0
    first = segment.halves[at] if len(segment.halves) else parts
    same = (parts["tid"] == first["tid"]) & (parts["grp"] == first["grp"])
    parts["since"] = np.where(hit & same, ABSENT, parts["since"])
    fresh = np.arange(len(parts)) >= len(parts) - segment.fresh_parts
    report_unmatched(segment, parts[~hit & fresh], last=False)
    _orphans(segment, parts[hit & ~same & fresh])
    report_unmatched(segment, parts[hit & ~same & ~fresh], last=True)
    segment.parts = parts[~(hit & ~same)]


def attached(parts: Rows) -> Mask:
    """Which parts are attached to an open first half message."""
    return np.asarray(parts["since"] == ABSENT)


def parts_of(segment: Segment, offsets: Longs) -> tuple[Rows, npt.NDArray[np.intp]]:
    """The attached parts of the first half messages at sorted `offsets`, and for each the index of its first."""
    parts = segment.parts[attached(segment.parts)]
    at = find(offsets, parts["offset"])
    return parts[at >= 0], at[at >= 0]


def incomplete(segment: Segment) -> Mask:
    """Which ops list a further half message that has not landed."""
    ops, listed = segment.ops, segment.listed
    if not len(listed):
        return np.zeros(len(ops), dtype=np.bool_)
    parts = segment.parts[attached(segment.parts)]
    parts = parts[np.argsort(part_key(parts))]
    at = find(part_key(parts), part_key(listed))
    landed = at >= 0
    if len(parts):
        landed &= parts["offset"][at] == listed["offset"]
    return (ops["listed"] > 0) & np.isin(op_key(ops), op_key(listed[~landed]))


def part_key(rows: Rows) -> Longs:
    """One number for a further half message."""
    return coordinate(rows["part_queue"], rows["part_offset"])


def op_key(rows: Rows) -> Longs:
    """One number for an op record; the sign tells apart `op` and `admin`, whose offsets are independent."""
    return coordinate(rows["op_queue"], rows["op_offset"]) | (rows["admin"].astype(np.int64) << 63)


def forget_listed(segment: Segment) -> None:
    """Drop what only ops that are no longer open have listed."""
    if len(segment.listed):
        segment.listed = segment.listed[np.isin(op_key(segment.listed), op_key(segment.ops))]


def report_unmatched(segment: Segment, parts: Rows, *, last: bool) -> None:
    """Report parts without an open first half message; their resolution reads what the first became.

    Args:
        segment: gets the events.
        parts: `ROW`s of parts.
        last: whether they leave the segment, so that their resolution must be final.
    """
    if len(parts):
        segment.events.append(_part_events(parts, event=Event.UNMATCHED_PART, since=parts["since"], last=int(last)))


def _orphans(segment: Segment, parts: Rows) -> None:
    """End parts that belong to no transaction."""
    if len(parts):
        ended = {"state": State.DISCARDED, "reason": Reason.ORPHAN, "checks": 0, "round": 0}
        segment.events.append(_part_events(parts, event=Event.DECIDED, **ended))


def _part_events(parts: Rows, **columns: object) -> Rows:
    where = {"queue": parts["part_queue"], "offset": parts["part_offset"], "first_offset": parts["offset"]}
    return make(EVENT, len(parts), **where, **columns)
