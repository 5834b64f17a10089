"""How long an audit takes after millions of transactions, in a warehouse that is written for it.

    .venv/bin/python -m tests.bench.audit --decided 20000000

Both audits are the command that users start, with all that a start costs. The first must find all well; before the
second one of the visible rows is written once more, and just that must be found. 20 M transactions take 2.5 GB.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from tests.bench import rig, synthetic
from tests.bench.observer import tables

_LIMIT_S = 7_200
_OPEN = 1_000  # of a million decided ones


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("--decided", type=int, default=20_000_000, help="transactions with an end")
    given = parser.parse_args()
    figures = {}
    with rig.place(given) as place:
        warehouse = place / "warehouse"
        history = ("--decided", given.decided, "--open", given.decided // 1_000_000 * _OPEN)
        rig.fill(warehouse, place, *history)
        size = sum(file.stat().st_size for log in tables(warehouse) for file in log.path.rglob("*.parquet"))
        figures["well"] = audit(place, "all is well", given.decided)
        repeat_a_row(warehouse / "topics" / synthetic.TOPIC)
        figures["a row twice"] = audit(place, "VISIBLE_TWICE", given.decided)
    rig.report("audit", given, figures | {"tables": {"gb": size / 1e9}})


def audit(place: Path, finding: str, decided: int) -> dict[str, float]:
    """Audits; fails when that does not find what it should."""
    command = rig.command("audit", "--set", f"warehouse={place}/warehouse")
    audited = rig.Child(command, place / "audit.log")
    cost = audited.wait(_LIMIT_S, code=int(finding != "all is well"))
    assert finding in audited.output, audited.output
    return {"seconds": cost.seconds, "tx/s": decided / cost.seconds, "cpu_s": cost.cpu_s, "peak_mib": cost.peak_mib}


def repeat_a_row(table: Path) -> None:
    batch = next(DeltaTable(table).to_pyarrow_dataset().to_batches(batch_size=1))
    write_deltalake(table, pa.Table.from_batches([batch]).slice(0, 1), mode="append")


if __name__ == "__main__":
    main()
