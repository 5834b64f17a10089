"""An UNKNOWN answers the check that is out; the next one follows an interval later (contract 4.3).

A check stays in Kafka until its group reads it, so it is repeated only after long pauses (`deadlines`). A group that
returns after an hour finds each check four times, not 120 times.
"""

from __future__ import annotations

import numpy as np

from commitlake.protocol.statemachine.deadlines import is_check_outstanding, pause_before_repeat
from commitlake.protocol.statemachine.model import Rules, Segment
from commitlake.protocol.statemachine.rows import ABSENT, find


def apply(segment: Segment, rules: Rules) -> None:
    """End the checks that are answered; the next is due `check_interval` after the append time of the answer.

    An answer counts once, and only for the check that it names. An answer that names no check counts for the check that
    is out, if Kafka stored the answer after that check was last sent. An answer that fits no check changes nothing.
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
