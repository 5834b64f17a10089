"""A producer group that answers its checks with COMMIT, at a limited rate, in a process of its own.

    .venv/bin/python -m tests.bench.answers --servers 127.0.0.1:9092 --group bench --rate 500

Prints a line of JSON every second: how many checks it has answered, and of how many transactions.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

from kafka import KafkaConsumer
from tests.bench.load import Record, RecordSender

_TICK_S = 0.1


def main() -> None:
    """Answers until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="Kafka's address")
    parser.add_argument("--prefix", default="commitlake.", help="of the Kafka topics")
    parser.add_argument("--group", default="bench", help="producer group")
    parser.add_argument("--rate", type=float, default=100_000, help="answers a second at most")
    given = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    consumer = KafkaConsumer(
        f"{given.prefix}check",
        bootstrap_servers=given.servers,
        group_id=f"{given.prefix}check.{given.group}",
        auto_offset_reset="earliest",
        check_crcs=False,  # in plain Python it takes longer than all else
    )
    run(given, consumer, RecordSender(given.servers), stop)
    consumer.close()


def run(given: argparse.Namespace, consumer: KafkaConsumer, sender: RecordSender, stop: threading.Event) -> None:
    """Reads no more than it may answer; what it left unanswered for a second it does not make up for."""
    answered, transactions = 0, set[bytes]()
    allowed = reported = time.monotonic()
    while not stop.is_set():
        found = _poll(consumer, int(given.rate * _TICK_S), given.group)
        if found:
            _answer(sender, f"{given.prefix}op", found, given.group)
            answered += len(found)
            transactions.update(check.key for check in found)
            allowed = max(allowed + len(found) / given.rate, time.monotonic() - 1)
        if time.monotonic() - reported >= 1:
            reported = time.monotonic()
            _report(answered, transactions)
        stop.wait(allowed - time.monotonic())
    _report(answered, transactions)


def _report(answered: int, transactions: set[bytes]) -> None:
    print(json.dumps({"answered": answered, "transactions": len(transactions)}), flush=True)


def _poll(consumer: KafkaConsumer, most: int, group: str) -> list[Any]:
    """Checks of the group; those of others are passed over."""
    polled = consumer.poll(100, max_records=max(1, most))
    return [check for checks in polled.values() for check in checks if ("PGROUP", group.encode()) in check.headers]


def _answer(sender: RecordSender, topic: str, checks: Sequence[Any], group: str) -> None:
    ops = []
    for check in checks:
        listed = json.loads(dict(check.headers)["HALF_MESSAGES"])
        op = {"transaction_id": check.key.decode(), "producer_group": group, "decision": "COMMIT"}
        value = json.dumps(op | {"half_messages": listed, "from_check": True}).encode()
        ops.append(Record(listed[0]["queue"], value, check.key))
    sender.send(topic, ops)


if __name__ == "__main__":
    main()
