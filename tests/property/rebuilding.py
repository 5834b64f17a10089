"""A crash of segments: their state is lost, and what is open is worked out from the tables, as a start does it."""

from __future__ import annotations

import numpy as np

from commitlake.protocol.statemachine.deadlines import pause_before_repeat
from commitlake.protocol.statemachine.rows import Rows
from commitlake.protocol.states import Kind, Ruling, Source
from commitlake.testing.coordination import Keyed, Ledger, Segments, row_of_message, row_of_op
from commitlake.testing.records import LandedMessage as Message
from commitlake.testing.records import LandedOp as Op
from commitlake.testing.records import half_row


def crash(segments: Segments) -> None:
    """Loses the checkpoint: rows that are open, or have landed unread, come from the tables again."""
    segments.states, segments.next_due = {}, {}
    segments.next = rebuilt(segments.ledger)


def rebuilt(ledger: Ledger) -> list[Keyed]:
    """Rows of open messages, and of ops that are neither decided, refused nor without effect."""
    halves = [m for m in ledger.half.values() if not ledger.ended(m.at)]
    halves += [m for m in ledger.refused.values() if m.first_at not in ledger.half or not ledger.ended(m.first_at)]
    rows = [(Source.HALF, m.first_at.queue, half_row(m) if m.first else open_row(ledger, m)) for m in halves]
    rows += [
        (Source.HALF, ledger.half[at].first_at.queue, ledger.timer(ledger.half[at], ends[-1].deliver_at))
        for at, ends in ledger.transactions.items()
        if ends[-1].deliver_at >= 0 and ("half", at) not in ledger.deliveries
    ]
    rows += [row_of_message(m) for m in ledger.delayed.values() if ("messages", m.at) not in ledger.deliveries]
    return rows + [row_of_op(op) for op in ledger.op.values() if is_open(ledger, op)]


def open_row(ledger: Ledger, first: Message) -> Rows:
    """The row of an open first half message."""
    columns = ledger.opened(first)
    asked = [check for check in ledger.checks if check[1:3] == (first.at, columns.get("round", 0))]
    if asked:
        at, _, round_, number, repeat, _ = asked[-1]
        answered = answered_at(ledger, first, (round_, number), at)
        repeat_at = at + int(pause_before_repeat(np.array([repeat]), ledger.rules)[0])
        due = repeat_at if answered is None else answered + ledger.rules.check_interval_ms
        columns |= {"checks": number, "repeat": repeat if answered is None else -1, "due": due}
    return half_row(first, **columns)


def answered_at(ledger: Ledger, first: Message, check: tuple[int, int], asked: int) -> int | None:
    """When the first UNKNOWN that fits a check was stored."""
    answers = [op for op in ledger.op.values() if op.decision == Kind.UNKNOWN and op.listed[0] == first.at]
    fits = [op for op in answers if op.check == check or (op.check is None and op.stored > asked)]
    return min((op.stored for op in fits if (op.tid, op.group) == (first.tid, first.group)), default=None)


def is_open(ledger: Ledger, op: Op) -> bool:
    """Whether an op still waits."""
    decided = any(end.op == op.key for ends in ledger.transactions.values() for end in ends)
    accepted = any(op in resumes for resumes in ledger.resumes.values())
    if decided or accepted or op.key in ledger.rejected:
        return False
    if op.decision in (Kind.RESUME, Kind.UNKNOWN):
        return op.decision == Kind.RESUME
    return ledger.judge(op, False, {}) != Ruling.NOTHING
