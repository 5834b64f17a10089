"""When a check is due, and when an open transaction is discarded (contract 4.3 to 4.5)."""

from __future__ import annotations

import numpy as np

from commitlake.protocol.states import Event, Reason, State
from commitlake.statemachine import answers
from commitlake.statemachine.decide import decide
from commitlake.statemachine.model import Rules, Segment
from commitlake.statemachine.parts import parts_of
from commitlake.statemachine.rows import ABSENT, EVENT, Longs, Rows, find, make


def stamp_first_due(halves: Rows, rules: Rules) -> Rows:
    """Set the first deadline of half messages without one: when the age exceeds the timeout, so 1 ms after it.

    An immunity takes the place of the timeout, also when it is shorter, as in RocketMQ.
    """
    halves["since"] = np.where(halves["since"] < 0, halves["stored"], halves["since"])
    immunity = halves["immunity"].astype(np.int64) * 1000
    grace = np.where(immunity >= 0, immunity, rules.timeout_ms)
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

    One check of a transaction is out at a time. The deadline of one that is out is when to repeat it, unless its group
    answers others meanwhile (`_put_off`); of one that was answered, when to ask the next, or, after `check_max` of
    them, to discard. Of two deadlines that have passed, the earlier one gives the reason. However many intervals were
    missed, one check is enough.

    Args:
        segment: the open segment.
        now: the batch's time, ms since epoch, UTC.
        rules: the timing rules.
    """
    _put_off(segment, now, rules)
    halves = segment.halves
    due, expires = halves["due"], _expires_at(halves, rules)
    is_out = halves["repeat"] >= 0
    exhausted = (due <= now) & ~is_out & (halves["checks"] >= rules.check_max)
    expired = (expires <= now) & ~(exhausted & (due < expires))
    gone = exhausted | expired
    asked = (due <= now) & ~gone & (~is_out | (segment.heard is not None))
    _check(segment, np.flatnonzero(asked), now, rules)
    reason = np.where(expired, Reason.EXPIRED, Reason.CHECK_MAX)[gone]
    decide(segment, np.flatnonzero(gone), State.DISCARDED, reason)


def _put_off(segment: Segment, now: int, rules: Rules) -> None:
    """A group that answers others will come to this check too: it is repeated after `check_repeat` without any answer.

    Else a backlog that takes longer than `check_repeat` to answer would grow by its own repeats.
    """
    if segment.heard is None or not len(segment.heard):
        return
    heard, halves = answers.newest_of_each_group(segment.heard), segment.halves
    late = np.flatnonzero((halves["repeat"] >= 0) & (halves["due"] <= now))
    at = find(heard["grp"], halves["grp"][late])
    late, at = late[at >= 0], at[at >= 0]
    halves["due"][late] = np.maximum(halves["due"][late], heard["stored"][at] + rules.check_repeat_ms)


def _check(segment: Segment, due: np.ndarray, now: int, rules: Rules) -> None:
    """Ask each once more, the same question if it is out and the next one if not, with all parts that have landed."""
    if not len(due):
        return
    halves = segment.halves
    halves["checks"][due] += halves["repeat"][due] == ABSENT
    halves["repeat"][due] += 1
    halves["due"][due] = now + rules.check_repeat_ms
    checked = halves[due]
    same = {name: checked[name] for name in ("offset", "checks", "repeat", "round")}
    _emit(segment, Event.CHECK, checked, **same)
    parts, _ = parts_of(segment, checked["offset"])
    _emit(segment, Event.CHECK_PART, parts, queue=parts["part_queue"], offset=parts["part_offset"])


def _emit(segment: Segment, event: Event, rows: Rows, **columns: object) -> None:
    segment.events.append(make(EVENT, len(rows), event=event, anchor_offset=rows["offset"], **columns))
