"""From a filled Kafka to tables, each from a cold start: the coordinator with `--available-now`, then the plain copy,
tuned as the coordinator is, and with Spark's defaults.

    .venv/bin/python -m tests.bench.throughput --transactions 1000000

Of 100 transactions 80 are committed, 10 rolled back, and 10 stay open. Wall time is from the start of the process to
its end; CPU and memory are those of the whole process tree.

    .venv/bin/python -m tests.bench.throughput --backlogs

Whether what waits behind an outage lands with the memory that a coordinator has by default, however large its messages
are: committed transactions of 1 kB, 40 kB and 4 MB. No two bodies are equal, and none by itself gets smaller when
compressed.
"""

from __future__ import annotations

import argparse
import shutil

from tests.bench import rig
from tests.bench.observer import TableLog

_LIMIT_S = 7_200
_BACKLOGS = ((2_000_000, 1_000), (40_000, 40_000), (1_000, 4_000_000))


def main() -> None:
    """Measures and prints; fails when not just the committed rows are visible."""
    parser = rig.parser(__doc__)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--backlogs", action="store_true", help="of some sizes of messages, by the coordinator only")
    given = parser.parse_args()
    if given.backlogs:
        backlogs(given)
        return
    with rig.Rig(given) as running:
        load = running.load("--fill", given.transactions, "--commit", 800, "--rollback", 100)
        load.wait(_LIMIT_S)
        coordinator = running.coordinator("--available-now", transaction__timeout="1h")
        costs = {"coordinator": coordinator.wait(_LIMIT_S)}
        shown = TableLog(coordinator.warehouse / "topics" / "orders").rows()
        assert shown == load.status["committed"], f"{shown} rows of {load.status['committed']} committed transactions"
        costs["copy"] = running.copy("--available-now").wait(_LIMIT_S)
        shutil.rmtree(running.place / "copy")
        costs["untuned"] = running.copy("--available-now", "--defaults").wait(_LIMIT_S)
    figures = {name: row(cost, given.transactions) for name, cost in costs.items()}
    ours = figures["coordinator"]
    for name in ("copy", "untuned"):
        figures[f"ratio to {name}"] = {each: figures[name][each] / ours[each] for each in ("seconds", "cpu_us/tx")}
    rig.report("throughput", given, figures)


def row(cost: rig.Cost, transactions: int) -> dict[str, float]:
    return {
        "seconds": cost.seconds,
        "tx/s": transactions / cost.seconds,
        "cpu_s": cost.cpu_s,
        "cpu_us/tx": cost.cpu_s * 1e6 / transactions,
        "peak_mib": cost.peak_mib,
    }


def backlogs(given: argparse.Namespace) -> None:
    found = {}
    for count, size in _BACKLOGS:
        found[f"{count} of {size} B"] = measure(given, count, size)
        print(count, size, found[f"{count} of {size} B"], flush=True)
    rig.report("backlogs", given, found)


def measure(given: argparse.Namespace, count: int, size: int) -> dict[str, float]:
    with rig.Rig(given) as running:
        running.load("--fill", count, "--bytes", size, "--commit", 1_000, "--rollback", 0).wait(_LIMIT_S)
        coordinator = running.coordinator("--available-now")
        cost = coordinator.wait(_LIMIT_S)
        shown = TableLog(coordinator.warehouse / "topics" / "orders").rows()
    assert shown == count, f"{shown} rows of {count} committed transactions"
    return {"seconds": cost.seconds, "CPU s": cost.cpu_s, "peak MiB": cost.peak_mib}


if __name__ == "__main__":
    main()
