"""The rules as the contract tells them: one message at a time, plain dicts, every fact kept, no thought of speed."""

from __future__ import annotations

from types import SimpleNamespace as Half

from tests.property.records import End, Message, Op, Place

from commitlake.protocol.model import Rules
from commitlake.protocol.states import Delivery, Kind, Reason, Refusal, State


class Model:
    def __init__(self, rules: Rules) -> None:
        self.rules, self.halves, self.delayed = rules, {}, {}
        self.waiting: dict[Op, int] = {}  # op, and when it was first seen
        self.timers, self.refused, self.deliveries = {}, {}, {}
        self.checks: list[tuple] = []
        self.resumed: list[Op] = []

    def land(self, m: Message) -> None:
        if m.delayed:
            self.delayed[m.at] = Half(m=m, read=False)
        else:
            fresh = {"read": False, "end": None, "ends": [], "checks": 0, "round": 0, "resume": None, "seen": None}
            self.halves[m.at] = Half(m=m, since=m.stored, due=self.first_due(m), **fresh)

    def first_due(self, m: Message) -> int:
        return m.stored + max(self.rules.timeout_ms, m.immunity * 1000) + 1  # age > max(timeout, immunity)

    def crash(self) -> None:
        """What waits counts its time from the batch that first sees it again."""
        self.waiting = dict.fromkeys(self.waiting)
        for h in self.halves.values():
            h.seen = None

    def batch(self, now: int, read: list[Message], ops: list[Op]) -> None:
        self.now = now
        self.reopen()
        for m in read:
            self.read(m)
        for h in self.halves.values():
            h.seen = now if h.read and h.seen is None else h.seen
            h.was = h.end  # a late op is judged by how its batch found things
        fresh = [op for op in (*self.waiting, *ops) if self.waiting.get(op) is None]
        self.waiting |= dict.fromkeys(fresh, now)
        for op in sorted(self.waiting, key=lambda op: op.order):  # ops before deadlines
            self.apply(op, fresh=op in fresh)
        for h in [h for h in self.halves.values() if h.read and not h.end and not h.m.first]:
            self.deadline(h)
        for op in sorted(self.waiting, key=lambda op: op.order):
            if self.over(self.waiting[op]) and op.decision in (Kind.COMMIT, Kind.ROLLBACK):
                self.tell(op)
        for part in [h for h in self.halves.values() if h.read and not h.end and h.m.first]:
            self.follow(part)
        for key in [key for key, due in self.timers.items() if due <= now]:
            self.deliveries[key] = (Delivery.DELIVERED, self.timers.pop(key))

    def over(self, since: int) -> bool:
        return self.now - since >= self.rules.op_park_ms

    def read(self, m: Message) -> None:
        (self.delayed if m.delayed else self.halves)[m.at].read = True
        if m.delayed:
            self.timers["messages", m.at] = m.deliver_at

    def all_of(self, h: Half) -> list[Half]:
        """The transaction's half messages that coordination has read."""
        return [h] + [p for p in self.halves.values() if p.read and p.m.first == h.m.at and self.same(p, h)]

    def same(self, part: Half, h: Half) -> bool:
        return (part.m.tid, part.m.group) == (h.m.tid, h.m.group)

    def apply(self, op: Op, *, fresh: bool) -> None:
        h = self.halves.get(op.listed[0])
        if op.decision == Kind.RECALL:
            self.recall(op)
        elif op.decision == Kind.RESUME and (fresh or self.over(self.waiting[op])):
            self.resume(op, h)
        elif op.decision != Kind.RESUME and h and h.read and not h.m.first and not h.was and op.after(h.resume):
            if reason := self.wrong(op, [h]):
                self.refuse(op, reason)
            elif not h.end and {*op.listed} <= {p.m.at for p in self.all_of(h) if not p.end}:
                self.end(h, op.state, op.reason, op)
                del self.waiting[op]

    def wrong(self, op: Op, known: list[Half]) -> Refusal | None:
        if any(op.tid != h.m.tid for h in known):
            return Refusal.WRONG_TRANSACTION_ID
        other = not op.admin and any(op.group != h.m.group for h in known)
        return Refusal.WRONG_PRODUCER_GROUP if other else None

    def refuse(self, op: Op, reason: Refusal) -> None:
        assert op.key not in self.refused
        self.refused[op.key] = reason
        del self.waiting[op]

    def end(self, h: Half, state: State, reason: Reason, op: Op | None = None) -> None:
        for m in [m for m in self.all_of(h) if not m.end]:
            self.record(m, h, state, reason, op)

    def record(self, m: Half, h: Half, state: State, reason: Reason, op: Op | None = None) -> None:
        due = m.m.due(op.stored) if state == State.COMMITTED else -1
        m.end, m.by = End(state, reason, op and op.key, h.checks, h.round, due), op
        m.ends.append(m.end)
        if due >= 0:
            self.timers["half", m.m.at] = due

    def deadline(self, h: Half) -> None:
        expires = h.since + self.rules.retention_ms + 1  # older than retention
        if h.due <= self.now and h.checks >= self.rules.check_max and h.due < expires:
            self.end(h, State.DISCARDED, Reason.CHECK_MAX)
        elif expires <= self.now:
            self.end(h, State.DISCARDED, Reason.EXPIRED)
        elif h.due <= self.now:
            h.checks, h.due = h.checks + 1, self.now + self.rules.check_interval_ms
            landed = frozenset(m.m.at for m in self.all_of(h) if not m.end)
            self.checks.append((self.now, h.m.at, h.round, h.checks, landed))

    def follow(self, part: Half) -> None:
        h = self.halves.get(part.m.first)
        if h and h.read and not h.m.first and self.same(part, h):
            if h.end:
                self.record(part, Half(**vars(h) | {"checks": h.end.checks, "round": h.end.round}), *h.end[:2], h.by)
        elif (h and h.read and not h.m.first) or (self.over(part.seen) and not (h and not h.read)):
            self.record(part, Half(checks=0, round=0), State.DISCARDED, Reason.ORPHAN)

    def tell(self, op: Op) -> None:
        """Its park time is over."""
        found = [self.halves.get(place) for place in op.listed]
        known, first = [h for h in found if h], found[0]
        ends = [first.was.state] if first and first.was else []
        ends += [State.DISCARDED] if first and any(h.was and h.was.reason == Reason.ORPHAN for h in known) else []
        ends += [State.DISCARDED] if first and not first.was and not op.after(first.resume) else []
        conflict = next((state for state in ends if state != op.state), None)
        if reason := self.wrong(op, known):
            self.refuse(op, reason)
        elif first and (first.m.first or any(h.m.first != first.m.at for h in known[1:])):
            self.refuse(op, Refusal.BAD_FIRST_HALF)
        elif conflict:
            self.refuse(op, Refusal[f"ALREADY_{conflict.name}"])
        elif None in found:
            self.refuse(op, Refusal.NO_HALF_MESSAGE)
        elif all(h.was for h in found):
            del self.waiting[op]  # the same decision again is harmless; else it has landed and is not yet read

    def resume(self, op: Op, h: Half | None) -> None:
        if h is None:
            if self.over(self.waiting[op]):
                self.refuse(op, Refusal.NO_HALF_MESSAGE)
        elif reason := self.wrong(op, [h]):
            self.refuse(op, reason)
        elif not h.was or h.was.state != State.DISCARDED or any(r.listed[0] == h.m.at for r in self.resumed):
            self.refuse(op, Refusal.NOT_DISCARDED)
        else:
            self.resumed.append(op)
            del self.waiting[op]

    def reopen(self) -> None:
        """Reopens whole transactions, in the batch after the RESUME."""
        for op in self.resumed:
            h = self.halves[op.listed[0]]
            for m in self.all_of(h):
                m.end = m.end if m.end and m.end.reason == Reason.ORPHAN else None
            h.checks, h.round, h.resume, h.since = 0, h.round + 1, op, op.stored
            h.due = op.stored + self.rules.timeout_ms + 1
        self.resumed = []

    def recall(self, op: Op) -> None:
        place: Place = op.listed[0]
        message, late = self.delayed.get(place), self.over(self.waiting[op])
        if (message is None and late) or (message and (op.tid, op.group) != (message.m.tid, message.m.group)):
            self.refuse(op, Refusal.NO_DELAYED_MESSAGE)
        elif message and message.read and ("messages", place) in self.timers:
            self.deliveries["messages", place] = (Delivery.RECALLED, self.timers.pop(("messages", place)))
            del self.waiting[op]
        elif message and message.read:
            if self.deliveries["messages", place][0] == Delivery.DELIVERED:
                self.refuse(op, Refusal.RECALL_TOO_LATE)
            else:
                del self.waiting[op]
