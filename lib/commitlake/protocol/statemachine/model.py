"""The data of the rules: the timing rules, an open segment, and the outcome of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from commitlake.protocol.statemachine.rows import Rows, concat


@dataclass(frozen=True)
class Rules:
    """The timing rules (contract 4.2 to 4.5), as `config.TransactionConfig` has them."""

    timeout_ms: int
    check_interval_ms: int
    check_repeat_ms: int
    check_max: int
    retention_ms: int
    op_park_ms: int
    counts_unanswered: bool = False


@dataclass
class Segment:
    """The open rows of a segment, and the events of this batch.

    Attributes:
        halves: open first half messages, sorted by offset.
        parts: further half messages, of open first ones or waiting for them.
        refused: further half messages that landing has refused: their transactions can't be whole.
        ops: ops that wait for their message.
        listed: further half messages that these ops list.
        timers: messages with a delay that has not ended.
        answers: ops of this batch that say that the outcome is still unknown.
        events: arrays of `EVENT`s.
    """

    halves: Rows
    parts: Rows
    refused: Rows
    ops: Rows
    listed: Rows
    timers: Rows
    answers: Rows
    events: list[Rows] = field(default_factory=list)

    def open_rows(self) -> Rows:
        """All rows that the next batch needs."""
        return concat([self.halves, self.parts, self.refused, self.ops, self.listed, self.timers])


@dataclass(frozen=True)
class Step:
    """The outcome of a batch.

    Attributes:
        state: `ROW`s that are still open.
        events: `EVENT`s of this batch.
        next_due: when the next deadline is, ms since epoch, UTC; None: nothing is open.
    """

    state: Rows
    events: Rows
    next_due: int | None
