"""Transactions and delayed messages, at a steady rate until it is stopped or at full speed, in a process of its own.

    .venv/bin/python -m tests.bench.load --servers 127.0.0.1:9092 --rate 1000

Each tick it appends half messages, and when they are acknowledged the ops of those that don't stay silent. Prints a
line of JSON every second; in the file of `--log` stands what was appended where and when, for `observer.Sent`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tests.bench.record_batches import Appended, Field, Layout, Part, Producer, padded

TICK_S = 0.1
QUEUES = 4
BODY = json.dumps({name: 1_234 for name in "abcdefghi"} | {"text": "." * 127}).encode()
"""An object of ten fields in 256 bytes, of which nine are numbers."""
_AT_ONCE, _BATCH = 8_000, 4 << 20
_NUMBER = Field("number", 12)
_NAME = (b"T", _NUMBER)


def main() -> None:
    """Sends until SIGTERM, or until all of `--fill` is sent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="Kafka's address")
    parser.add_argument("--prefix", default="commitlake.", help="of the Kafka topics")
    parser.add_argument("--rate", type=float, default=0, help="transactions a second")
    parser.add_argument("--delayed-rate", type=float, default=0, help="delayed messages a second")
    parser.add_argument("--fill", type=int, default=0, help="so many transactions at full speed, then end")
    parser.add_argument("--fill-delayed", type=int, default=0, help="so many delayed messages at full speed, then end")
    parser.add_argument("--commit", type=int, default=900, help="transactions of 1 000 that are committed at once")
    parser.add_argument("--rollback", type=int, default=100, help="those rolled back; the rest stays silent")
    parser.add_argument("--topic", default="orders", help="destination of transactions")
    parser.add_argument("--topics", type=int, default=1, help="so many destinations in turn, numbered")
    parser.add_argument("--group", default="bench", help="producer group")
    parser.add_argument("--delayed-topic", default="reminders", help="destination of delayed messages")
    parser.add_argument("--delay-ms", type=int, default=10_000, help="delayed messages are due so long after now")
    parser.add_argument("--due-ms", type=int, default=0, help="or in the second from here on (ms since epoch, UTC)")
    parser.add_argument("--bytes", type=int, default=len(BODY), help="of a transaction's body; not dots if other")
    parser.add_argument("--first", type=int, default=0, help="number of the first transaction")
    parser.add_argument("--log", type=Path, default=Path("/dev/null"))
    given = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with given.log.open("w") as log:
        sender = Sender(given)
        for lines in sender.fill() if given.fill or given.fill_delayed else sender.steady(stop):
            log.writelines(lines)
            log.flush()


class Rows(NamedTuple):
    """Half messages that stand in Kafka."""

    numbers: np.ndarray
    queues: np.ndarray
    offsets: np.ndarray
    is_committed: np.ndarray

    def where(self, chosen: np.ndarray) -> Rows:
        """Some of them."""
        return Rows(*[column[chosen] for column in self])


