"""The work around segments, without Spark: routes rows, calls segments that are due, keeps their state, crashes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commitlake.protocol.statemachine.advance import advance
from commitlake.protocol.statemachine.model import Rules
from commitlake.protocol.statemachine.rows import ROW, SEGMENT_SIZE, Rows, empty, make, pack, unpack
from commitlake.protocol.states import Kind, Source
from commitlake.testing.ledger import Keyed, Ledger, Occurred
from commitlake.testing.records import LandedMessage, LandedOp, half_row, op_rows

Key = tuple[Source, int, int]


class Segments:
    """All segments of a coordinator, and the ledger that they write.

    Args:
        rules: the timing rules.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules, self.ledger = rules, Ledger(rules)
        self.states: dict[Key, bytes] = {}
        self.next_due: dict[Key, int] = {}
        self.next: list[Keyed] = []

    def land(self, message: LandedMessage) -> None:
        """Put a message into its table; a batch reads it later."""
        ledger = self.ledger
        table = ledger.delayed if message.delayed else ledger.refused if message.refused else ledger.half
        table[message.at] = message

    def crash(self) -> None:
        """Loses the checkpoint: rows that are open, or have landed unread, come from the tables again."""
        self.states, self.next_due = {}, {}
        self.next = self.ledger.rebuild()

    def batch(self, now: int, watermark: int, read: Sequence[LandedMessage], ops: Sequence[LandedOp]) -> None:
        """One batch of coordination.

        Args:
            now: its time, ms since epoch, UTC.
            watermark: ms since epoch, UTC.
            read: messages that it reads, which have landed.
            ops: ops that it reads.
        """
        rows = self.next + [row_of_message(m) for m in read] + [row_of_op(op) for op in ops]
        self.ledger.op |= {op.key: op for op in ops}
        arrived: dict[Key, list[Rows]] = {}
        for src, queue, row in rows:
            arrived.setdefault((src, queue, int(row["offset"][0]) // SEGMENT_SIZE), []).append(row)
        events, tick = [], make(ROW, 1, kind=Kind.TICK)
        for key in {**arrived, **{key: None for key, at in self.next_due.items() if at <= watermark}}:
            events += self._advance(key, np.concatenate([*arrived.get(key, []), tick]), now, watermark)
        self.ledger.again = []
        self.ledger.record(now, events)
        self.next = self.ledger.again

    def _advance(self, key: Key, rows: Rows, now: int, watermark: int) -> list[Occurred]:
        step = advance(unpack(self.states[key]) if key in self.states else empty(), rows, now, self.rules, watermark)
        self.states.pop(key, None)
        self.next_due.pop(key, None)
        assert (step.next_due is None) == (len(step.state) == 0), (
            "a segment with nothing open has no state, and no other sleeps for ever"
        )
        if step.next_due is not None:
            assert step.next_due > min(now, watermark), "an immediate wake-up would never end"
            self.states[key], self.next_due[key] = pack(step.state), step.next_due
        return [(*key[:2], event) for event in step.events]


def row_of_message(m: LandedMessage) -> Keyed:
    """The row of a message, and the segment that it goes to."""
    return (Source.MESSAGES if m.delayed else Source.HALF, m.first_at.queue, half_row(m))


def row_of_op(op: LandedOp) -> Keyed:
    """The rows of an op, and the segment that they go to."""
    return (Source.MESSAGES if op.decision == Kind.RECALL else Source.HALF, op.listed[0].queue, op_rows(op))
