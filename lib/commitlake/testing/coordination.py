"""Coordination without Spark: segments that are called when they are due, and the tables that they write, as dicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from commitlake.protocol.encoding import Position
from commitlake.protocol.statemachine.advance import advance
from commitlake.protocol.statemachine.judge import FACT, judge
from commitlake.protocol.statemachine.model import Rules
from commitlake.protocol.statemachine.rows import ROW, SEGMENT_SIZE, Rows, empty, make, pack, unpack
from commitlake.protocol.states import Delivery, Event, Kind, Reason, Refusal, Ruling, Source, State
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

Segment = tuple[Source, int, int]
"""Source, queue, and offset of its rows by `SEGMENT_SIZE`."""
Occurred = tuple[Source, int, np.void]
"""An event of the segment of (source, queue)."""
Keyed = tuple[Source, int, Rows]
"""A row on its way to the segment of (source, queue, offset of the row)."""
Outcome = tuple[Any, ...]
"""A result of a segment or a resolution: `ended`, `refused`, `delivery` or `resume`; its key; its content."""
Reopened = Mapping[Position, LandedOp]
"""The first half messages that RESUMEs of the batch reopen, each with its RESUME."""


class Ledger:
    """The tables that coordination writes.

    Attributes:
        half: half messages that have landed.
        delayed: delayed messages that have landed.
        refused: further half messages that landing has refused.
        op: ops that have landed.
        transactions: ends of half messages, one for each round.
        resumes: accepted RESUMEs, by first half message.
        checks: checks in the order in which they were sent.
        rejected: ops that were refused, and why.
        deliveries: ends of messages with a delay, and when they were due.
        written: the outcomes that the last batch wrote.
        again: rows that the last batch sends back to segments, for the next one.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.half: dict[Position, LandedMessage] = {}
        self.delayed: dict[Position, LandedMessage] = {}
        self.refused: dict[Position, LandedMessage] = {}
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

    # ---- unmatched ops and parts, resolved from the tables as they were before the batch

    def resolve(self, events: list[Occurred]) -> list[Outcome]:
        """Ends, refusals and resumes to record; other rows go back to segments."""
        unmatched = [e for _, _, e in events if e["event"] in (Event.UNMATCHED_OP, Event.UNMATCHED_PART)]
        resumes = [e for e in unmatched if e["kind"] == Kind.RESUME]
        outcomes = first_resumes([outcome for e in resumes for outcome in self._resolve(e, {})])
        reopened = {op.listed[0]: op for kind, op, *_ in outcomes if kind == "resume"}
        for e in unmatched:
            if e["kind"] != Kind.RESUME:
                outcomes += self._resolve(e, reopened)
        return outcomes

    def _resolve(self, e: np.void, reopened: Reopened) -> Iterator[Outcome]:
        is_last = bool(e["last"])
        if e["event"] == Event.UNMATCHED_PART:
            return self._resolve_part(self.half[Position(int(e["queue"]), int(e["offset"]))], is_last, reopened)
        return self._resolve_op(self.op[op_key(e)], is_last, reopened)

    def _resolve_op(self, op: LandedOp, is_last: bool, reopened: Reopened) -> Iterator[Outcome]:
        verdict = self.judge(op, is_last, reopened)
        if verdict == Ruling.ACCEPT:
            yield "resume", op
        elif verdict == Ruling.REQUEUE:
            self.again.append(row_of_op(op, due=0))
        elif verdict > 0:
            yield "refused", op.key, Refusal(verdict)

    def _resolve_part(self, part: LandedMessage, is_last: bool, reopened: Reopened) -> Iterator[Outcome]:
        """A late part follows its first; one without a first that fits is an ORPHAN."""
        own = {"kind": Kind.PART, "tid": part.tid, "grp": part.group, "last": is_last}
        verdict, end = self._verdict(own | self._about_first(part.first_at, reopened)), self.ended(part.first_at)
        if verdict == Ruling.ORPHAN:
            yield "ended", part.at, End(State.DISCARDED, Reason.ORPHAN, None, 0, 0, -1)
        elif verdict == Ruling.FOLLOW and end:
            due = part.due(self.op[end.op].stored) if end.op and end.state == State.COMMITTED else -1
            yield "ended", part.at, end._replace(deliver_at=due)
            if due >= 0:
                self.again.append((Source.HALF, part.first_at.queue, self.timer(part, due)))
        else:
            self.again.append((Source.HALF, part.first_at.queue, half_row(part, due=0)))

    def judge(self, op: LandedOp, is_last: bool, reopened: Reopened) -> int:
        """The verdict on an op, by the tables and by the transactions that RESUMEs of the batch reopen."""
        own = {"kind": op.decision, "admin": op.admin, "tid": op.tid, "grp": op.group, "stored": op.stored}
        own |= {"op_offset": op.at.offset, "last": is_last}
        if op.decision == Kind.RECALL:
            return self._verdict(own | self._about_delayed(op.listed[0]))
        return self._verdict(own | self._about_first(op.listed[0], reopened) | self._about_further(op))

    def _verdict(self, facts: Mapping[str, int]) -> int:
        return int(judge(make(FACT, 1, **facts))[0])

    def _about_delayed(self, place: Position) -> dict[str, int]:
        message, end = self.delayed.get(place), self.deliveries.get(("messages", place))
        known = {"is_known": 1, "first_tid": message.tid, "first_grp": message.group} if message else {}
        return known | ({"state": end[0]} if end else {})

    def _about_first(self, place: Position, reopened: Reopened) -> dict[str, int]:
        first = self.half.get(place)
        if first is None:
            return {}
        end = None if place in reopened else self.ended(place)
        about: dict[str, int] = {"is_known": 1, "is_part": first.first is not None, "is_final": self._is_final(first)}
        about |= {"first_tid": first.tid, "first_grp": first.group} | ({"state": end.state} if end else {})
        resumes = [*self.resumes.get(place, ()), *([reopened[place]] if place in reopened else [])]
        return about | ({"resumed": resumes[-1].stored, "resumed_at": resumes[-1].at.offset} if resumes else {})

    def _about_further(self, op: LandedOp) -> dict[str, int]:
        further = [self.half.get(place) for place in op.listed[1:]]
        known = [m for m in further if m]
        return {
            "missing": None in further,
            "other_tid": any(m.tid != op.tid for m in known),
            "other_grp": any(m.group != op.group for m in known),
            "foreign": any(m.first != op.listed[0] for m in known),
            "orphan": any(self._is_orphan(m.at) for m in known),
        }

    def _is_final(self, first: LandedMessage) -> bool:
        """Whether no RESUME may reopen it."""
        same = [m for m in self.refused.values() if (m.first, m.tid, m.group) == (first.at, first.tid, first.group)]
        return bool(same) or self._is_orphan(first.at)

    def _is_orphan(self, place: Position) -> bool:
        return any(end.reason == Reason.ORPHAN for end in self.transactions.get(place, ()))

    def timer(self, m: LandedMessage, due: int) -> Rows:
        """The row of a committed half message that waits until `due`."""
        own = (
            {"part_queue": m.first and m.at.queue, "part_offset": m.at.offset}
            if m.first
            else {"part_offset": m.at.offset}
        )
        return make(ROW, 1, kind=Kind.WAITING, offset=m.first_at.offset, deliver_at=due, **own)

    # ---- records

    def record(self, now: int, events: list[Occurred]) -> None:
        """Write the events of the segments in a batch at `now` (ms since epoch, UTC)."""
        records = self.resolve(events)
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
                # A message that was due when Kafka stored it may be delivered after the clock was set back.
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
        """Fails where an outcome would be recorded twice."""
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
        rows = (half_row(first, **self.opened(first)), *map(half_row, parts))
        self.again += [(Source.HALF, first.at.queue, row) for row in rows]

    def opened(self, first: LandedMessage) -> dict[str, int]:
        """Columns of a first half message's row that its last RESUME sets; none where it was never reopened."""
        resumes = self.resumes.get(first.at)
        if not resumes:
            return {}
        at, stored = resumes[-1].at, resumes[-1].stored
        return {
            "round": len(resumes), "op_offset": at.offset, "since": stored, "due": stored + self.rules.timeout_ms + 1,
        }  # fmt: skip


