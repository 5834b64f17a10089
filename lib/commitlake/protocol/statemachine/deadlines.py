"""When a check is due, which answer ends it, and when an open transaction is discarded (contract 4.3 to 4.5)."""

from __future__ import annotations

import numpy as np

from commitlake.protocol.statemachine.decide import decide
from commitlake.protocol.statemachine.model import Rules, Segment
from commitlake.protocol.statemachine.parts import parts_of, spoiled
from commitlake.protocol.statemachine.rows import ABSENT, EVENT, Longs, Mask, Rows, find, make
from commitlake.protocol.states import Event, Reason, State

LONGEST_PAUSE_MS = 3_600_000


def stamp_first_due(halves: Rows, rules: Rules) -> Rows:
    """Set the first deadline of half messages without one: 1 ms after the timeout, since the age must exceed it.

    An immunity replaces the timeout, even when it is shorter, as in RocketMQ.
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


def is_check_outstanding(halves: Rows) -> Mask:
    """Whether the newest check of each open half message has no answer yet."""
    return np.asarray(halves["repeat"] >= 0)


def pause_before_repeat(repeat: Longs, rules: Rules) -> Longs:
    """How long a check is out, in ms, before it counts without an answer, or is repeated for the `repeat + 1`-th time.

    The pause before a repeat doubles: 5, 10, 20, 40 and 60 minutes by default. A check can get lost, so it is repeated
    whatever else its group answers meanwhile. A group that works off a backlog, or was away for an hour, is asked only
    a few times.
    """
    if rules.counts_unanswered:
        return np.full(len(repeat), rules.check_interval_ms, dtype=np.int64)
    doubled = rules.check_repeat_ms * 2.0 ** np.minimum(repeat, 40)
    return np.minimum(doubled, max(LONGEST_PAUSE_MS, rules.check_repeat_ms)).astype(np.int64)


def answer(segment: Segment, rules: Rules) -> None:
    """End the checks that are answered; the next is due `check_interval` after the append time of the answer.

    An answer counts once, and only for the check that it names. An answer that names no check counts for the check that
    is out, if Kafka stored the answer after that check was last sent. An answer that fits no check changes nothing. A
    check stays in Kafka until its group reads it, so it is repeated only after long pauses. A group that returns after
    an hour finds each check four times, not 120 times.
    """
    answers, halves = segment.answers, segment.halves
    at = find(halves["offset"], answers["offset"])
    answers, at = answers[at >= 0], at[at >= 0]
    if not len(answers):
        return
    half = halves[at]
    same = (answers["tid"] == half["tid"]) & (answers["grp"] == half["grp"])
    named = (answers["checks"] == half["checks"]) & (answers["round"] == half["round"])
    unnamed = (answers["checks"] == ABSENT) & (
        answers["stored"] > half["due"] - pause_before_repeat(half["repeat"], rules)
    )
    fits = np.flatnonzero(same & (named | unnamed) & is_check_outstanding(half))
    fits = fits[np.argsort(answers["stored"][fits], kind="stable")]
    answered, first = np.unique(at[fits], return_index=True)
    halves["repeat"][answered] = ABSENT
    halves["due"][answered] = answers["stored"][fits[first]] + rules.check_interval_ms


def sweep(segment: Segment, watermark: int, now: int, rules: Rules) -> None:
    """Check or discard what is still open after the ops of this batch.

    One check of a transaction is out at a time. While it is out, the deadline says when to repeat it. Once it is
    answered, or may count without an answer, the deadline says when to send the next one. After `check_max` checks the
    deadline says when to discard. If that deadline and the retention have both passed, the earlier one gives the
    reason. However many intervals were missed, one check is enough. A transaction with a refused part is discarded at
    once.

    Args:
        segment: the open segment.
        watermark: ms since epoch, UTC: deadlines run with it.
        now: the batch's time, ms since epoch, UTC. Repeats count from it, since the watermark may be hours behind and
            then catch up within a minute.
        rules: the timing rules.
    """
    halves = segment.halves
    due, expires = halves["due"], _expires_at(halves, rules)
    counts = ~is_check_outstanding(halves) | rules.counts_unanswered
    exhausted = (due <= watermark) & counts & (halves["checks"] >= rules.check_max)
    expired = (expires <= watermark) & ~(exhausted & (due < expires))
    no_longer_whole = spoiled(segment)
    gone = exhausted | expired | no_longer_whole
    _check(segment, np.flatnonzero((due <= watermark) & ~gone), now, rules)
    reason = np.where(expired, Reason.EXPIRED, Reason.CHECK_MAX)
    reason = np.where(no_longer_whole, Reason.REFUSED_PART, reason)[gone]
    decide(segment, np.flatnonzero(gone), State.DISCARDED, reason)


def _check(segment: Segment, due: np.ndarray, now: int, rules: Rules) -> None:
    """Send each a check with all parts that have landed: the next one, or the same again if it waits for its answer."""
    if not len(due):
        return
    halves = segment.halves
    is_next = ~is_check_outstanding(halves[due]) | rules.counts_unanswered
    halves["checks"][due] += is_next
    halves["repeat"][due] = np.where(is_next, 0, halves["repeat"][due] + 1)
    halves["due"][due] = now + pause_before_repeat(halves["repeat"][due], rules)
    checked = halves[due]
    same = {name: checked[name] for name in ("offset", "checks", "repeat", "round")}
    _emit(segment, Event.CHECK, checked, **same)
    parts, _ = parts_of(segment, checked["offset"])
    _emit(segment, Event.CHECK_PART, parts, queue=parts["part_queue"], offset=parts["part_offset"])


def _emit(segment: Segment, event: Event, rows: Rows, **columns: object) -> None:
    segment.events.append(make(EVENT, len(rows), event=event, first_offset=rows["offset"], **columns))
