"""Many half messages at once whose ops never come, and a group that answers checks at a limited rate.

    .venv/bin/python -m tests.bench.flood --half 200000 --answers 1000

All answers are COMMIT. Meanwhile others commit and roll back 100 transactions a second: how long does a decision on
them take, from the op's append to the commit in `transactions`, before the flood and during it?

    .venv/bin/python -m tests.bench.flood --half 200000 --by-rule

How soon they end whose producers are gone, once a business table knows what became of them. The half messages come
first, and a check of each; nobody answers. Then a Delta table gets a row for each, and the rule of the coordinator
answers all by one join. Counted are the answers in Kafka and the ends in `transactions`, from the table's commit on.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from tests.bench import rig
from tests.bench.observer import Commit, Lateness, Sent, TableLog

_GROUP = "flood"
_SILENT = ("--commit", 0, "--rollback", 0, "--group", _GROUP)
_POLL_S = 2
_BEHIND_S = 300
_EVERY_S = 2.0


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("--half", type=int, default=200_000, help="half messages without an op")
    parser.add_argument("--answers", type=int, default=1_000, help="answers a second at most")
    parser.add_argument("--rate", type=int, default=100, help="other transactions a second")
    parser.add_argument("--before", type=float, default=60, help="seconds before the flood, half of them to warm up")
    parser.add_argument("--limit", type=float, default=1_800, help="seconds after which the flood ends unresolved")
    parser.add_argument("--timeout", default="3s", help="transaction.timeout")
    parser.add_argument("--check-interval", default="1s", help="transaction.check_interval")
    parser.add_argument("--check-max", type=int, default=15, help="transaction.check_max")
    parser.add_argument("--by-rule", action="store_true", help="no group answers, but a rule that reads a table")
    given = parser.parse_args()
    with rig.Rig(given) as running:
        figures = {"all": by_rule(running, given)} if given.by_rule else measure(running, given)
    rig.report("flood", given, figures)


def measure(running: rig.Rig, given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The flood's end, and the others' latencies."""
    coordinator = running.coordinator(
        transaction__timeout=given.timeout,
        transaction__check_interval=given.check_interval,
        transaction__check_max=given.check_max,
    )
    coordinator.ready()
    load = running.load("--rate", given.rate)
    answers = running.answers("--group", _GROUP, "--rate", given.answers)
    time.sleep(given.before)
    begun = time.time()
    running.load("--fill", given.half, *_SILENT, name="flood").wait(given.limit)
    watch = Watch(coordinator.warehouse)
    watch.wait(lambda: watch.ended >= given.half or not coordinator.is_running, given.limit)
    assert coordinator.is_running, coordinator.output[-4_000:]
    resolved = watch.seen_until if watch.ended >= given.half else time.time()
    sent = load.stop()["sent"]
    watch.wait(lambda: watch.others >= sent, _BEHIND_S)
    late = Lateness.of(watch.commits, Sent(running.place / "load.csv"), "half", "queue", "half_offset")
    return {
        "flood": watch.figures() | answers.stop() | {"open": given.half - watch.ended, "seconds": resolved - begun},
        "others before": late.between(begun - given.before / 2, begun).figures,
        "others during": late.between(begun, resolved).figures | {"undecided": sent - watch.others},
    }


def by_rule(running: rig.Rig, given: argparse.Namespace) -> dict[str, float]:
    """Seconds and rates of answers and ends; fails when not every transaction ends as the table says."""
    count, limit_s = given.half, given.limit
    place = str(running.place / "business")
    write_deltalake(place, pa.table({"id": pa.array([], pa.string()), "state": pa.array([], pa.string())}))
    rule = {"table": f"delta:{place}", "match": "transaction_id = id", "commit": "state = 'PAID'", "every": "1s"}
    coordinator = running.coordinator(
        transaction__timeout=given.timeout, transaction__check_interval=given.check_interval, checks={_GROUP: rule}
    )
    coordinator.ready()
    running.load("--fill", count, *_SILENT, name="silent").wait(limit_s)
    watch = Watch(coordinator.warehouse)
    watch.wait(lambda: watch.checks >= count, limit_s)
    ids = DeltaTable(str(coordinator.warehouse / "half")).to_pyarrow_dataset().to_table(columns=["transaction_id"])
    time.sleep(_EVERY_S)
    known = pa.table({"id": ids["transaction_id"], "state": ["PAID"] * ids.num_rows})
    write_deltalake(place, known, mode="append")
    begun = time.time()
    watch.wait(lambda: watch.ended >= count, limit_s)
    assert watch.states == {"COMMITTED": count}, watch.states
    ops = DeltaTable(str(coordinator.warehouse / "op")).to_pyarrow_dataset().to_table(columns=["stored_at"])
    sent = np.sort(ops["stored_at"].cast(pa.int64()).to_numpy()) / 1e6
    ended = watch.seen_until - begun
    return {
        "first_answer_s": float(sent[0] - begun),
        "answers/s": count / float(sent[-1] - sent[0]),
        "answers/tx": len(sent) / count,
        "ended_s": ended,
        "ended/s": count / ended,
    }


class Watch:
    """What became of all transactions, from the tables as they grow."""

    def __init__(self, warehouse: Path) -> None:
        self._transactions, self._checks = TableLog(warehouse / "transactions"), TableLog(warehouse / "checks")
        self.states: Counter[str] = Counter()
        self.others = self.checks = 0

    def wait(self, done: Callable[[], bool], seconds: float) -> None:
        """Reads what is committed until `done`, or until that takes too long."""
        until = time.monotonic() + seconds
        while not done() and time.monotonic() < until:
            time.sleep(_POLL_S)
            self._read()

    def _read(self) -> None:
        for commit in self._transactions.read():
            is_flood = commit.column("producer_group") == _GROUP
            self.states.update(commit.column("state")[is_flood].tolist())
            self.others += int((~is_flood).sum())
        for commit in self._checks.read():
            self.checks += int((commit.column("producer_group") == _GROUP).sum())

    @property
    def commits(self) -> list[Commit]:
        return self._transactions.commits

    @property
    def ended(self) -> int:
        """How many of the flood have an end."""
        return self.states.total()

    @property
    def seen_until(self) -> float:
        """The time of the newest decisions, s since epoch."""
        return self.commits[-1].at

    def figures(self) -> dict[str, float]:
        counts = {state.lower(): self.states[state] for state in ("COMMITTED", "DISCARDED")}
        return {**counts, "checks": self.checks, "checks/tx": self.checks / max(1, self.ended)}


if __name__ == "__main__":
    main()
