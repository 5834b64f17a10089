"""What the instances of groups cost while they join and while they have nothing to do.

    .venv/bin/python -m tests.bench.groups --members 20 --groups 1 --seconds 30
    .venv/bin/python -m tests.bench.groups --members 100 --groups 100 --seconds 60

All instances are in one process, so its CPU time is theirs. The topic has as many queues as a group has members.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from deltalake import DeltaTable
from tests.bench import rig
from tests.support.topic_table import message, write

import commitlake
from commitlake.clients.consumer.group import FOLDER
from commitlake.clients.consumer.keeper import Keeper


class Turns:
    """How long the turns of all instances take, in s, and how much CPU the process has used."""

    def __init__(self) -> None:
        self._took: list[float] = []
        self._begin, self._cpu, self._commits = time.monotonic(), time.process_time(), 0
        self._turn = Keeper._turn

    def measured(self, keeper: Keeper) -> None:
        """A turn, in place of `Keeper._turn`."""
        begun = time.monotonic()
        self._turn(keeper)
        self._took.append(time.monotonic() - begun)

    def figures(self, commits: int) -> dict[str, float]:
        """Since the last call, with all commits so far."""
        now, cpu, took = time.monotonic(), time.process_time(), np.asarray(self._took or [0.0])
        seconds = now - self._begin
        found = {
            "turns/s": len(self._took) / seconds,
            "turn p50_s": float(np.median(took)),
            "turn p99_s": float(np.quantile(took, 0.99)),
            "commits/s": (commits - self._commits) / seconds,
            "cores": (cpu - self._cpu) / seconds,
        }
        self._took, self._begin, self._cpu, self._commits = [], now, cpu, commits
        return found


def main() -> None:
    """Measures and prints."""
    parser = rig.parser(__doc__)
    parser.add_argument("--members", type=int, default=20, help="instances altogether")
    parser.add_argument("--groups", type=int, default=1, help="that they belong to, in equal parts")
    parser.add_argument("--seconds", type=float, default=30, help="without anything to do")
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="commitlake-groups-"))
    turns = Turns()
    try:
        with mock.patch.object(Keeper, "_turn", lambda keeper: turns.measured(keeper)):  # noqa: PLW0108 - only a function is bound
            figures = run(place / "warehouse", given, turns)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    rig.report("groups", given, figures)


def run(warehouse: Path, given: argparse.Namespace, turns: Turns) -> dict[str, Any]:
    """All members join at once; then nothing happens."""
    queues = max(1, given.members // given.groups)
    write(warehouse, "orders", [message(queue, batch=0, queue=queue) for queue in range(queues)])
    members = [
        commitlake.consume({"warehouse": str(warehouse)}, "orders", group=f"group-{number % given.groups}")
        for number in range(given.members)
    ]
    threads = [threading.Thread(target=read, args=[each]) for each in members]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    while not is_shared(warehouse, queues * given.groups, given.members):
        time.sleep(0.5)
    joined_s = time.monotonic() - begun
    time.sleep(5)
    figures: dict[str, Any] = {"joining": {"s": joined_s, **turns.figures(commits(warehouse))}}
    time.sleep(given.seconds)
    figures["idle"] = turns.figures(commits(warehouse))
    for each in members:
        each.stop()
    for thread in threads:
        thread.join()
    return figures


def read(messages: Any) -> None:
    """One instance."""
    with messages:
        for each in messages:
            each.done()


def logs(warehouse: Path) -> list[DeltaTable]:
    """The tables of all groups."""
    folders = sorted(Path(f"{warehouse}_receipts", FOLDER).glob("*"))
    return [DeltaTable(str(each)) for each in folders if DeltaTable.is_deltatable(str(each))]


def commits(warehouse: Path) -> int:
    """Commits of groups so far."""
    return sum(table.version() for table in logs(warehouse))


def is_shared(warehouse: Path, queues: int, members: int) -> bool:
    """Whether each queue has an owner, and each member that can have one has a queue."""
    states = [text for table in logs(warehouse) for text in table.to_pyarrow_table()["state"].to_pylist()]
    owners = [share["owner"] for text in states for share in json.loads(text)["queues"].values()]
    return len(owners) == queues and None not in owners and len(set(owners)) == min(members, queues)


if __name__ == "__main__":
    main()
