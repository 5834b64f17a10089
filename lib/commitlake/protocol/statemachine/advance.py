"""The state machine of a segment: half messages meet their ops, checks fall due, delays end.

`advance` is the whole of coordination for one segment and one batch; the order of its steps is the protocol:

1. merge what has landed with what is open;
2. discard further half messages that do not belong to their first (`parts`);
3. apply ops, the earliest first (`ops`);
4. an UNKNOWN ends the check that it answers (`deadlines`);
5. deadlines of what is still open: checks and discards (`deadlines`);
6. recalls, then delays that have ended (`delays`);
7. report ops and parts that have waited long enough for their message as unmatched, and drop them (`park`).
"""

from __future__ import annotations

import numpy as np

from commitlake.errors import DoubledError
from commitlake.protocol.statemachine import deadlines, delays, ops, park, parts
from commitlake.protocol.statemachine.model import Rules, Segment, Step
from commitlake.protocol.statemachine.rows import EVENT, Rows, concat
from commitlake.protocol.states import Kind

_OPS = (Kind.COMMIT, Kind.ROLLBACK, Kind.RESUME, Kind.RECALL)


def advance(state: Rows, arrived: Rows, now: int, rules: Rules, watermark: int | None = None) -> Step:
    """Applies what arrived and what is due at `now` to a segment.

    Args:
        state: `ROW`s that were open after the last batch.
        arrived: `ROW`s that this batch brought, in any order.
        now: the batch's time, ms since epoch, UTC.
        rules: the timing rules.
        watermark: ms since epoch, UTC: no deadline, park time or delay runs ahead of it. None: they run with
            `now`.

    Raises:
        DoubledError: a half message or a delayed message arrived that is open already.
    """
    clock = now if watermark is None else min(now, watermark)
    segment = _merge(state, arrived, rules)
    parts.drop_strangers(segment)
    ops.apply(segment)
    deadlines.answer(segment, rules)
    deadlines.sweep(segment, clock, now, rules)
    delays.sweep(segment, clock)
    park.sweep(segment, clock, rules)
    return Step(segment.open_rows(), concat(segment.events, EVENT), _next_due(segment, rules))


def _merge(state: Rows, arrived: Rows, rules: Rules) -> Segment:
    old, new = _split(state), _split(arrived)
    halves = concat([old["halves"], deadlines.stamp_first_due(new["halves"], rules)])
    return Segment(
        halves=_each_once(halves[np.argsort(halves["offset"], kind="stable")], "offset"),
        parts=_parts(old["parts"], new["parts"]),
        refused=concat([old["refused"], new["refused"]]),
        ops=concat([old["ops"], new["ops"]]),
        listed=concat([old["listed"], new["listed"]]),
        timers=_timers(old["timers"], new["timers"]),
        answers=new["answers"],
    )


def _split(rows: Rows) -> dict[str, Rows]:
    kind = rows["kind"]
    return {
        "halves": rows[kind == Kind.HALF],
        "parts": rows[kind == Kind.PART],
        "refused": rows[kind == Kind.REFUSED_PART],
        "ops": rows[np.isin(kind, _OPS)],
        "listed": rows[kind == Kind.LISTED],
        "answers": rows[kind == Kind.UNKNOWN],
        "timers": rows[(kind == Kind.DELAYED) | (kind == Kind.WAITING)],
    }


def _parts(old: Rows, new: Rows) -> Rows:
    every = concat([old, new])
    if len(new):
        _each_once(every[np.argsort(parts.part_key(every), kind="stable")], "part_queue", "part_offset")
    return every


def _timers(old: Rows, new: Rows) -> Rows:
    timers = concat([old, new])
    if len(new):
        order = np.lexsort((timers["part_offset"], timers["part_queue"], timers["offset"]))
        _each_once(timers[order], "offset", "part_queue", "part_offset")
    return timers


def _each_once(ordered: Rows, *key: str) -> Rows:
    """The rows, sorted by `key`. Raises where a row came twice: it would be decided, and shown, twice."""
    again = np.logical_and.reduce([ordered[name][1:] == ordered[name][:-1] for name in key])
    if again.any():
        twice = ordered[1:][again][0]
        msg = f"the message at offset {twice['offset']} came to its segment a second time"
        raise DoubledError(msg)
    return ordered


def _next_due(segment: Segment, rules: Rules) -> int | None:
    times = np.concatenate(
        [
            deadlines.next_deadline(segment.halves, rules),
            segment.timers["deliver_at"],
            park.reported_at(segment.ops, rules),
            park.reported_at(parts.waiting(segment), rules),
            park.reported_at(segment.refused, rules),
        ]
    )
    return int(times.min()) if len(times) else None
