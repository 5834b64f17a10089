"""An UNKNOWN answers the check that is out; the next one follows an interval later (contract 4.3).

A check is a question that stands in Kafka until its group reads it. Repeating it by the clock would only make the
backlog longer: a group that comes back after an hour would find each question 120 times.
"""

from __future__ import annotations

import numpy as np

from commitlake.protocol.states import Event
from commitlake.statemachine.model import Rules, Segment
from commitlake.statemachine.rows import ABSENT, EVENT, Rows, concat, find, make


def report_groups(segment: Segment) -> None:
    """Report each producer group that has answered a check in this batch, with the append time of its newest answer."""
    fresh = segment.ops[len(segment.ops) - segment.fresh_ops :]
    every = concat([fresh[(fresh["from_check"] == 1) & (fresh["admin"] == 0)], segment.answers])
    if len(every):
        newest = newest_of_each_group(every)
        columns = {"grp": newest["grp"], "deliver_at": newest["stored"]}
        segment.events.append(make(EVENT, len(newest), event=Event.HEARD, **columns))


def newest_of_each_group(rows: Rows) -> Rows:
    """The row with the newest `stored` of each `grp`, sorted by `grp`."""
    ordered: Rows = rows[np.lexsort((rows["stored"], rows["grp"]))]
    is_last = np.append(ordered["grp"][1:] != ordered["grp"][:-1], True)
    return np.asarray(ordered[is_last])


def apply(segment: Segment, rules: Rules) -> None:
    """End the checks that are answered, so that the next is due `check_interval` after the append time of the answer.

    An answer counts once, and only for the check that it names. One that names none is taken for one to the check that
    is out, if Kafka stored it after that was last asked. What fits no check changes nothing.

    Args:
        segment: the open segment.
        rules: the timing rules.
    """
    answers, halves = segment.answers, segment.halves
    at = find(halves["offset"], answers["offset"])
    answers, at = answers[at >= 0], at[at >= 0]
    if not len(answers):
        return
    half = halves[at]
    same = (answers["tid"] == half["tid"]) & (answers["grp"] == half["grp"])
    named = (answers["checks"] == half["checks"]) & (answers["round"] == half["round"])
    unnamed = (answers["checks"] == ABSENT) & (answers["stored"] > half["due"] - rules.check_repeat_ms)
    fits = np.flatnonzero(same & (named | unnamed) & (half["repeat"] >= 0))
    fits = fits[np.argsort(answers["stored"][fits], kind="stable")]
    answered, first = np.unique(at[fits], return_index=True)
    halves["repeat"][answered] = ABSENT
    halves["due"][answered] = answers["stored"][fits[first]] + rules.check_interval_ms
