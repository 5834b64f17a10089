"""When a check is due, and when an open transaction is discarded (contract 4.3 to 4.5)."""

from __future__ import annotations

import numpy as np

from commitlake.protocol.states import Event, Reason, State
from commitlake.statemachine.decide import decide
from commitlake.statemachine.model import Rules, Segment
from commitlake.statemachine.parts import parts_of
from commitlake.statemachine.rows import EVENT, Longs, Rows, make


def stamp_first_due(halves: Rows, rules: Rules) -> Rows:
    """Set the first deadline of half messages without one: age > max(timeout, immunity), so 1 ms after that."""
    halves["since"] = np.where(halves["since"] < 0, halves["stored"], halves["since"])
    grace = np.maximum(rules.timeout_ms, halves["immunity"].astype(np.int64) * 1000)
    halves["due"] = np.where(halves["due"] < 0, halves["stored"] + grace + 1, halves["due"])
    return halves


def _expires_at(halves: Rows, rules: Rules) -> Longs:
    """A round may last `retention`, from the broker's append time or from its RESUME."""
    return np.asarray(halves["since"] + rules.retention_ms + 1)


def next_deadline(halves: Rows, rules: Rules) -> Longs:
    """The next deadline of each open half message, ms since epoch, UTC."""
    return np.asarray(np.minimum(halves["due"], _expires_at(halves, rules)))


def sweep(segment: Segment, now: int, rules: Rules) -> None:
    """Check or discard what is still open after the ops of this batch.

    A transaction that was checked `check_max` times gets one more interval, then it is discarded. Of two deadlines that
    have passed, the earlier one gives the reason. However many intervals were missed, one check is enough.

    Args:
        segment: the open segment.
        now: the batch's time, ms since epoch, UTC.
        rules: the timing rules.
    """
    halves = segment.halves
    due, expires = halves["due"], _expires_at(halves, rules)
    exhausted = (due <= now) & (halves["checks"] >= rules.check_max)
    expired = (expires <= now) & ~(exhausted & (due < expires))
    gone = exhausted | expired
    _check(segment, np.flatnonzero((due <= now) & ~gone), now, rules)
    reason = np.where(expired, Reason.EXPIRED, Reason.CHECK_MAX)[gone]
    decide(segment, np.flatnonzero(gone), State.DISCARDED, reason)


def _check(segment: Segment, due: np.ndarray, now: int, rules: Rules) -> None:
    """Report check number n + 1 of each, with all parts that have landed, and set the next deadline."""
    if not len(due):
        return
    segment.halves["checks"][due] += 1
    segment.halves["due"][due] = now + rules.check_interval_ms
    checked = segment.halves[due]
    _emit(segment, Event.CHECK, checked, offset=checked["offset"], checks=checked["checks"], round=checked["round"])
    parts, _ = parts_of(segment, checked["offset"])
    _emit(segment, Event.CHECK_PART, parts, queue=parts["part_queue"], offset=parts["part_offset"])


def _emit(segment: Segment, event: Event, rows: Rows, **columns: object) -> None:
    segment.events.append(make(EVENT, len(rows), event=event, anchor_offset=rows["offset"], **columns))
