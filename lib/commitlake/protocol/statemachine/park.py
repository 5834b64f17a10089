"""What waits for its message: an early op, or a part before its first (contract 4.2, 4.8)."""

from __future__ import annotations

import numpy as np

from commitlake.protocol.statemachine.model import Rules, Segment
from commitlake.protocol.statemachine.ops import report
from commitlake.protocol.statemachine.parts import forget_listed, report_unmatched
from commitlake.protocol.statemachine.rows import Rows
from commitlake.protocol.states import Event


def stamp_seen(rows: Rows, now: int) -> Rows:
    """Start the park time of rows that have none: it counts from the batch that first sees a row, at `now`."""
    rows["since"] = np.where(rows["since"] < 0, now, rows["since"])
    return rows


def sweep(segment: Segment, now: int, rules: Rules) -> None:
    """Report ops and parts whose park time is over as unmatched, and drop them.

    Whether such an op was a duplicate, a conflict or about nothing is resolved from the tables, once, at the end.

    Args:
        segment: the open segment.
        now: the batch's time, ms since epoch, UTC.
        rules: the timing rules.
    """
    over = segment.ops["since"] + rules.op_park_ms <= now
    if over.any():
        report(segment, segment.ops[over], event=Event.UNMATCHED_OP, last=1)
        segment.ops = segment.ops[~over]
        forget_listed(segment)
    since = segment.parts["since"]
    late = (since >= 0) & (since + rules.op_park_ms <= now)
    if late.any():
        report_unmatched(segment, segment.parts[late], last=True)
        segment.parts = segment.parts[~late]
