"""From a filled Kafka to tables, each from a cold start: the coordinator with `--available-now`, then the plain copy,
tuned as the coordinator is, and with Spark's defaults.

    .venv/bin/python -m tests.bench.throughput --transactions 1000000

Of 100 transactions 80 are committed, 10 rolled back, and 10 stay open. Wall time is from the start of the process to
its end; CPU is that of the whole process tree.
"""

from __future__ import annotations

import shutil

from tests.bench import rig
from tests.bench.observer import TableLog

_LIMIT_S = 7_200


def main() -> None:
    """Measures and prints; fails when not just the committed rows are visible."""
    parser = rig.parser(__doc__)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    given = parser.parse_args()
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


if __name__ == "__main__":
    main()
