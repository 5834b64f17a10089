"""The oracle of the campaign: Kafka's log and the producers' database against the tables, as any reader sees them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from tests.support import tables
from tests.support.kafka_log import DECISIONS, At, KafkaLog, Message, Op, Transaction
from tests.support.lake import Lake

import commitlake

_COLUMNS = {
    "half": ["queue", "queue_offset"],
    "op": ["queue", "op_offset", "admin"],
    "delayed": ["queue", "queue_offset"],
    "rejected": ["source", "kafka_partition", "kafka_offset", "reason"],
    "transactions": ["queue", "half_offset", "round", "state", "reason", "op_queue", "op_offset", "resolved_at"],
    "deliveries": ["source", "queue", "queue_offset", "state"],
}
_SHOWN = ["source", "source_queue", "source_offset", "source_index", "visible_at"]
_ENOUGH = 5
Row = dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """A row of the ledger, its time in ms since epoch; `op` is what decided it."""

    at: At
    round: int
    state: str
    reason: str
    op: At | None
    resolved: int


class Seen:
    """What stands in the tables. What is shown is read first: its row in the ledger was there before."""

    def __init__(self, lake: Lake) -> None:
        self.shown = [row for topic in lake.topics() for row in _read(lake, f"topics/{topic}", _SHOWN)]
        found = {name: _read(lake, name, columns) for name, columns in _COLUMNS.items()}
        self.shown_at = {_place(row): int(row["visible_at"].timestamp() * 1_000) for row in self.shown}
        self.landed = [("half", _at(row, "half")) for row in found["half"]]
        self.landed += [("op", _at(row, "admin" if row["admin"] else "op", "op_offset")) for row in found["op"]]
        self.landed += [("delayed", _at(row, "messages")) for row in found["delayed"]]
        self.delivered = [(_at(row, row["source"]), row["state"]) for row in found["deliveries"]]
        self.rejected = [(_rejected_at(row), str(row["reason"])) for row in found["rejected"]]
        self.ended = [_ended(row) for row in found["transactions"]]

    @property
    def rows(self) -> int:
        return len(self.shown) + len(self.ended) + len(self.delivered) + len(self.rejected) + len(self.landed)

    def newest(self) -> dict[At, Ended]:
        """The newest end of each half message."""
        return {each.at: each for each in sorted(self.ended, key=lambda each: each.round)}


class Oracle:
    """Says what is wrong.

    Attributes:
        decided: the producers' database: what they decided, by transaction id.
        margin_ms: by how much a recall comes before the message is due, to be in time.
    """

    def __init__(self, lake: Lake, log: KafkaLog, decided: Mapping[str, str], margin_ms: int = 0) -> None:
        self._lake, self._log, self.decided, self.margin_ms = lake, log, decided, margin_ms

    def look(self) -> Seen:
        """Reads the tables, then Kafka: what the tables name is there."""
        seen = Seen(self._lake)
        self._log.read()
        return seen

    # what must never be

    def wrong(self, seen: Seen) -> list[str]:
        """What must not be, whatever was killed."""
        transactions = self._log.transactions()
        firsts = {each.at: transaction for transaction in transactions.values() for each in transaction.messages}
        return [
            *self._doubled(seen),
            *self._wrong_ends(seen, firsts),
            *self._wrongly_shown(seen, firsts),
            *self._wrongly_refused(seen, firsts),
        ]

    def _doubled(self, seen: Seen) -> Iterator[str]:
        yield from _twice("shown", map(_place, seen.shown))
        yield from _twice("landed", seen.landed)
        yield from _twice("delivered", (at for at, _ in seen.delivered))
        yield from _twice("ended", ((each.at, each.round) for each in seen.ended))
        yield from _twice("rejected", (at for at, _ in seen.rejected))
        elsewhere = {at for _, at in seen.landed} | {At(*_place(row)[:3]) for row in seen.shown}
        for at, reason in seen.rejected:
            if at.source in ("half", "messages") and at in elsewhere:
                yield f"rejected as {reason} and landed: {at}"

    def _wrong_ends(self, seen: Seen, firsts: dict[At, Transaction]) -> Iterator[str]:
        ends = {(each.at, each.round): each for each in seen.ended}
        for each in seen.ended:
            transaction = firsts.get(each.at)
            if transaction is None:
                yield f"ended, but no half message: {each.at}"
                continue
            if len(transaction.resumes) < each.round:
                yield f"ended in round {each.round}, which no RESUME opened: {each.at}"
                continue
            first = ends.get((transaction.first.at, each.round))
            if first is None or first.state != each.state:
                yield f"a part that ended as {each.state}, unlike its first half message: {each.at} {transaction.first}"
            yield from self._wrongly_decided(each, transaction)

    def _wrongly_decided(self, end: Ended, transaction: Transaction) -> Iterator[str]:
        decisions = transaction.decisions(end.round)
        if end.state == "DISCARDED":
            yield from self._told_off(end, transaction, decisions)
            return
        op = next((op for op in decisions if op.at == end.op), None)
        if op is None or DECISIONS[op.decision] != end.state:
            yield f"{end.state} by {end.op}, which does not decide that: {end.at} {transaction.first.tid}"
            return
        if DECISIONS.get(self.decided.get(op.tid, "")) != end.state:
            yield f"{end.state}, but {self.decided.get(op.tid)} in the database: {end.at} {op.tid}"
        if end.state == "COMMITTED" and any(part.stored < op.stored for part in transaction.refused):
            yield f"COMMITTED, though a part of it was refused: {end.at} {op.tid}"
        for other in decisions:  # in one partition the order is certain
            is_before = other.at[:2] == op.at[:2] and other.at.offset < op.at.offset
            if is_before and other.decision != op.decision:
                yield f"{end.state} by {op.at}, but {other.decision} came before: {end.at} {transaction.first.tid}"

    def _told_off(self, end: Ended, transaction: Transaction, decisions: list[Op]) -> Iterator[str]:
        """Discarded without need: unasked, or though a decision was in Kafka."""
        timing = self._lake.config.transaction
        due = transaction.given_up_at(end.round, timing.check_max, timing.check_interval_ms)
        what = f"{end.at} {transaction.first.tid} round {end.round}"
        if end.reason == "REFUSED_PART" and transaction.refused:
            return
        if end.reason != "CHECK_MAX":
            yield f"told off as {end.reason}: {what}"
        elif due is None:
            yield f"told off, though not all its checks were answered: {what}"
        elif end.resolved < due:
            yield f"told off {due - end.resolved} ms early: {what}"
        else:
            early = next((op for op in decisions if op.stored < due), None)
            if early is not None:
                yield f"told off, though {early.decision} {early.at} came {due - early.stored} ms before: {what}"

    def _wrongly_shown(self, seen: Seen, firsts: dict[At, Transaction]) -> Iterator[str]:
        newest, recalls, gone = seen.newest(), self._log.recalls(), dict(seen.delivered)
        for place, at_ms in seen.shown_at.items():
            at = At(*place[:3])
            message = self._log.messages.get(at)
            if message is None or message.is_hostile:
                yield f"shown, but no message: {at}"
            elif at.source == "half":
                if at not in newest or newest[at].state != "COMMITTED":
                    yield f"shown, but not committed: {at} {message.tid}"
                elif message.delay_ms is not None:
                    yield from self._too_early(at_ms, self._due(firsts[at], newest[at]), message)
            elif message.delay_ms is not None:
                yield from self._too_early(at_ms, message.due, message)
                if self._is_recalled(message, recalls[at]):
                    early = message.due - min(op.stored for op in recalls[at])
                    yield f"shown, but recalled {early} ms before it was due: {at} {message.tid}"
                if gone.get(at) == "RECALLED":
                    yield f"shown, and recalled in the ledger: {at} {message.tid}"

    def _too_early(self, shown: int, due: int, message: Message) -> Iterator[str]:
        if shown < due:
            yield f"shown {due - shown} ms before it was due: {message.at} {message.tid}"

    def _due(self, transaction: Transaction, end: Ended) -> int:
        """Of a committed half message with a delay."""
        op = self._log.ops.get(end.op) if end.op else None
        return 0 if op is None else op.stored + (transaction.first.delay_ms or 0)

    def _is_recalled(self, message: Message, recalls: list[Op]) -> bool:
        fitting = [op for op in recalls if op.tid == message.tid]
        return any(op.stored + self.margin_ms < message.due for op in fitting)

    def _wrongly_refused(self, seen: Seen, firsts: dict[At, Transaction]) -> Iterator[str]:
        states: dict[At, set[str]] = defaultdict(set)
        for each in seen.ended:
            states[each.at].add(each.state)
        for at, reason in seen.rejected:
            record = self._log.ops.get(at) or self._log.messages.get(at)
            if record is None:
                yield f"rejected, but not in Kafka: {at}"
            elif not record.is_hostile and not self._may_refuse(record, reason, firsts, states):
                yield f"rejected as {reason}: {at} {record.tid}"

    def _may_refuse(
        self, record: Message | Op, reason: str, firsts: dict[At, Transaction], states: dict[At, set[str]]
    ) -> bool:
        if isinstance(record, Message) or not record.listed:
            return False
        target = record.listed[0]
        if record.decision == "RECALL":
            message = self._log.messages[target]
            return reason == "RECALL_TOO_LATE" and not self._is_recalled(message, [record])
        if reason.startswith("ALREADY_"):
            end = reason.removeprefix("ALREADY_")
            return end in states[target] and DECISIONS.get(record.decision) != end
        if reason == "NO_HALF_MESSAGE":
            return any(part.at in record.listed for part in firsts[target].refused)  # it never lands
        return reason == "WRONG_TRANSACTION_ID" and record.tid != firsts[target].first.tid

    # what must be

    def missing(self, seen: Seen, until: int, *, settled: bool) -> list[str]:
        """What is not there though Kafka held all that leads to it at `until` (ms since epoch).

        Args:
            seen: the tables.
            until: what is stored or due later is not expected.
            settled: whether hanging transactions must have ended, too, and conflicts must have been refused.
        """
        transactions, newest = self._log.transactions(), seen.newest()
        found = list(self._missing_messages(seen, until))
        for transaction in transactions.values():
            found += self._missing_ends(transaction, newest, until, settled)
            for each in transaction.messages:
                found += self._missing_half(each, transaction, newest, seen, until)
        if settled:
            found += self._missing_refusals(seen, transactions, newest, until)
            found += self._missing_deliveries(seen, until)
        return found

    def _missing_messages(self, seen: Seen, until: int) -> Iterator[str]:
        recalls, rejected = self._log.recalls(), {at for at, _ in seen.rejected}
        for each in self._log.messages.values():
            if each.stored > until:
                continue
            if each.is_hostile and each.at not in rejected:
                yield f"not rejected: {each.at}"
            elif each.at.source == "messages" and not each.is_hostile and each.due <= until and not recalls[each.at]:
                for index in range(each.members):
                    if (*each.at, index) not in seen.shown_at:
                        yield f"not shown: {each.at}, member {index} {each.tid}"

    def _missing_deliveries(self, seen: Seen, until: int) -> Iterator[str]:
        """Of delayed messages: delivered or, with a recall, one of two."""
        ended = {at for at, _ in seen.delivered}
        for at, each in self._log.messages.items():
            is_delayed = at.source == "messages" and each.delay_ms is not None and not each.is_hostile
            if is_delayed and max(each.due, each.stored) <= until and at not in ended:
                yield f"delayed, and has not ended: {at} {each.tid}"

    def _missing_ends(
        self, transaction: Transaction, newest: dict[At, Ended], until: int, settled: bool
    ) -> Iterator[str]:
        round_ = len(transaction.resumes)
        decisions = [op for op in transaction.decisions(round_) if op.stored <= until]
        records: list[Message | Op] = [*transaction.messages, *transaction.resumes]
        last = max(each.stored for each in records)
        if last > until or not (decisions or settled):
            return
        for each in transaction.messages:
            if each.at not in newest or newest[each.at].round < round_:
                decided = decisions[0].decision if decisions else "nothing"
                yield f"no end in round {round_}: {each.at} {each.tid}, decided by {decided}"

    def _missing_half(
        self, each: Message, transaction: Transaction, newest: dict[At, Ended], seen: Seen, until: int
    ) -> Iterator[str]:
        end = newest.get(each.at)
        if end is None or end.state != "COMMITTED" or end.resolved > until:
            return
        op = self._log.ops.get(end.op) if end.op else None
        due = 0 if op is None or each.delay_ms is None else op.stored + each.delay_ms
        if due <= until and (*each.at, 0) not in seen.shown_at:
            yield f"committed and not shown: {each.at} {each.tid}"

    def _missing_refusals(
        self, seen: Seen, transactions: dict[At, Transaction], newest: dict[At, Ended], until: int
    ) -> Iterator[str]:
        rejected = {at for at, _ in seen.rejected}
        for at, transaction in transactions.items():
            end = newest.get(at)
            if end is None or transaction.resumes:
                continue
            for op in transaction.ops:
                if op.stored <= until and DECISIONS[op.decision] != end.state and op.at not in rejected:
                    yield f"{op.decision} of what is {end.state} was not refused: {op.at}"


def _read(lake: Lake, name: str, columns: list[str]) -> list[Row]:
    table = tables.opened(str(lake.tables), name)
    found: list[Row] = table.to_pyarrow_table(columns=columns).to_pylist() if table else []
    return found


def _at(row: Row, source: str, offset: str = "queue_offset") -> At:
    return At(source, row["queue"], row[offset])


def _place(row: Row) -> Place:
    return (row["source"], row["source_queue"], row["source_offset"], row["source_index"])


def _rejected_at(row: Row) -> At:
    return At(row["source"], row["kafka_partition"], row["kafka_offset"])


def _ended(row: Row) -> Ended:
    source = "admin" if row["reason"] == "ADMIN" else "op"
    op = None if row["op_queue"] is None else At(source, row["op_queue"], row["op_offset"])
    at = At("half", row["queue"], row["half_offset"])
    resolved = int(row["resolved_at"].timestamp() * 1_000)
    return Ended(at, row["round"], row["state"], row["reason"], op, resolved)


def _twice(what: str, found: Iterable[Any]) -> list[str]:
    return [f"{what} {n} times: {key}" for key, n in Counter(found).items() if n > 1][:_ENOUGH]


Place = tuple[str, int, int, int]
"""Source, queue, offset and index of a message."""
_PLACE = ["source", "source_queue", "source_offset", "source_index"]


class AddedFiles:
    """Replays the log of each topic's table, version after version, as a stream that reads it does."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._next: dict[str, int] = {}
        self.seen: Counter[Place] = Counter()

    def read(self) -> list[str]:
        """Takes the versions that have come; returns what no append-only stream may meet."""
        found: list[str] = []
        for topic in self._lake.topics():
            found += self._read(topic, Path(str(self._lake.tables), "topics", topic))
        return found

    def _read(self, topic: str, place: Path) -> Iterator[str]:
        number = self._next.get(topic, 0)
        while (commit := place / "_delta_log" / f"{number:020}.json").exists():
            for line in commit.read_text().splitlines():
                action: dict[str, Any] = json.loads(line)
                self._take(place, action.get("add", {}))
                if action.get("remove", {}).get("dataChange"):
                    yield f"stream of {topic}: version {number} removes rows"
            number += 1
            self._next[topic] = number

    def _take(self, place: Path, added: dict[str, Any]) -> None:
        if added.get("dataChange"):
            rows = pq.read_table(place / unquote(added["path"]), columns=_PLACE, partitioning=None)
            self.seen.update(tuple(row.values()) for row in rows.to_pylist())


class Group:
    """A group of consumers that reads on whenever it is asked to."""

    def __init__(self, lake: Lake, name: str = "campaign") -> None:
        self._lake, self._name = lake, name
        self.got: Counter[Place] = Counter()

    def read(self) -> None:
        """Takes all that is there, each message done at once."""
        for topic in self._lake.topics():
            with commitlake.consume(self._lake.config, topic, group=self._name, follow=False, poll="100ms") as messages:
                for each in messages:
                    self.got[each.source, each.source_queue, each.source_offset, each.source_index] += 1
                    each.done()
