"""Rows that wait for their message: an early op, or a part that came before its first (contract 4.2, 4.8, 4.10)."""

from __future__ import annotations

import numpy as np

from commitlake.protocol.statemachine.model import Rules, Segment
from commitlake.protocol.statemachine.ops import report
from commitlake.protocol.statemachine.parts import forget_listed, report_unmatched, waits
from commitlake.protocol.statemachine.rows import ABSENT, Longs, Rows
from commitlake.protocol.states import Event, Kind


def reported_at(rows: Rows, rules: Rules) -> Longs:
    """The watermark at which each op or part is reported as unmatched, ms since epoch, UTC.

    Its message may have ended, which only the tables know. A recall or a part is first looked up as soon as all records
    have landed that Kafka held when it was stored. A RESUME is looked up at once: the transaction that it may reopen
    ended before it was sent. All others wait for the park time.
    """
    over = rows["stored"] + rules.op_park_ms
    is_asked_early = np.isin(rows["kind"], (Kind.RECALL, Kind.PART)) & (rows["due"] == ABSENT)
    waits_until = np.where(is_asked_early, rows["stored"], over)
    return np.asarray(np.where(rows["kind"] == Kind.RESUME, ABSENT, waits_until))


def sweep(segment: Segment, watermark: int, rules: Rules) -> None:
    """Report ops and parts that have waited long enough as unmatched, and drop them.

    The resolution looks them up in the tables, and sends those back that must go on waiting.
    """
    told = reported_at(segment.ops, rules) <= watermark
    if told.any():
        ops = segment.ops[told]
        report(segment, ops, event=Event.UNMATCHED_OP, last=_is_over(ops, watermark, rules))
        segment.ops = segment.ops[~told]
        forget_listed(segment)
    told = waits(segment) & (reported_at(segment.parts, rules) <= watermark)
    if told.any():
        parts = segment.parts[told]
        report_unmatched(segment, parts, _is_over(parts, watermark, rules))
        segment.parts = segment.parts[~told]
    segment.refused = segment.refused[reported_at(segment.refused, rules) > watermark]


def _is_over(rows: Rows, watermark: int, rules: Rules) -> Longs:
    """1 where a message that has not landed by now counts as missing."""
    is_over = (rows["stored"] + rules.op_park_ms <= watermark) | (rows["kind"] == Kind.RESUME)
    return np.asarray(is_over, dtype=np.int64)
