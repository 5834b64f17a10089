"""How soon many transactions end whose producers are gone, once a business table knows what became of them.

    .venv/bin/python -m tests.bench.resolving --half 200000

The half messages come first, and a check of each; nobody answers. Then a Delta table gets a row for each, and the rule
of the coordinator answers all by one join. Counted are the answers in Kafka and the ends in `transactions`, from the
table's commit on.
"""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from tests.bench import rig
from tests.bench.flood import Watch

_GROUP = "flood"
_SILENT = ("--commit", 0, "--rollback", 0, "--group", _GROUP)
_EVERY_S = 2.0


def main() -> None:
    """Measures and prints; fails when not every transaction ends as the table says."""
    parser = rig.parser(__doc__)
    parser.add_argument("--half", type=int, default=200_000, help="half messages without an op")
    parser.add_argument("--limit", type=float, default=900, help="seconds for each of both parts")
    given = parser.parse_args()
    with rig.Rig(given) as running:
        figures = measure(running, given.half, given.limit)
    rig.report("resolving", given, {"all": figures})


def measure(running: rig.Rig, count: int, limit_s: float) -> dict[str, float]:
    """Seconds and rates of answers and ends."""
    place = str(running.place / "business")
    write_deltalake(place, pa.table({"id": pa.array([], pa.string()), "state": pa.array([], pa.string())}))
    rule = {"table": f"delta:{place}", "match": "transaction_id = id", "commit": "state = 'PAID'", "every": "1s"}
    coordinator = running.coordinator(
        transaction__timeout="3s", transaction__check_interval="1s", checks={_GROUP: rule}
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


if __name__ == "__main__":
    main()
