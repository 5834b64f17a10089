"""Which op decides: the first that fits, in the order of the broker's append time (contract 4.1, 4.2, 4.6, 4.8)."""

from __future__ import annotations

import numpy as np

from commitlake.protocol.statemachine.decide import decide
from commitlake.protocol.statemachine.model import Segment
from commitlake.protocol.statemachine.parts import forget_listed, incomplete, spoiled
from commitlake.protocol.statemachine.rows import EVENT, Mask, Rows, find, make
from commitlake.protocol.states import Event, Kind, Reason, Refusal, State

_DECISIONS = (Kind.COMMIT, Kind.ROLLBACK)


def apply(segment: Segment) -> None:
    """Apply ops to open half messages; those without one stay parked.

    A late, repeated or early op looks the same here: a decision without an open message. So the state need not remember
    decisions. `park` reports such an op as unmatched when it has waited long enough.
    """
    ops = segment.ops
    if not len(ops):
        return
    at = find(segment.halves["offset"], ops["offset"])
    half = segment.halves[at] if len(segment.halves) else ops
    meets = (at >= 0) & _applicable(ops, half)
    refusal = np.where(meets, _mismatch(ops, half), 0)
    refused = refusal > 0
    report(segment, ops[refused], event=Event.REFUSED, reason=refusal[refused])
    ready = meets & ~refused & np.isin(ops["kind"], _DECISIONS) & ~incomplete(segment)
    if len(segment.halves):
        ready &= ~((ops["kind"] == Kind.COMMIT) & spoiled(segment)[at])
    winners = _first_of_each(ops, np.flatnonzero(ready))
    segment.ops = np.delete(ops, np.concatenate([winners, np.flatnonzero(refused)]))
    forget_listed(segment)
    _decide(segment, ops[winners])


def _applicable(ops: Rows, half: Rows) -> Mask:
    """A COMMIT or ROLLBACK from before a RESUME never applies to the new round.

    Records of `admin` are compared by their offsets; an op of the same millisecond as the RESUME counts as before it.
    """
    reopened = half["op_offset"] >= 0
    after = (ops["stored"] > half["since"]) | ((ops["admin"] == 1) & (ops["op_offset"] > half["op_offset"]))
    return np.asarray(np.where(np.isin(ops["kind"], _DECISIONS), ~reopened | after, ops["kind"] == Kind.RESUME))


def _mismatch(ops: Rows, half: Rows) -> np.ndarray:
    """Why an op can't apply to its half message, 0 when it can: id before group; an op of `admin` needs no group."""
    group = np.where((ops["admin"] == 0) & (ops["grp"] != half["grp"]), Refusal.WRONG_PRODUCER_GROUP, 0)
    refusal = np.where(ops["tid"] != half["tid"], Refusal.WRONG_TRANSACTION_ID, group)
    return np.where((refusal == 0) & (ops["kind"] == Kind.RESUME), Refusal.NOT_DISCARDED, refusal)


def _first_of_each(ops: Rows, ready: np.ndarray) -> np.ndarray:
    """The earliest op of `ready` for each half message, by (stored_at, op queue, op_offset); sorted by half offset."""
    rows = ops[ready]
    order = np.lexsort((rows["admin"], rows["op_offset"], rows["op_queue"], rows["stored"], rows["offset"]))
    _, first = np.unique(rows["offset"][order], return_index=True)
    return ready[order[first]]


def _decide(segment: Segment, winners: Rows) -> None:
    ended = find(segment.halves["offset"], winners["offset"])
    state = np.where(winners["kind"] == Kind.COMMIT, State.COMMITTED, State.ROLLED_BACK)
    reason = np.where(winners["from_check"] == 1, Reason.CHECK, Reason.DIRECT)
    decide(segment, ended, state, np.where(winners["admin"] == 1, Reason.ADMIN, reason), winners)


def report(segment: Segment, ops: Rows, **columns: object) -> None:
    """Add an event about each op.

    Args:
        segment: gets the events.
        ops: `ROW`s of ops.
        columns: values of an `EVENT` besides those that name the op, one for all or one each.
    """
    if len(ops):
        about = {name: ops[name] for name in ("op_queue", "op_offset", "admin", "kind")}
        segment.events.append(make(EVENT, len(ops), first_offset=ops["offset"], **about, **columns))
