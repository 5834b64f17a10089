"""From a filled Kafka to tables, each from a cold start: the coordinator with `--available-now`, then the plain copy.

    .venv/bin/python -m tests.bench.throughput --transactions 1000000

Of 100 transactions 80 are committed, 10 rolled back, and 10 stay open. Wall time is from the start of the process to
its end; CPU is that of the whole process tree.
"""

from __future__ import annotations

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
    figures = {name: row(cost, given.transactions) for name, cost in costs.items()}
    ratios = {name: figures["copy"][name] / figures["coordinator"][name] for name in ("seconds", "cpu_us/tx")}
    rig.report("throughput", given, figures | {"ratio": ratios})


def row(cost: rig.Cost, transactions: int) -> dict[str, float]:
    """The figures of one process."""
    return {
        "seconds": cost.seconds,
        "tx/s": transactions / cost.seconds,
        "cpu_s": cost.cpu_s,
        "cpu_us/tx": cost.cpu_s * 1e6 / transactions,
        "peak_mib": cost.peak_mib,
    }


if __name__ == "__main__":
    main()
