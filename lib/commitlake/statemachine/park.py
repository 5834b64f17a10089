"""What waits for its message: an early op, a part before its first (contract 4.2, 4.8)."""

from __future__ import annotations

import numpy as np

from commitlake.protocol.states import Event
from commitlake.statemachine.model import Rules, Segment
from commitlake.statemachine.ops import op_events
from commitlake.statemachine.parts import ask, forget_listed
from commitlake.statemachine.rows import Rows


def stamp_seen(rows: Rows, now: int) -> Rows:
    """The park time counts from the batch that first saw a row."""
    rows["since"] = np.where(rows["since"] < 0, now, rows["since"])
    return rows


def sweep(segment: Segment, now: int, rules: Rules) -> None:
    """Asks the ledger about ops and parts whose park time is over, and lets them go.

    Whether an op was a duplicate, a conflict or about nothing only the ledger can tell: it is asked once, at the end.
    """
    over = segment.ops["since"] + rules.op_park_ms <= now
    if over.any():
        segment.events.append(op_events(segment.ops[over], event=Event.ASK_OP, last=1))
        segment.ops = segment.ops[~over]
        forget_listed(segment)
    since = segment.parts["since"]
    late = (since >= 0) & (since + rules.op_park_ms <= now)
    if late.any():
        ask(segment, segment.parts[late], last=True)
        segment.parts = segment.parts[~late]
