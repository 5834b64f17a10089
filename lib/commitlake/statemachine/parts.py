"""Several half messages in one transaction: all meet at the first one (contract 4.8).

A part (a further half message) has no checks, deadlines or decision of its own. It is an entry in the state of its
first half message's segment: attached while the first is open, parked while it is not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commitlake.protocol.states import Event, Reason, State
from commitlake.statemachine.model import Segment
from commitlake.statemachine.rows import ABSENT, EVENT, Longs, Mask, Rows, coordinate, find, make


def attach(segment: Segment) -> None:
    """Joins parts to their open first half message; a part of another group or transaction id is an ORPHAN at once.

    A part that has just come without an open first asks the ledger, which may know that the first has ended. Of a part
    that has asked only the ledger speaks from then on, or a RESUME of the first could make it an ORPHAN twice.
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
    ask(segment, parts[~hit & fresh], last=False)
    orphans(segment, parts[hit & ~same & fresh])
    ask(segment, parts[hit & ~same & ~fresh], last=True)
    segment.parts = parts[~(hit & ~same)]


def attached(parts: Rows) -> Mask:
    """Which parts have joined an open first half message."""
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
    """One number for an op record: `op` and `admin` have offsets of their own."""
    return coordinate(rows["op_queue"], rows["op_offset"]) | (rows["admin"].astype(np.int64) << 62)


def forget_listed(segment: Segment) -> None:
    """Drops what only ops that have gone have listed."""
    if len(segment.listed):
        segment.listed = segment.listed[np.isin(op_key(segment.listed), op_key(segment.ops))]


def ask(segment: Segment, parts: Rows, *, last: bool) -> None:
    """Lets the ledger say what became of the first half message of `parts`."""
    if len(parts):
        segment.events.append(_part_events(parts, event=Event.ASK_PART, since=parts["since"], last=int(last)))


def orphans(segment: Segment, parts: Rows) -> None:
    """Ends parts that belong to no transaction."""
    if len(parts):
        ended = {"state": State.DISCARDED, "reason": Reason.ORPHAN, "checks": 0, "round": 0}
        segment.events.append(_part_events(parts, event=Event.DECIDED, **ended))


def _part_events(parts: Rows, **columns: object) -> Rows:
    where = {"queue": parts["part_queue"], "offset": parts["part_offset"], "anchor_offset": parts["offset"]}
    return make(EVENT, len(parts), **where, **columns)
