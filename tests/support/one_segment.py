"""One segment of half queue 0, driven batch by batch; its events become readable."""

from __future__ import annotations

from typing import Any

import numpy as np

from commitlake.protocol.encoding import Position as Place
from commitlake.protocol.statemachine.advance import advance
from commitlake.protocol.statemachine.model import Rules
from commitlake.protocol.statemachine.rows import Rows, empty
from commitlake.protocol.states import Event, Kind, Reason, Refusal, State
from commitlake.testing.records import LandedMessage as Message
from commitlake.testing.records import LandedOp as Op
from commitlake.testing.records import half_row, op_rows

RULES = {
    "timeout_ms": 6_000,
    "check_interval_ms": 30_000,
    "check_repeat_ms": 300_000,
    "check_max": 2,
    "retention_ms": 1_000_000,
    "op_park_ms": 600_000,
}
H = Place(0, 7)
T = 1_000_000
"""The time when everything is stored, unless a test says otherwise."""
Readable = tuple[str | int, ...]
"""An event: first what it is about, an offset or a position, then its outcome."""


class OneSegment:
    def __init__(self, *, counts_unanswered: bool = False, **rules: int) -> None:
        self.rules = Rules(**(RULES | rules), counts_unanswered=counts_unanswered)
        self.state = empty()
        self.next_due: int | None = None

    def batch(self, now: int, *arrived: Rows, watermark: int | None = None) -> dict[str, list[Readable]]:
        """The events by name."""
        step = advance(self.state, np.concatenate([empty(), *arrived]), now, self.rules, watermark)
        self.state, self.next_due = step.state, step.next_due
        named: dict[str, list[Readable]] = {}
        for event in step.events:
            named.setdefault(Event(event["event"]).name, []).append(readable(event))
        return named

    def open(self) -> int:
        """Rows that are kept for the next batch."""
        return len(self.state)


def readable(e: np.void) -> Readable:
    kind, offset = Event(e["event"]), int(e["offset"])
    if kind == Event.DECIDED:
        return (offset, State(e["state"]).name, Reason(e["reason"]).name)
    if kind == Event.CHECK:
        return (offset, int(e["round"]), int(e["checks"]), int(e["repeat"]))
    if kind == Event.REFUSED:
        return (int(e["op_offset"]), Refusal(e["reason"]).name)
    if kind == Event.UNMATCHED_OP:
        return (int(e["op_offset"]), int(e["last"]))
    if kind == Event.DELIVERY:
        return (offset, "RECALLED" if e["state"] == 2 else "DELIVERED", int(e["deliver_at"]))
    return (int(e["queue"]), offset, *([int(e["last"])] if kind == Event.UNMATCHED_PART else []))


def half(at: Place = H, stored: int = T, **fields: Any) -> Rows:
    return half_row(Message(at, stored, **fields))


def reopened(at: Place = H, resumed: int = T, due: int = T + 6_001, offset: int = 0) -> Rows:
    """A half message as an accepted RESUME brings it again: record `offset` of `admin`, stored at `resumed`."""
    return half_row(Message(at, T - 500_000), round=1, since=resumed, due=due, op_offset=offset)


def part(at: Place, first: Place = H, due: int = -1, **fields: Any) -> Rows:
    """A part; `due` is 0 when it was unmatched before."""
    return half_row(Message(at, T, first, **fields), due=due)


def refused(at: Place, first: Place = H, stored: int = T, **fields: Any) -> Rows:
    """A part that landing has refused."""
    return half_row(Message(at, stored, first, refused=True, **fields))


def delayed(at: Place, due: int, **fields: Any) -> Rows:
    return half_row(Message(at, T, deliver_at=due, delayed=True, **fields))


def op(decision: Kind, offset: int = 0, stored: int = T, listed: tuple[Place, ...] = (H,), **fields: Any) -> Rows:
    queue, due = fields.pop("queue", 0), fields.pop("due", -1)
    return op_rows(Op(Place(queue, offset), stored, decision, listed, **fields), due)


def commit(offset: int = 0, **fields: Any) -> Rows:
    return op(Kind.COMMIT, offset, **fields)


def unknown(stored: int, offset: int = 0, **fields: Any) -> Rows:
    """The answer UNKNOWN to the check that is out, or to `check`, its round and number."""
    return op(Kind.UNKNOWN, offset, stored, **{"from_check": True, **fields})


def rollback(offset: int = 0, **fields: Any) -> Rows:
    return op(Kind.ROLLBACK, offset, **fields)


def resume(offset: int = 0, **fields: Any) -> Rows:
    return op(Kind.RESUME, offset, admin=True, **fields)


def recall(at: Place, offset: int = 0, **fields: Any) -> Rows:
    return op(Kind.RECALL, offset, listed=(at,), **fields)
