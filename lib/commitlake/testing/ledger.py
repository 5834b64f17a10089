"""The tables as dicts: they record the events of segments, resolve what is unmatched, and rebuild what is open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from commitlake.protocol.encoding import Position
from commitlake.protocol.statemachine.deadlines import pause_before_repeat
from commitlake.protocol.statemachine.model import Rules
from commitlake.protocol.statemachine.rows import ROW, Rows, make
from commitlake.protocol.states import Delivery, Event, Kind, Reason, Refusal, Source, State
from commitlake.testing.records import (
    Check,
    Delivered,
    End,
    LandedMessage,
    LandedOp,
    OpKey,
    half_row,
    op_rows,
)

Occurred = tuple[Source, int, np.void]
"""An event of the segment of (source, queue)."""
Keyed = tuple[Source, int, Rows]
"""A row on its way to the segment of (source, queue, offset of the row)."""
Outcome = tuple[Any, ...]
"""What a segment or a resolution ended in: `ended`, `refused`, `delivery`, `resume`, `again`; its key; its content."""


class Ledger:
    """The tables that coordination writes.

    Args:
        rules: the timing rules.

    Attributes:
        half: half messages that have landed.
        delayed: delayed messages that have landed.
        op: ops that have landed.
        transactions: ends of half messages, of each round one.
        resumes: accepted RESUMEs, by first half message.
        checks: checks in the order in which they were asked.
        rejected: ops that were refused, and why.
        deliveries: ends of messages with a delay, and when they were due.
        written: what the last batch wrote.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.half: dict[Position, LandedMessage] = {}
        self.delayed: dict[Position, LandedMessage] = {}
        self.op: dict[OpKey, LandedOp] = {}
        self.transactions: dict[Position, list[End]] = {}
        self.resumes: dict[Position, list[LandedOp]] = {}
        self.checks: list[Check] = []
        self.rejected: dict[OpKey, Refusal] = {}
        self.deliveries: dict[Delivered, tuple[Delivery, int]] = {}
        self.written: list[Outcome] = []
        self.again: list[Keyed] = []

    def ended(self, place: Position) -> End | None:
        """The newest end, None while it is open; a RESUME of its first half message opens it again."""
        ends = self.transactions.get(place)
        return ends[-1] if ends and ends[-1].round >= self.rounds(place, ends[-1]) else None

    def rounds(self, place: Position, end: End) -> int:
        """How often its transaction was reopened; an ORPHAN never is."""
        return 0 if end.reason == Reason.ORPHAN else len(self.resumes.get(self.half[place].first_at, ()))

    # ---- what is unmatched, resolved from the tables as they were before the batch

    def resolve(self, events: list[Occurred]) -> tuple[list[Outcome], list[Keyed]]:
        """Ends, refusals and resumes to record, and the rows that go back to segments in the next batch."""
        outcomes: list[Outcome] = []
        for _, _, e in events:
            if e["event"] == Event.UNMATCHED_OP:
                outcomes += self._resolve_op(self.op[op_key(e)], bool(e["last"]))
            elif e["event"] == Event.UNMATCHED_PART:
                outcomes += self._resolve_part(self.half[Position(int(e["queue"]), int(e["offset"]))], bool(e["last"]))
        records = [outcome for outcome in outcomes if outcome[0] != "again"]
        again = [outcome for outcome in outcomes if outcome[0] == "again"]
        return first_resumes(records), [(src, queue, row) for _, src, queue, row in again]

    def _resolve_op(self, op: LandedOp, last: bool) -> Iterator[Outcome]:
        verdict = {Kind.RECALL: self.judge_recall, Kind.RESUME: self.judge_resume}.get(op.decision, self.judge)(
            op, last
        )
        if verdict == "accept":
            yield "resume", op
        elif verdict == "again":
            src = Source.MESSAGES if op.decision == Kind.RECALL else Source.HALF
            yield "again", src, op.listed[0].queue, op_rows(op, due=0)
        elif isinstance(verdict, Refusal):
            yield "refused", op.key, verdict

    def wrong(self, op: LandedOp, known: list[LandedMessage]) -> Refusal | None:
        """Whether an op names another id or group than what it lists."""
        if any(op.tid != m.tid for m in known):
            return Refusal.WRONG_TRANSACTION_ID
        other = not op.admin and any(op.group != m.group for m in known)
        return Refusal.WRONG_PRODUCER_GROUP if other else None

    def judge(self, op: LandedOp, last: bool = True) -> Refusal | str:
        """In the order of contract 4.8; NO_HALF_MESSAGE only when something listed never landed."""
        first, found = self.half.get(op.listed[0]), [self.half.get(place) for place in op.listed]
        known = [m for m in found if m]
        if reason := self.wrong(op, known):
            return reason
        if first and (first.first or any(m.first != first.at for m in known[1:])):
            return Refusal.BAD_FIRST_HALF
        end = self.ended(first.at) if first else None
        if end and end.state != op.state:
            return Refusal[f"ALREADY_{end.state.name}"]
        orphan = first and any(e.reason == Reason.ORPHAN for m in known for e in self.transactions.get(m.at, ()))
        resumes = self.resumes.get(first.at) if first else None
        before = first and not end and not op.after(resumes[-1] if resumes else None)
        if orphan or before:
            return Refusal.ALREADY_DISCARDED
        if None in found:
            return Refusal.NO_HALF_MESSAGE
        return "harmless" if all(self.ended(m.at) for m in known) else "again"

    def judge_resume(self, op: LandedOp, last: bool) -> Refusal | str:
        """Contract 4.6."""
        first = self.half.get(op.listed[0])
        if first is None:
            return Refusal.NO_HALF_MESSAGE
        if reason := self.wrong(op, [first]):
            return reason
        end = self.ended(first.at)
        return "accept" if end and end.state == State.DISCARDED else Refusal.NOT_DISCARDED

    def judge_recall(self, op: LandedOp, last: bool) -> Refusal | str:
        """Contract 4.10."""
        message, end = self.delayed.get(op.listed[0]), self.deliveries.get(("messages", op.listed[0]))
        if message is None:
            return Refusal.NO_DELAYED_MESSAGE if last else "again"
        if (op.tid, op.group) != (message.tid, message.group):
            return Refusal.NO_DELAYED_MESSAGE
        if end:
            return Refusal.RECALL_TOO_LATE if end[0] == Delivery.DELIVERED else "harmless"
        return "again"

    def _resolve_part(self, part: LandedMessage, last: bool) -> Iterator[Outcome]:
        """A late part follows its first; one without a first that fits is an ORPHAN."""
        first = self.half.get(part.first_at)
        stranger = first is not None and (first.first or (part.tid, part.group) != (first.tid, first.group))
        end = self.ended(first.at) if first and not first.first else None
        if stranger or (first is None and last):
            yield "ended", part.at, End(State.DISCARDED, Reason.ORPHAN, None, 0, 0, -1)
        elif end:
            due = part.due(self.op[end.op].stored) if end.op and end.state == State.COMMITTED else -1
            yield "ended", part.at, end._replace(deliver_at=due)
            if due >= 0:
                yield "again", Source.HALF, part.first_at.queue, self.timer(part, due)
        else:
            yield "again", Source.HALF, part.first_at.queue, half_row(part, due=0)

    def timer(self, m: LandedMessage, due: int) -> Rows:
        """The row of a committed half message that waits until `due`."""
        own = (
            {"part_queue": m.first and m.at.queue, "part_offset": m.at.offset}
            if m.first
            else {"part_offset": m.at.offset}
        )
        return make(ROW, 1, kind=Kind.WAITING, offset=m.first_at.offset, deliver_at=due, **own)

    # ---- what is recorded

    def record(self, now: int, events: list[Occurred]) -> None:
        """Write what the segments report in a batch at `now` (ms since epoch, UTC)."""
        records, self.again = self.resolve(events)
        parts: dict[Position, set[Position]] = {}
        for src, queue, e in events:
            at, first_at = Position(own(e["queue"], queue), int(e["offset"])), Position(queue, int(e["first_offset"]))
            if e["event"] == Event.CHECK_PART:
                parts.setdefault(first_at, set()).add(at)
            elif e["event"] == Event.REFUSED:
                records.append(("refused", op_key(e), Refusal(int(e["reason"]))))
            elif e["event"] == Event.DECIDED:
                records.append(("ended", at, end_of(e)))
            elif e["event"] == Event.DELIVERY:
                # What was due when Kafka stored it may come by a clock that was set back since.
                latest = max(now, self.delayed[at].stored) if src == Source.MESSAGES else now
                assert e["state"] == Delivery.RECALLED or e["deliver_at"] <= latest, "delivered early"
                records.append(("delivery", (src.name.lower(), at), (Delivery(int(e["state"])), int(e["deliver_at"]))))
        self.checks += [
            (now, at, int(e["round"]), int(e["checks"]), int(e["repeat"]), frozenset({at} | parts.get(at, set())))
            for _, queue, e in events
            if e["event"] == Event.CHECK and (at := Position(queue, int(e["offset"])))
        ]
        self.written = records
        for outcome in records:
            self._write(*outcome)

    def _write(self, kind: str, key: Any, content: Any = None) -> None:
        """Nothing is ever recorded twice."""
        if kind == "ended":
            assert self.ended(key) is None, f"{key} ended twice"
            self.transactions.setdefault(key, []).append(content)
        elif kind == "refused":
            assert key not in self.rejected, f"{self.op[key]} refused twice"
            self.rejected[key] = content
        elif kind == "delivery":
            assert key not in self.deliveries, f"{key} delivered twice"
            self.deliveries[key] = content
        else:
            self.resume(key)

    def resume(self, op: LandedOp) -> None:
        """Reopens a transaction whole: the first half message in a new round, every part discarded with it."""
        first = self.half[op.listed[0]]
        last = self.transactions[first.at][-1]
        parts = [
            m for m in self.half.values() if m.first == first.at and self.ended(m.at) and m.at in self.transactions
        ]
        parts = [m for m in parts if self.transactions[m.at][-1].reason != Reason.ORPHAN]
        self.resumes.setdefault(first.at, []).append(op)
        assert last.state == State.DISCARDED
        self.again += [(Source.HALF, first.at.queue, row) for row in (self.open_row(first), *map(half_row, parts))]

    # ---- what is open

    def open_row(self, first: LandedMessage) -> Rows:
        """The row of an open first half message."""
        resumes = self.resumes.get(first.at, [])
        columns: dict[str, int] = {"round": len(resumes), "checks": 0}
        if resumes:
            columns |= {"op_offset": resumes[-1].at.offset, "since": resumes[-1].stored}
            columns |= {"due": resumes[-1].stored + self.rules.timeout_ms + 1}
        asked = [check for check in self.checks if check[1:3] == (first.at, len(resumes))]
        if asked:
            at, _, round_, number, repeat, _ = asked[-1]
            answered = self.answered(first, (round_, number), at)
            repeat_at = at + int(pause_before_repeat(np.array([repeat]), self.rules)[0])
            due = repeat_at if answered is None else answered + self.rules.check_interval_ms
            columns |= {"checks": number, "repeat": repeat if answered is None else -1, "due": due}
        return half_row(first, **columns)

    def answered(self, first: LandedMessage, check: tuple[int, int], asked: int) -> int | None:
        """When the first UNKNOWN was stored that fits a check."""
        answers = [op for op in self.op.values() if op.decision == Kind.UNKNOWN and op.listed[0] == first.at]
        fits = [op for op in answers if op.check == check or (op.check is None and op.stored > asked)]
        return min((op.stored for op in fits if not self.wrong(op, [first])), default=None)

    def rebuild(self) -> list[Keyed]:
        """What is open, and ops that are neither decided, refused nor harmless."""
        halves = [m for m in self.half.values() if not self.ended(m.at)]
        rows = [(Source.HALF, m.first_at.queue, half_row(m) if m.first else self.open_row(m)) for m in halves]
        rows += [
            (Source.HALF, self.half[at].first_at.queue, self.timer(self.half[at], ends[-1].deliver_at))
            for at, ends in self.transactions.items()
            if ends[-1].deliver_at >= 0 and ("half", at) not in self.deliveries
        ]
        rows += [
            (Source.MESSAGES, m.at.queue, half_row(m))
            for m in self.delayed.values()
            if ("messages", m.at) not in self.deliveries
        ]
        return rows + [
            (Source.MESSAGES if op.decision == Kind.RECALL else Source.HALF, op.listed[0].queue, op_rows(op))
            for op in self.op.values()
            if self.open_op(op)
        ]

    def open_op(self, op: LandedOp) -> bool:
        """Whether an op waits on."""
        decided = any(end.op == op.key for ends in self.transactions.values() for end in ends)
        accepted = any(op in resumes for resumes in self.resumes.values())
        if decided or accepted or op.key in self.rejected:
            return False
        if op.decision in (Kind.RESUME, Kind.UNKNOWN):
            return op.decision == Kind.RESUME
        return (self.judge_recall if op.decision == Kind.RECALL else self.judge)(op, False) != "harmless"


def first_resumes(records: list[Outcome]) -> list[Outcome]:
    """Of several RESUMEs of a transaction the first is accepted; for the others it is no longer discarded."""
    resumes = sorted((op for kind, op, *_ in records if kind == "resume"), key=lambda op: op.order)
    first = {op.listed[0]: op for op in reversed(resumes)}
    late = [("refused", op.key, Refusal.NOT_DISCARDED) for op in resumes if op != first[op.listed[0]]]
    ends = [entry for entry in records if entry[0] != "resume"]
    return ends + late + [("resume", op) for op in first.values()]


def op_key(e: np.void) -> OpKey:
    """The op that an event is about, or by which it happened."""
    return (int(e["op_queue"]), int(e["op_offset"]), int(e["admin"]))


def own(queue: int, segment_queue: int) -> int:
    """The queue of what an event is about; -1 stands for the segment's."""
    return segment_queue if queue < 0 else int(queue)


def end_of(e: np.void) -> End:
    """The end that a DECIDED event tells."""
    op = op_key(e) if e["op_queue"] >= 0 else None
    return End(State(e["state"]), Reason(e["reason"]), op, int(e["checks"]), int(e["round"]), int(e["deliver_at"]))
