"""Messages and ops that land, as plain records, and as the rows that the state machine reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from commitlake.protocol.encoding import Position
from commitlake.protocol.statemachine.rows import ROW, Rows, make
from commitlake.protocol.states import Kind, Reason, State

OpKey = tuple[int, int, int]
"""Queue and offset of an op or admin record, and whether it is of admin."""
Delivered = tuple[str, Position]
"""A message with a delay: `half` or `messages`, and its place."""
Check = tuple[int, Position, int, int, int, frozenset[Position]]
"""A check: its time, first half message, round, number and repeat, and all half messages that it names."""


@dataclass(frozen=True)
class LandedMessage:
    """A half message, or a delayed one: `tid` is then its message id, `group` its topic. Times in ms, -1 is absent."""

    at: Position
    stored: int
    first: Position | None = None
    tid: int = 1
    group: int = 1
    immunity: int = -1
    delay: int = -1
    deliver_at: int = -1
    delayed: bool = False
    refused: bool = False
    """Landing has refused it; it is a part."""

    @property
    def first_at(self) -> Position:
        """Position of its transaction's first half message."""
        return self.first or self.at

    def due(self, committed: int) -> int:
        """When it becomes visible (ms since epoch, UTC) after a COMMIT stored at `committed`; -1: at once."""
        if self.deliver_at >= 0:
            return self.deliver_at
        return committed + self.delay if self.delay >= 0 else -1


@dataclass(frozen=True)
class LandedOp:
    """An op or admin record; `listed` are its half messages, the first one first, or the one message of a RECALL."""

    at: Position
    stored: int
    decision: Kind
    listed: tuple[Position, ...]
    tid: int = 1
    group: int = 1
    admin: bool = False
    from_check: bool = False
    check: tuple[int, int] | None = None
    """Round and number of the check that an UNKNOWN names."""

    @property
    def order(self) -> tuple[int, int, int, bool]:
        """Sort key: ops of one batch apply in this order."""
        return (self.stored, *self.at, self.admin)

    @property
    def key(self) -> OpKey:
        """Its place, and whether it is of `admin`."""
        return (*self.at, int(self.admin))


class End(NamedTuple):
    """How a half message ended, as in a row of `transactions`."""

    state: State
    reason: Reason
    op: OpKey | None
    checks: int
    round: int
    deliver_at: int


def half_row(m: LandedMessage, **columns: object) -> Rows:
    """A message as a segment reads it; `columns` of `ROW` take precedence."""
    part_kind = Kind.REFUSED_PART if m.refused else Kind.PART
    kind = Kind.DELAYED if m.delayed else part_kind if m.first else Kind.HALF
    part = {"part_queue": m.at.queue, "part_offset": m.at.offset} if m.first else {}
    given = {"checks": 0, "round": 0, "kind": kind, "offset": m.first_at.offset, **part, **columns}
    return make(
        ROW,
        1,
        tid=m.tid,
        grp=m.group,
        stored=m.stored,
        immunity=m.immunity,
        delay=m.delay,
        deliver_at=m.deliver_at,
        **given,
    )


def op_rows(op: LandedOp, due: int = -1) -> Rows:
    """An op as a segment reads it: a row for itself, and one for each further half message that a decision lists.

    `due` is 0 when the op was unmatched before.
    """
    about = {"offset": op.listed[0].offset, "op_queue": op.at.queue, "op_offset": op.at.offset, "admin": int(op.admin)}
    further = () if op.decision == Kind.UNKNOWN else op.listed[1:]
    named = {} if op.check is None else dict(zip(("round", "checks"), op.check, strict=True))
    head = make(
        ROW,
        1,
        kind=op.decision,
        from_check=int(op.from_check),
        listed=len(further),
        tid=op.tid,
        grp=op.group,
        stored=op.stored,
        due=due,
        **about,
        **named,
    )
    tail = [make(ROW, 1, kind=Kind.LISTED, part_queue=p.queue, part_offset=p.offset, **about) for p in further]
    return np.concatenate([head, *tail])
