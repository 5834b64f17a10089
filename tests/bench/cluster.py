"""The same backlog in Kafka, each from a cold start: on local disk and on HDFS, in one process and on executors.

    .venv/bin/python -m tests.bench.cluster --transactions 300000

The cluster is a standalone one on this machine, with a worker of one core or two of them: what distribution costs, not
what more machines gain.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from deltalake import DeltaTable
from tests.bench import rig
from tests.support.cluster import hdfs, standalone

_LIMIT_S = 3_600


def main() -> None:
    """Measures and prints; fails when not just the committed rows are visible."""
    parser = rig.parser(__doc__)
    parser.add_argument("--transactions", type=int, default=300_000)
    given = parser.parse_args()
    figures = {}
    with rig.Rig(given) as running, ExitStack() as stack:
        load = running.load("--fill", given.transactions, "--commit", 800, "--rollback", 100)
        load.wait(_LIMIT_S)
        (running.place / "hdfs").mkdir()
        files = stack.enter_context(hdfs(running.place / "hdfs"))
        for name, place, workers in (
            ("one process, local disk", str(running.place), 0),
            ("one process, HDFS", f"{files}/one", 0),
            ("1 executor, HDFS", f"{files}/two", 1),
            ("2 executors, HDFS", f"{files}/three", 2),
        ):
            with ExitStack() as cluster:
                master = "local[2]"
                if workers:
                    master = cluster.enter_context(standalone(running.place / f"spark-{workers}", workers)).address
                own: dict[str, Any] = {"warehouse": f"{place}/warehouse", "checkpoints": f"{place}/checkpoints"}
                arguments = ("--available-now", "--master", master)
                cost = running.coordinator(*arguments, transaction__timeout="1h", **own).wait(_LIMIT_S)
            shown = DeltaTable(f"{place}/warehouse/topics/orders").count()
            assert shown == load.status["committed"], (
                f"{shown} rows of {load.status['committed']} committed transactions"
            )
            figures[name] = {"seconds": cost.seconds, "tx/s": given.transactions / cost.seconds}
    rig.report("cluster", given, figures)


if __name__ == "__main__":
    main()
