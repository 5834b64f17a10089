"""Many groups of one process: how late their receipts are. Many instances of one group: how long they take to join.

    .venv/bin/python -m tests.bench.groups --groups 500 --instances 100

All groups read one topic of 4 queues, to which a commit adds messages each second. A receipt counts from the moment in
which its message was done to the end of the commit that has it. An instance has joined when it has looked at its group,
and reads queues or stands by. Queues are shared when each has an instance of its own.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.bench import rig
from tests.support.topic_table import message, write

import commitlake
from commitlake.clients.consumer.assignment import EMPTY
from commitlake.clients.consumer.group import kept_state
from commitlake.clients.consumer.tables import Appender

QUEUES = 4
_LOOK_S, _SETTLE_S = 0.02, 10.0


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="commitlake-groups-"))
    try:
        figures = {"joins": joins(place / "joins", given.instances), "receipts": receipts(place / "receipts", given)}
    finally:
        shutil.rmtree(place, ignore_errors=True)
    rig.report("groups", given, figures)


class Running:
    """Consumers, each in a thread of its own."""

    def __init__(self, place: Path, groups: list[str]) -> None:
        settings = {"warehouse": str(place)}
        self.consumers = [commitlake.consume(settings, "orders", group=group, poll="1s") for group in groups]
        self.done: list[float] = []
        self.failures: list[Exception] = []
        self._threads = [threading.Thread(target=self._read, args=[each]) for each in self.consumers]
        for thread in self._threads:
            thread.start()

    def _read(self, messages: Any) -> None:
        try:
            with messages:
                for each in messages:
                    each.done()
                    self.done.append(time.time())
        except Exception as error:  # it is counted
            self.failures.append(error)

    def alive(self) -> int:
        return sum(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        for each in self.consumers:
            each.stop()
        for thread in self._threads:
            thread.join()


def joins(place: Path, instances: int) -> dict[str, float]:
    """How long it takes until instances that begin together have joined and share the queues, in s."""
    write(place, "orders", [message(n, batch=0, queue=n % QUEUES) for n in range(QUEUES * 10)])
    begun = time.monotonic()
    running = Running(place, ["one"] * instances)
    joined: list[float] = []
    while len(joined) < instances and running.alive() == instances:
        count = sum(any(each._member for each in messages._subscriptions) for messages in running.consumers)
        joined += [time.monotonic() - begun] * (count - len(joined))
        time.sleep(_LOOK_S)
    while len(owners(place)) < QUEUES and running.alive() == instances:
        time.sleep(_LOOK_S)
    shared_s, begun = time.monotonic() - begun, time.monotonic()
    running.stop()
    times = dict(zip(("p50_s", "most_s"), np.percentile(joined, (50, 100)).tolist(), strict=True))
    end_s, failed = time.monotonic() - begun, len(running.failures)
    return {**times, "shared_s": shared_s, "end_s": end_s, "failed": failed, "messages": len(running.done)}


def owners(place: Path) -> set[str]:
    state = kept_state(f"{place}_receipts", "one", "orders") or EMPTY
    return {share["owner"] for share in state["queues"].values() if share["owner"]}


def receipts(place: Path, given: argparse.Namespace) -> dict[str, float]:
    """How late the receipts of groups are, in s, and what is missing: of messages that come once all groups read."""
    write(place, "orders", [message(n, batch=0, queue=n % QUEUES) for n in range(QUEUES)])
    late = Late()
    begun = time.monotonic()
    running = Running(place, [f"group {number}" for number in range(given.groups)])
    while len(running.done) < given.groups * QUEUES and running.alive() == given.groups:
        time.sleep(_LOOK_S)
    begin_s = time.monotonic() - begun
    time.sleep(_SETTLE_S)
    late.found.clear()
    for second in range(given.seconds):
        write(place, "orders", [message(100 + second, batch=1 + second, queue=second % QUEUES)])
        time.sleep(1)
    time.sleep(_SETTLE_S)
    alive, found = running.alive(), np.asarray(late.found)
    running.stop()
    times = dict(zip(("p50_s", "p99_s", "most_s"), np.percentile(found, (50, 99, 100)).tolist(), strict=True))
    missing = given.groups * given.seconds - len(found)
    return {"begin_s": begin_s, **times, "missing": missing, "alive": alive, "failed": len(running.failures)}


class Late:
    """Notes how old each receipt is, in s, when the commit that has it is done."""

    def __init__(self) -> None:
        self.found = found = list[float]()
        append = Appender.append

        def noted(self: Appender, rows: pa.Table) -> None:
            append(self, rows)
            now = time.time()
            found.extend(now - each.timestamp() for each in rows["at"].to_pylist())

        Appender.append = noted  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