class Segments:
    """All segments of a coordinator, and the ledger that they write."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.ledger = rules, Ledger(rules)
        self.states: dict[Segment, bytes] = {}
        self.next_due: dict[Segment, int] = {}
        self.next: list[Keyed] = []

    def land(self, message: LandedMessage) -> None:
        """Put a message into its table; a batch reads it later."""
        ledger = self.ledger
        table = ledger.delayed if message.delayed else ledger.refused if message.refused else ledger.half
        table[message.at] = message

    def batch(self, now: int, watermark: int, read: Sequence[LandedMessage], ops: Sequence[LandedOp]) -> None:
        """One batch of coordination. Times are ms since epoch, UTC; the messages that it reads have landed."""
        rows = self.next + [row_of_message(m) for m in read] + [row_of_op(op) for op in ops]
        self.ledger.op |= {op.key: op for op in ops}
        arrived: dict[Segment, list[Rows]] = {}
        for src, queue, row in rows:
            arrived.setdefault((src, queue, int(row["offset"][0]) // SEGMENT_SIZE), []).append(row)
        events, tick = [], make(ROW, 1, kind=Kind.TICK)
        for key in {**arrived, **{key: None for key, at in self.next_due.items() if at <= watermark}}:
            events += self._advance(key, np.concatenate([*arrived.get(key, []), tick]), now, watermark)
        self.ledger.again = []
        self.ledger.record(now, events)
        self.next = self.ledger.again

    def _advance(self, key: Segment, rows: Rows, now: int, watermark: int) -> list[Occurred]:
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


def row_of_op(op: LandedOp, due: int = -1) -> Keyed:
    """The rows of an op, and the segment that they go to; `due` as in `op_rows`."""
    return (Source.MESSAGES if op.decision == Kind.RECALL else Source.HALF, op.listed[0].queue, op_rows(op, due))


def first_resumes(records: list[Outcome]) -> list[Outcome]:
    """Of several RESUMEs of a transaction the first is accepted; for the others it is no longer discarded."""
    resumes = sorted((op for kind, op, *_ in records if kind == "resume"), key=lambda op: op.order)
    first = {op.listed[0]: op for op in reversed(resumes)}
    late = [("refused", op.key, Refusal.NOT_DISCARDED) for op in resumes if op != first[op.listed[0]]]
    ends = [entry for entry in records if entry[0] != "resume"]
    return ends + late + [("resume", op) for op in first.values()]


def op_key(e: np.void) -> OpKey:
    """The op that an event is about, or that caused it."""
    return (int(e["op_queue"]), int(e["op_offset"]), int(e["admin"]))


def own(queue: int, segment_queue: int) -> int:
    """The queue of an event's message; -1 stands for the segment's."""
    return segment_queue if queue < 0 else int(queue)


def end_of(e: np.void) -> End:
    """The end that a DECIDED event reports."""
    op = op_key(e) if e["op_queue"] >= 0 else None
    return End(State(e["state"]), Reason(e["reason"]), op, int(e["checks"]), int(e["round"]), int(e["deliver_at"]))
