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
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer

TICK_S = 0.1
QUEUES = 4
BODY = json.dumps({name: 1_234 for name in "abcdefghi"} | {"text": "." * 127}).encode()
"""An object of ten fields in 256 bytes, of which nine are numbers."""
_AT_ONCE, _BATCH = 8_000, 4 << 20
_DIGITS = 12
"""Of a transaction's number, in its id and in a body that is not the usual one."""


class Record(NamedTuple):
    """A record to send, without its topic."""

    queue: int
    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


class Appended(NamedTuple):
    """Where a record stands in its partition, and when the broker appended it (ms since epoch, UTC)."""

    offset: int
    at_ms: int


class RecordSender:
    """Sends records, those of a call in one batch for each partition, and waits until all are acknowledged.

    By librdkafka a record takes 6 us of a core, by kafka-python 60; making it comes on top. Up to 2 000 transactions a
    second the load takes a few hundredths of a core.
    """

    def __init__(self, servers: str) -> None:
        limits = {"batch.num.messages": 100_000, "batch.size": 5 << 20, "message.max.bytes": 16 << 20}
        once = {"enable.idempotence": True}  # a request that times out is sent again
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 1_000, **once, **limits})

    def send(self, topic: str, records: Sequence[Record]) -> list[Appended]:
        """Where they stand, in the order of the records."""
        found: dict[int, Appended] = {}
        for number, each in enumerate(records):
            taken = partial(_take, found, number)
            self._producer.produce(topic, each.value, each.key, each.queue, on_delivery=taken, headers=[*each.headers])
        self._producer.flush()
        return [found[number] for number in range(len(records))]


def _take(found: dict[int, Appended], number: int, error: object, message: Any) -> None:
    assert error is None, error
    found[number] = Appended(message.offset(), message.timestamp()[1])


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


class Sender:
    """Sends, and counts what it has sent."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.sent = self.committed = self.rolled_back = self.delayed = 0
        self.begun = self._told = time.monotonic()
        self._sender = RecordSender(given.servers)
        self._rest = None if given.bytes == len(BODY) else os.urandom(given.bytes - _DIGITS)
        self._at_once = min(_AT_ONCE, QUEUES * max(1, _BATCH // (given.bytes + len(BODY))))

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
        while self.sent < self.given.fill:
            yield self._transactions(self.given.fill - self.sent)
        while self.delayed < self.given.fill_delayed:
            due = self.given.due_ms + 1_000 * self.delayed // self.given.fill_delayed
            yield self._messages(self.given.fill_delayed - self.delayed, due)
        self._report(is_last=True)

    def _transactions(self, count: int) -> list[str]:
        if count <= 0:
            return []
        first = self.given.first + self.sent
        numbers = range(first, first + min(count, self._at_once))
        halves = [self._half(number) for number in numbers]
        at = self._send("half", halves)
        lots = [number * 7_919 % 1_000 for number in numbers]
        ended = [n for n, lot in enumerate(lots) if lot < self.given.commit + self.given.rollback]
        is_committed = [lot < self.given.commit for lot in lots]
        ops = [self._op(halves[n], at[n], is_committed[n]) for n in ended]
        due = {op.queue: place.at_ms for op, place in zip(ops, self._send("op", ops), strict=True)}
        self.sent += len(numbers)
        self.committed += sum(is_committed)
        self.rolled_back += len(ended) - sum(is_committed)
        return list(_lines("half", halves, at, is_committed, due))

    def _half(self, number: int) -> Record:
        topic = self.given.topic
        if self.given.topics > 1:
            topic += f"{number // QUEUES % self.given.topics:04}"
        body = BODY if self._rest is None else b"%012d" % number + self._rest
        return Record(number % QUEUES, body, headers=(("REAL_TOPIC", topic.encode()), *self._own(number)))

    def _own(self, number: int) -> tuple[tuple[str, bytes], ...]:
        return ("UNIQ_KEY", b"T%012d" % number), ("PGROUP", self.given.group.encode())

    def _op(self, half: Record, at: Appended, is_committed: bool) -> Record:
        tid = half.headers[1][1]
        decision = "COMMIT" if is_committed else "ROLLBACK"
        op = {"transaction_id": tid.decode(), "producer_group": self.given.group, "decision": decision}
        listed = [{"queue": half.queue, "offset": at.offset}]
        return Record(half.queue, json.dumps({**op, "half_messages": listed}).encode(), tid)

    def _messages(self, count: int, due_ms: int) -> list[str]:
        if count <= 0:
            return []
        numbers = range(self.delayed, self.delayed + min(count, _AT_ONCE))
        about = ("REAL_TOPIC", self.given.delayed_topic.encode()), ("TIMER_DELIVER_MS", b"%d" % due_ms)
        messages = [Record(number % QUEUES, BODY, headers=(*about, *self._own(number))) for number in numbers]
        at = self._send("messages", messages)
        self.delayed += len(numbers)
        return list(_lines("messages", messages, at, [True] * len(at), dict.fromkeys(range(QUEUES), due_ms)))

    def _send(self, topic: str, records: Sequence[Record]) -> list[Appended]:
        return self._sender.send(self.given.prefix + topic, records)

    def _report(self, is_last: bool = False) -> None:
        now = time.monotonic()
        if is_last or now - self._told >= 1:
            self._told = now
            counts = {name: getattr(self, name) for name in ("sent", "committed", "rolled_back", "delayed")}
            print(json.dumps(counts | {"seconds": round(now - self.begun, 2)}), flush=True)


def _lines(
    source: str, records: Sequence[Record], at: Sequence[Appended], is_shown: Sequence[bool], due: dict[int, int]
) -> Iterator[str]:
    """One for records whose offsets follow each other: how many, and how many of them become visible by themselves."""
    queues: dict[int, list[int]] = defaultdict(list)
    for number, record in enumerate(records):
        queues[record.queue].append(number)
    for queue, numbers in queues.items():
        for _, group in groupby(enumerate(numbers), lambda pair: at[pair[1]].offset - pair[0]):
            run = [number for _, number in group]
            begin, shown = at[run[0]], sum(is_shown[number] for number in run)
            yield f"{source},{queue},{begin.offset},{len(run)},{shown},{begin.at_ms},{due.get(queue, -1)}\n"


if __name__ == "__main__":
    main()
