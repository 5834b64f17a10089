"""What the rules work on: the timing rules, an open segment, and the outcome of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from commitlake.statemachine.rows import Rows, concat


@dataclass(frozen=True)
class Rules:
    """The timing rules, all durations in ms (contract 4.2 to 4.5)."""

    timeout_ms: int
    check_interval_ms: int
    check_max: int
    retention_ms: int
    op_park_ms: int


@dataclass
class Segment:
    """What is open in a segment, and what was said of it in this batch.

    `halves` is sorted by offset. The last `fresh_ops` of `ops` and `fresh_parts` of `parts` came in this batch. A part
    that has joined its first half message has `since` -1, a parked one the time when it was first seen.
    """

    halves: Rows
    parts: Rows
    ops: Rows
    listed: Rows
    timers: Rows
    fresh_ops: int
    fresh_parts: int
    events: list[Rows] = field(default_factory=list)

    def open_rows(self) -> Rows:
        """All that the next batch must know."""
        return concat([self.halves, self.parts, self.ops, self.listed, self.timers])


@dataclass(frozen=True)
class Step:
    """The outcome of a batch: the new state, the events, and when to wake next (ms since epoch, UTC; None: never)."""

    state: Rows
    events: Rows
    wake_at: int | None
