"""How long the erasure of one person takes after millions of transactions, and how many files it replaces.

    .venv/bin/python -m tests.bench.erase --decided 20000000

The person has one message, in the middle of the history. Both are the command that users start: it counts, then erases.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from tests.bench import questions, rig, synthetic
from tests.bench.observer import tables

_LIMIT_S = 7_200


def main() -> None:
    """Writes the tables, measures and prints; fails when the bytes are still read."""
    parser = rig.parser(__doc__)
    parser.add_argument("--decided", type=int, default=20_000_000, help="transactions with an end")
    given = parser.parse_args()
    with rig.place(given) as place:
        warehouse = place / "warehouse"
        rig.fill(warehouse, place, "--decided", given.decided)
        keys = questions.some(warehouse)["keys"]
        count = sum(len(DeltaTable(log.path).file_uris()) for log in tables(warehouse))
        figures: dict[str, dict[str, Any]] = {"counted": erase(place, given, keys)}
        figures["erased"] = erase(place, given, keys, "--yes")
        figures["files"] = {"all": count, "replaced": sum(replaced(log.path) for log in tables(warehouse))}
    rig.report("erase", given, figures)


def erase(place: Path, given: argparse.Namespace, keys: str, *more: str) -> dict[str, float]:
    words = (synthetic.TOPIC, "--keys", keys, "--remark", "bench", "--set", f"warehouse={place}/warehouse")
    erasing = rig.Child(rig.command("erase", *words, *more), place / "erase.log")
    cost = erasing.wait(_LIMIT_S)
    return {"seconds": cost.seconds, "cpu_s": cost.cpu_s, "peak_mib": cost.peak_mib}


def replaced(table: Path) -> int:
    """Files that the newest commit of a table has replaced."""
    metrics = DeltaTable(table).history(1)[0].get("operationMetrics", {})
    return int(metrics.get("numRemovedFiles", 0))


if __name__ == "__main__":
    main()
