"""What producers do while a coordinator is killed again and again, and what must have become of it in the end."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from tests.support.lake import Lake, Record, newest
from tests.support.polling import wait_for

from commitlake.coordinator.coordinator import Coordinator
from commitlake.protocol import message_batch, wire
from commitlake.protocol.encoding import Position
from commitlake.tools.audit.audit import audit

HASTY = {
    "transaction.timeout": "0s",
    "transaction.check_interval": "1ms",
    "transaction.check_max": 2,
    "transaction.op_park_time": "0s",
}
"""Every start checks what is open, or discards it after its second answer; what waits is resolved at once."""
PAST = {"TIMER_DELIVER_MS": "1"}
TOMORROW = {"TIMER_DELAY_SEC": "86400"}
LATER_S = 15
"""A delay that ends while coordinators are killed and started: a start takes about 10 s."""


class Traffic:
    """Sends rounds of transactions of every kind, and keeps what they must come to."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.rounds = lake, 0
        self.ends: dict[Position, tuple[str, str]] = {}
        self.shown: dict[tuple[str, Position], bytes] = {}
        self.hidden: set[Position] = set()
        self.refused: dict[Record, str] = {}
        self.open: dict[str, Position] = {}
        self._last: tuple[str, Position] | None = None
        self._spark: SparkSession | None = None

    def send(self) -> None:
        """One round: each kind of end, and each kind of refusal; first, answers to the checks of the last round."""
        self.lake.answer_unknown()
        self.rounds += 1
        name = f"round {self.rounds}"
        self._single(name)
        self._several(name)
        self._others(name)
        self._relayed(name)
        self._refusals(name)

    def _half(self, tid: str, queue: int, state: str, reason: str, **more: Any) -> Position:
        at = self.lake.half(tid, queue, topic=more.pop("topic", "a"), **more)
        self.ends[at] = (state, reason)
        if state == "COMMITTED":
            self.shown["half", at] = more.get("body", tid.encode())
        return at

    def large(self, size: int) -> Callable[[], Record]:
        """A half message of `size` bytes that do not compress; what is returned commits it."""
        at = self._half("large", 0, "COMMITTED", "DIRECT", body=os.urandom(size))
        return lambda: self.lake.op("COMMIT", "large", at)

    def _single(self, name: str) -> None:
        committed = self._half(f"{name} c", 0, "COMMITTED", "DIRECT")
        self.lake.op("COMMIT", f"{name} c", committed)
        self.refused[self.lake.op("ROLLBACK", f"{name} c", committed)] = "ALREADY_COMMITTED"
        self.lake.op("COMMIT", f"{name} c", committed, queue=1)
        rolled = self._half(f"{name} r", 1, "ROLLED_BACK", "CHECK")
        self.lake.op("ROLLBACK", f"{name} r", rolled, from_check=True)
        later = self._half(f"{name} d", 1, "COMMITTED", "DIRECT", topic="b", delays=PAST)
        self.lake.op("COMMIT", f"{name} d", later)
        self.open[f"{name} o"] = self._half(f"{name} o", 1, "DISCARDED", "CHECK_MAX")

    def _several(self, name: str) -> None:
        first = self._half(f"{name} s", 0, "COMMITTED", "DIRECT")
        part = self._half(f"{name} s", 1, "COMMITTED", "DIRECT", topic="b", first=first, delays=self._later())
        self.lake.op("COMMIT", f"{name} s", first, part)
        if self._last:  # a part that comes when all has been decided
            self._half(self._last[0], 1, "COMMITTED", "DIRECT", first=self._last[1])
        self._last = (f"{name} s", first)
        self._half(f"{name} x", 0, "DISCARDED", "ORPHAN", first=Position(0, 1_000_000))
        spoiled = self._half(f"{name} y", 0, "DISCARDED", "REFUSED_PART")
        refused = self.lake.half(f"{name} y", 1, first=spoiled, topic="no topic")
        self.refused[Record("half", *refused)] = "ILLEGAL_TOPIC"
        self.refused[self.lake.op("COMMIT", f"{name} y", spoiled)] = "ALREADY_DISCARDED"

    def _others(self, name: str) -> None:
        self.shown["messages", self.lake.message(f"{name} n", topic="a")] = f"{name} n".encode()
        self.shown["messages", self.lake.message(f"{name} l", topic="b", delays=PAST)] = f"{name} l".encode()
        later = self.lake.message(f"{name} w", topic="b", delays=self._later())
        self.shown["messages", later] = f"{name} w".encode()
        self.lake.message(f"{name} never", topic="b", delays=TOMORROW)
        for msg_id, delays in ((f"{name} h", TOMORROW), (f"{name} i", self._later())):
            recalled = self.lake.message(msg_id, topic="b", delays=delays)
            self.lake.recall(msg_id, recalled, topic="b")
            self.hidden.add(recalled)
        members = [
            message_batch.Member(f"{name} b{number}".encode(), {"UNIQ_KEY": f"{name} b{number}"}) for number in range(3)
        ]
        value, head = message_batch.join(members, f"{name} b")
        record = wire.MessageRecord(topic="a", msg_id=f"{name} b", body=value, batch=len(members), batch_head=head)
        packed = self.lake.send("messages", wire.encode_message(record), 1).position
        self.shown["messages", packed] = b"".join(member.body for member in members)

    def _relayed(self, name: str) -> None:
        """Within Kafka transactions: one message in one that is committed, and what was never there."""
        with self.lake.relay() as relay:
            self.shown["messages", relay.message(f"{name} k", topic="a")] = f"{name} k".encode()
            relay.producer.commit_transaction()
            relay.producer.begin_transaction()
            relay.message(f"{name} aborted", topic="a")
            relay.half(f"{name} aborted", topic="a")
            relay.op("COMMIT", f"{name} o", self.open[f"{name} o"])
            relay.producer.abort_transaction()

    def _later(self) -> dict[str, str]:
        return {"TIMER_DELIVER_MS": str(int((time.time() + LATER_S) * 1_000))}

    def _refusals(self, name: str) -> None:
        self.refused[self.lake.op("COMMIT", name, Position(0, 1_000_000 + self.rounds))] = "NO_HALF_MESSAGE"
        self.refused[self.lake.op("COMMIT", "other", self.open[f"{name} o"])] = "WRONG_TRANSACTION_ID"
        self.refused[self.lake.send("op", wire.Encoded(None, b"not JSON", []), 1)] = "BAD_OP"
        self.refused[self.lake.send("half", wire.Encoded(None, b"b", [("UNIQ_KEY", b"k")]), 1)] = "MISSING_REAL_TOPIC"

    def resume(self) -> None:
        """An administrator reopens what was discarded."""
        for tid, at in self.open.items():
            self.lake.admin("RESUME", tid, at)

    def commit_resumed(self) -> None:
        """The reopened ones are committed after all."""
        for tid, at in self.open.items():
            self.lake.op("COMMIT", tid, at)
            self.ends[at] = ("COMMITTED", "DIRECT")
            self.shown["half", at] = tid.encode()

    def settle(self, spark: SparkSession, **changes: object) -> None:
        """A plain start, until all has come to its end."""
        self._spark = spark
        with Coordinator(spark, self.lake.configured(**changes)).start() as running:
            wait_for(lambda: running.await_termination(timeout=0) or self.is_over(), 400, self._pending)

    def is_over(self) -> bool:
        self.lake.answer_unknown()
        return not self._pending() and self.is_written() and len(self.lake.rejected()) == len(self.refused)

    def _pending(self) -> set[Position]:
        return set(self.ends) - {Position(*at) for at in newest(self.lake.rows("transactions"))}

    def differences(self) -> tuple[int, int, int]:
        """How many rows of the ledger and of topic tables are there, how many are missing, how many stand twice."""
        lake = self.lake
        rows = [row for topic in lake.topics() for row in lake.topic(topic)]
        firsts = [row for row in rows if row["source_index"] == 0]  # a batch is one record, like any other
        shown = Counter((row["source"], row["source_queue"], row["source_offset"]) for row in firsts)
        ended = Counter((row["queue"], row["half_offset"], row["round"]) for row in lake.rows("transactions"))
        missing = {(source, *at) for source, at in self.shown} - set(shown) | {(*at, 0) for at in self.ends} - set(
            ended
        )
        return (shown + ended).total(), len(missing), (shown + ended).total() - len(shown + ended)

    def visible(self) -> dict[tuple[str, Position], bytes]:
        """The body of each message in a topic's table; of a batch, the bodies of its members in order."""
        rows = [row for topic in self.lake.topics() for row in self.lake.topic(topic)]
        found: dict[tuple[str, Position], bytes] = defaultdict(bytes)
        for row in sorted(rows, key=lambda row: row["source_index"]):
            found[row["source"], Position(row["source_queue"], row["source_offset"])] += row["body"]
        return found

    def is_written(self) -> bool:
        """Whether all that must become visible is, in complete batches; with quiet timings nothing is left to write."""
        batches = {row["batch_id"] for row in self.lake.rows("batches")}
        shown = {row["batch_id"] for topic in self.lake.topics() for row in self.lake.topic(topic)}
        return shown <= batches | {None} and self.visible() == self.shown

    def assert_outcome(self) -> None:
        """Nothing lost, nothing twice, row by row; what one table says of another is the audit's."""
        if self._spark is not None:
            report = audit(self._spark, str(self.lake.tables))
            assert report.is_well, report
        assert self.differences()[1:] == (0, 0), "lost, doubled"
        ended = newest(self.lake.rows("transactions"))
        assert {Position(*at): (row["state"], row["reason"]) for at, row in ended.items()} == self.ends
        assert self.visible() == self.shown
        recalled = {
            Position(r["queue"], r["queue_offset"]) for r in self.lake.rows("deliveries") if r["state"] == "RECALLED"
        }
        assert recalled == self.hidden
        self._assert_rejected()
        self._assert_checks()

    def _assert_rejected(self) -> None:
        rejected = self.lake.rejected()
        assert {record: row["reason"] for record, row in rejected.items()} == self.refused
        for source in ("op", "half"):
            for sent in self.lake.kafka(source):
                row = rejected.get(Record(source, sent.partition, sent.offset))
                assert row is None or (row["key"], row["value"]) == (sent.key, sent.value)

    def _assert_checks(self) -> None:
        """The two checks of each open transaction, all of them in Kafka; a repeated one says the same."""
        rows = self.lake.rows("checks")
        asked = {(Position(r["queue"], r["half_offset"]), r["round"], r["check_no"]) for r in rows}
        assert asked == {(at, 0, number) for at in self.open.values() for number in (1, 2)}
        sent: dict[str, wire.CheckRecord] = {}
        for check in self.lake.checks():
            assert sent.setdefault(check.check_id, check) == check
        assert {(c.half, int(c.check_id.split("-")[2]), c.check_times) for c in sent.values()} == asked


def send_some(lake: Lake) -> None:
    """A backlog of a few kinds."""
    lake.commit("paid", "sent")
    lake.op("ROLLBACK", "lost", lake.half("lost"))
    lake.message("late", delays=PAST)
    lake.message("now", topic="news")


def assert_some_shown(lake: Lake) -> None:
    """What that comes to."""
    bodies = {topic: sorted(row["body"] for row in lake.topic(topic)) for topic in lake.topics()}
    assert bodies == {"orders": [b"paid", b"sent"], "delays": [b"late"], "news": [b"now"]}
