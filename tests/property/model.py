"""The rules of the contract: one message at a time, plain dicts, every fact kept, no thought of speed; and crashes."""

from __future__ import annotations

from types import SimpleNamespace as Half

import numpy as np

from commitlake.protocol.encoding import Position as Place
from commitlake.protocol.statemachine.deadlines import pause_before_repeat
from commitlake.protocol.statemachine.model import Rules
from commitlake.protocol.statemachine.rows import Rows
from commitlake.protocol.states import Delivery, Kind, Reason, Refusal, Ruling, Source, State
from commitlake.testing.coordination import Keyed, Ledger, Segments, row_of_message, row_of_op
from commitlake.testing.records import Check, Delivered, End, OpKey, half_row
from commitlake.testing.records import LandedMessage as Message
from commitlake.testing.records import LandedOp as Op

HOUR_MS = 3_600_000
DONE = "done"
Verdict = Refusal | str | None  # an op is refused, needs no more, or waits on


class Model:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.halves: dict[Place, Half] = {}
        self.delayed: dict[Place, Message] = {}
        self.timers: dict[Delivered, int] = {}
        self.waiting: list[Op] = []
        self.refused: dict[OpKey, Refusal] = {}
        self.deliveries: dict[Delivered, tuple[Delivery, int]] = {}
        self.checks: list[Check] = []
        self.resumed: dict[Op, Half] = {}
        self.refused_parts: list[Half] = []

    def land(self, m: Message) -> None:
        grace = self.rules.timeout_ms if m.immunity < 0 else m.immunity * 1000
        half = Half(m=m, since=m.stored, checks=0, round=0, resume=None, seen=False, end=None, ends=[])
        half.gone, half.due, half.repeat = False, m.stored + grace + 1, None  # age > grace; no check is out
        if m.delayed:
            self.delayed[m.at] = m
        elif m.refused:
            self.refused_parts.append(half)
        else:
            self.halves[m.at] = half

    def crash(self) -> None:
        for part in self.refused_parts:
            part.gone = False

    def batch(self, now: int, landed: int, read: list[Message], ops: list[Op]) -> None:
        self.now, self.landed = now, min(now, landed)
        self.reopen()
        self.timers |= {("messages", m.at): m.deliver_at for m in read if m.delayed}
        for h in [*self.halves.values(), *self.refused_parts]:
            h.seen = h.seen or h.m in read
            h.was = h.end  # what comes late is judged by how its batch found things
        answers, ops = ([op for op in ops if (op.decision == Kind.UNKNOWN) == is_answer] for is_answer in (True, False))
        self.waiting += ops
        for op in sorted(self.waiting, key=lambda op: op.order):  # ops before deadlines
            self.judge(op)
        for op in sorted(answers, key=lambda op: op.order):
            self.answer(op)
        for h in [h for h in self.halves.values() if h.seen and not h.end]:
            self.follow(h) if h.m.first else self.deadline(h)
        for key in [key for key, due in self.timers.items() if due <= self.landed or due <= self.stored(key)]:
            self.deliveries[key] = (Delivery.DELIVERED, self.timers.pop(key))
        for part in self.refused_parts:
            part.gone = part.gone or (part.seen and self.over(part.m))

    def is_spoiled(self, h: Half) -> bool:
        """A refused part of it has come, not long ago: its first half message lands before it."""
        return any(part.seen and not part.gone for part in self.parts_refused_of(h))

    def parts_refused_of(self, h: Half) -> list[Half]:
        same = [part for part in self.refused_parts if (part.m.tid, part.m.group) == (h.m.tid, h.m.group)]
        return [part for part in same if part.m.first == h.m.at]

    def stored(self, key: Delivered) -> int:
        """Of a delayed message: one that was due when it came can't be recalled in time."""
        return self.delayed[key[1]].stored if key[0] == "messages" else -1

    def over(self, waiting: Op | Message) -> bool:
        """All that Kafka held when it was stored has landed, and its time is up."""
        return self.landed - waiting.stored >= self.rules.op_park_ms

    def judge(self, op: Op) -> None:
        rule = {Kind.RECALL: self.recall, Kind.RESUME: self.resume}.get(op.decision, self.decide)
        verdict = rule(op)
        if isinstance(verdict, Refusal):
            self.refused[op.key] = verdict
        if verdict:
            self.waiting.remove(op)

    def decide(self, op: Op) -> Verdict:
        h = self.halves.get(op.listed[0])
        if h and h.seen and not h.m.first and not h.was and is_after(op, h.resume):
            if reason := wrong(op, [h]):
                return reason
            can_apply = op.decision == Kind.ROLLBACK or not self.is_spoiled(h)
            if not h.end and can_apply and {*op.listed} <= {m.m.at for m in self.whole(h) if not m.end}:
                return self.end(self.whole(h), End(state_by(op), reason_of(op), op.key, h.checks, h.round, -1), op)
        return self.late(op, h) if self.over(op) else None

    def late(self, op: Op, first: Half | None) -> Verdict:
        found = [self.halves.get(place) for place in op.listed]
        known = [h for h in found if h]
        orphan = any(h.was and h.was.reason == Reason.ORPHAN for h in known)
        if reason := wrong(op, known):
            return reason
        if first and (first.m.first or any(h.m.first != first.m.at for h in known[1:])):
            return Refusal.BAD_FIRST_HALF
        is_reopened = any(h is first and is_after(op, resume) for resume, h in self.resumed.items())
        if first and first.was and first.was.state != state_by(op) and not is_reopened:
            return Refusal[f"ALREADY_{first.was.state.name}"]
        if first and (orphan or not (first.was or is_after(op, first.resume))):
            return Refusal.ALREADY_DISCARDED
        if None in found:
            return Refusal.NO_HALF_MESSAGE
        return DONE if all(h.was for h in known) and not is_reopened else None  # harmless; else not yet read

    def resume(self, op: Op) -> Verdict:
        h = self.halves.get(op.listed[0])
        if h is None:
            return Refusal.NO_HALF_MESSAGE  # what it may reopen has ended before it was sent
        discarded = h.was and h.was.state == State.DISCARDED and h not in self.resumed.values()
        discarded = discarded and not self.parts_refused_of(h)
        reason = wrong(op, [h]) or (None if discarded else Refusal.NOT_DISCARDED)
        self.resumed |= {} if reason else {op: h}
        return reason or DONE

    def reopen(self) -> None:
        """Whole transactions, in the batch after the RESUME."""
        for op, h in self.resumed.items():
            for m in self.whole(h):
                m.end = m.end if m.end and m.end.reason == Reason.ORPHAN else None
            h.checks, h.round, h.repeat, h.resume, h.since = 0, h.round + 1, None, op, op.stored
            h.due = op.stored + self.rules.timeout_ms + 1
        self.resumed = {}

    def recall(self, op: Op) -> Verdict:
        key, m = ("messages", op.listed[0]), self.delayed.get(op.listed[0])
        if m is None or (m.tid, m.group) != (op.tid, op.group):
            return Refusal.NO_DELAYED_MESSAGE if m or self.over(op) else None
        if key in self.timers:
            self.deliveries[key] = (Delivery.RECALLED, self.timers.pop(key))
        late = key in self.deliveries and self.deliveries[key][0] == Delivery.DELIVERED
        return Refusal.RECALL_TOO_LATE if late else DONE if key in self.deliveries else None

    def answer(self, op: Op) -> None:
        """The outcome is still unknown: the next check comes an interval later."""
        h = self.halves.get(op.listed[0])
        if h is None or not h.seen or h.m.first or h.end or h.repeat is None or wrong(op, [h]):
            return
        if op.check == (h.round, h.checks) or (op.check is None and op.stored > h.asked):
            h.repeat, h.due = None, op.stored + self.rules.check_interval_ms

    def deadline(self, h: Half) -> None:
        expires = h.since + self.rules.retention_ms + 1  # older than retention
        waits = h.repeat is not None and not self.rules.counts_unanswered
        exhausted = h.due <= self.landed and not waits and h.checks >= self.rules.check_max and h.due < expires
        is_spoiled = self.is_spoiled(h)
        if exhausted or expires <= self.landed or is_spoiled:
            reason = Reason.REFUSED_PART if is_spoiled else Reason.CHECK_MAX if exhausted else Reason.EXPIRED
            self.end(self.whole(h), End(State.DISCARDED, reason, None, h.checks, h.round, -1))
        elif h.due <= self.landed:
            h.checks, h.repeat = (h.checks, h.repeat + 1) if waits else (h.checks + 1, 0)
            repeats = min(self.rules.check_repeat_ms * 2**h.repeat, HOUR_MS)
            h.asked = self.now
            h.due = self.now + (self.rules.check_interval_ms if self.rules.counts_unanswered else repeats)
            landed = frozenset(m.m.at for m in self.whole(h) if not m.end)
            self.checks.append((self.now, h.m.at, h.round, h.checks, h.repeat, landed))

    def follow(self, part: Half) -> None:
        """A part that comes late goes the way of its first; without one that fits it is an ORPHAN."""
        h = self.halves.get(part.m.first)
        first = h if h and h.seen and not h.m.first else None
        if first and part in self.whole(first):
            is_known = first.end and self.landed >= part.m.stored and first not in self.resumed.values()
            self.end([part] if is_known else [], first.end, first.end and first.by)
        elif first or (self.over(part.m) and (h is None or h.seen)):
            self.end([part], End(State.DISCARDED, Reason.ORPHAN, None, 0, 0, -1))

    def whole(self, h: Half) -> list[Half]:
        """The transaction's half messages that coordination has read."""
        same = [m for m in self.halves.values() if (m.m.tid, m.m.group) == (h.m.tid, h.m.group)]
        return [h] + [m for m in same if m.m.first == h.m.at and m.seen]

    def end(self, halves: list[Half], end: End, op: Op | None = None) -> Verdict:
        for h in [h for h in halves if not h.end]:
            due = h.m.due(op.stored) if op and end.state == State.COMMITTED else -1
            h.end, h.by = end._replace(deliver_at=due), op
            h.ends.append(h.end)
            self.timers |= {("half", h.m.at): due} if due >= 0 else {}
        return DONE


def state_by(op: Op) -> State:
    return State.COMMITTED if op.decision == Kind.COMMIT else State.ROLLED_BACK


def reason_of(op: Op) -> Reason:
    return Reason.ADMIN if op.admin else Reason.CHECK if op.from_check else Reason.DIRECT


def is_after(op: Op, resume: Op | None) -> bool:
    """In the same millisecond only an admin record can be after a RESUME."""
    return resume is None or op.stored > resume.stored or (op.admin and op.at.offset > resume.at.offset)


def wrong(op: Op, known: list[Half]) -> Refusal | None:
    if {h.m.tid for h in known} - {op.tid}:
        return Refusal.WRONG_TRANSACTION_ID
    return Refusal.WRONG_PRODUCER_GROUP if {h.m.group for h in known} - {op.group} and not op.admin else None


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