class Sender:
    """Sends, and counts what it has sent."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.sent = self.committed = self.rolled_back = self.delayed = 0
        self.begun = self._told = time.monotonic()
        self._producer = Producer(given.servers)
        topic = [given.topic.encode()] + ([Field("topic", 4)] if given.topics > 1 else [])
        group = given.group.encode()
        own = {"UNIQ_KEY": _NAME, "PGROUP": [group]}
        body: list[Part] = [BODY] if given.bytes == len(BODY) else [_NUMBER, os.urandom(given.bytes - _NUMBER.width)]
        self._half = Layout(body, headers={"REAL_TOPIC": topic, **own})
        self._at_once = min(_AT_ONCE, QUEUES * max(1, _BATCH // (given.bytes + len(BODY))))
        due = {"REAL_TOPIC": [given.delayed_topic.encode()], "TIMER_DELIVER_MS": [Field("due", 13)]}
        self._message = Layout([BODY], headers={**due, **own})
        self._op = op_layout(group)

    def steady(self, stop: threading.Event) -> Iterator[list[str]]:
        """What is due by now, every tick; what a slow broker has held up is sent with the next."""
        tick = 0
        while not stop.is_set():
            passed = time.monotonic() - self.begun
            yield self._transactions(int(passed * self.given.rate) - self.sent)
            due = time.time_ns() // 1_000_000 + self.given.delay_ms
            yield self._messages(int(passed * self.given.delayed_rate) - self.delayed, due)
            self._report()
            tick = max(tick + 1, int((time.monotonic() - self.begun) / TICK_S))
            stop.wait(self.begun + tick * TICK_S - time.monotonic())
        self._report(is_last=True)

    def fill(self) -> Iterator[list[str]]:
        """All at full speed."""
        while self.sent < self.given.fill:
            yield self._transactions(self.given.fill - self.sent)
        while self.delayed < self.given.fill_delayed:
            due = self.given.due_ms + 1_000 * self.delayed // self.given.fill_delayed
            yield self._messages(self.given.fill_delayed - self.delayed, due)
        self._report(is_last=True)

    def _transactions(self, count: int) -> list[str]:
        if count <= 0:
            return []
        numbers = self.given.first + self.sent + np.arange(min(count, self._at_once))
        queues, lots = numbers % QUEUES, numbers * 7_919 % 1_000
        topics = numbers // QUEUES % self.given.topics
        halves = self._send("half", self._half.batches(queues, number=numbers, topic=topics))
        is_ended, is_committed = lots < self.given.commit + self.given.rollback, lots < self.given.commit
        rows = Rows(numbers, queues, _offsets(queues, halves), is_committed)
        ops = self._ops(rows.where(is_ended)) if is_ended.any() else {}
        self.sent += len(numbers)
        self.committed += int(is_committed.sum())
        self.rolled_back += int((is_ended & ~is_committed).sum())
        due = {queue: ops[queue].at_ms if queue in ops else -1 for queue in halves}
        return [_line("half", queue, at, queues, is_committed, due[queue]) for queue, at in halves.items()]

    def _ops(self, ended: Rows) -> dict[int, Appended]:
        decisions = _DECISIONS[ended.is_committed.astype(int)]
        fields = {"number": ended.numbers, "half_queue": ended.queues, "half_offset": ended.offsets}
        return self._send("op", self._op.batches(ended.queues, decision=decisions, **fields))

    def _messages(self, count: int, due_ms: int) -> list[str]:
        if count <= 0:
            return []
        numbers = self.delayed + np.arange(min(count, _AT_ONCE))
        queues, due = numbers % QUEUES, np.full(len(numbers), due_ms)
        sent = self._send("messages", self._message.batches(queues, number=numbers, due=due))
        self.delayed += len(numbers)
        return [_line("messages", queue, at, queues, np.ones(len(queues), bool), due_ms) for queue, at in sent.items()]

    def _send(self, topic: str, batches: dict[int, bytes]) -> dict[int, Appended]:
        return self._producer.send(self.given.prefix + topic, batches)

    def _report(self, is_last: bool = False) -> None:
        now = time.monotonic()
        if is_last or now - self._told >= 1:
            self._told = now
            counts = {name: getattr(self, name) for name in ("sent", "committed", "rolled_back", "delayed")}
            print(json.dumps(counts | {"seconds": round(now - self.begun, 2)}), flush=True)


_DECISIONS = padded([b'"ROLLBACK"', b'"COMMIT"'], 10)


def op_layout(group: bytes) -> Layout:
    """An op of one half message; JSON allows blanks where a decision or an offset is shorter."""
    begin: list[Part] = [
        b'{"transaction_id":"',
        *_NAME,
        b'","producer_group":"',
        group,
        b'","decision":',
        Field("decision", 10),
    ]
    place: list[Part] = [Field("half_queue", 2, b" "), b',"offset":', Field("half_offset", 12, b" ")]
    return Layout([*begin, b',"half_messages":[{"queue":', *place, b"}]}"], key=_NAME)


def _offsets(queues: np.ndarray, appended: dict[int, Appended]) -> np.ndarray:
    """The offset of each row."""
    offsets = np.empty(len(queues), np.int64)
    for queue, at in appended.items():
        own = queues == queue
        offsets[own] = at.offset + np.arange(own.sum())
    return offsets


def _line(source: str, queue: int, at: Appended, queues: np.ndarray, is_committed: np.ndarray, due_ms: int) -> str:
    """One batch: how many records, and how many of them become visible by themselves."""
    own = queues == queue
    return f"{source},{queue},{at.offset},{own.sum()},{(own & is_committed).sum()},{at.at_ms},{due_ms}\n"


if __name__ == "__main__":
    main()
