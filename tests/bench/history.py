"""How long commands take after millions of transactions, in a warehouse that is written for them.

    .venv/bin/python -m tests.bench.history audit --decided 20000000
    .venv/bin/python -m tests.bench.history erase --decided 20000000
    .venv/bin/python -m tests.bench.history questions --decided 20000000

Each is the command that users start, with all that a start costs. 20 M transactions take 7 GB, 2.5 GB for an audit.

`audit`: the first must find all well; before the second one of the visible rows is written once more, and just that
must be found.

`erase`: the one message of a person, in the middle of the history, is counted, then erased; and how many files that
replaces.

`questions`: without Spark and with it; the first run finds files that may not be in memory. Asked for is what stands
in the middle of the history. With `--warehouse` it reads one that `synthetic` has written.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from tests.bench import rig, synthetic
from tests.bench.observer import tables

_LIMIT_S = 7_200
_OPEN = 10_000
_OPEN_OF_A_MILLION = 1_000
Figures = dict[str, dict[str, Any]]


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("what", choices=["audit", "erase", "questions"])
    parser.add_argument("--decided", type=int, default=20_000_000, help="transactions with an end")
    parser.add_argument("--warehouse", type=Path, help="questions: one that synthetic has written")
    parser.add_argument("--without-spark", action="store_true", help="questions: only those that need no Spark")
    parser.add_argument("--runs", type=int, default=5, help="questions: of each one without Spark")
    given = parser.parse_args()
    with rig.place(given) as place:
        figures = {"audit": audits, "erase": erasure, "questions": answers}[given.what](place, given)
    rig.report(given.what, given, figures)


def audits(place: Path, given: argparse.Namespace) -> Figures:
    warehouse, figures = place / "warehouse", {}
    rig.fill(warehouse, place, "--decided", given.decided, "--open", given.decided // 1_000_000 * _OPEN_OF_A_MILLION)
    size = sum(file.stat().st_size for log in tables(warehouse) for file in log.path.rglob("*.parquet"))
    figures["well"] = audit(place, "all is well", given.decided)
    repeat_a_row(warehouse / "topics" / synthetic.TOPIC)
    figures["a row twice"] = audit(place, "VISIBLE_TWICE", given.decided)
    return figures | {"tables": {"gb": size / 1e9}}


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


def erasure(place: Path, given: argparse.Namespace) -> Figures:
    """Fails when the bytes are still read."""
    warehouse = place / "warehouse"
    rig.fill(warehouse, place, "--decided", given.decided)
    keys = some(warehouse)["keys"]
    count = sum(len(DeltaTable(log.path).file_uris()) for log in tables(warehouse))
    figures: Figures = {"counted": erase(place, keys), "erased": erase(place, keys, "--yes")}
    return figures | {"files": {"all": count, "replaced": sum(replaced(log.path) for log in tables(warehouse))}}


def erase(place: Path, keys: str, *more: str) -> dict[str, float]:
    words = (synthetic.TOPIC, "--keys", keys, "--remark", "bench", "--set", f"warehouse={place}/warehouse")
    erasing = rig.Child(rig.command("erase", *words, *more), place / "erase.log")
    cost = erasing.wait(_LIMIT_S)
    return {"seconds": cost.seconds, "cpu_s": cost.cpu_s, "peak_mib": cost.peak_mib}


def replaced(table: Path) -> int:
    """Files that the newest commit of a table has replaced."""
    metrics = DeltaTable(table).history(1)[0].get("operationMetrics", {})
    return int(metrics.get("numRemovedFiles", 0))


def answers(place: Path, given: argparse.Namespace) -> Figures:
    warehouse = given.warehouse or place / "warehouse"
    if given.warehouse is None:
        rig.fill(warehouse, place, "--decided", given.decided, "--open", _OPEN)
    figures = {"--help": asked(given.runs, "--help")}
    for name, words in questions(warehouse).items():
        figures[name] = asked(given.runs, *words, "--set", f"warehouse={warehouse}")
    for name, words in ({} if given.without_spark else questions_of_spark(warehouse)).items():
        figures[name] = asked(1, *words, "--set", f"warehouse={warehouse}")
    return figures


def questions(warehouse: Path) -> dict[str, tuple[str, ...]]:
    """Commands by what they ask."""
    row = some(warehouse)
    return {
        "tx show, a transaction id": ("tx", "show", row["transaction_id"], "--json"),
        "tx show, a message id": ("tx", "show", row["message_id"], "--json"),
        "tx list, a key": ("tx", "list", "--keys", row["keys"]),
        "tx list, the newest": ("tx", "list"),
        "tx list, the newest rolled back": ("tx", "list", "--state", "ROLLED_BACK"),
        "tx hanging": ("tx", "hanging", "--older-than", "1s"),
        "stats of an hour": ("stats", "--since", "1h"),
        "stats of all": ("stats",),
    }


def questions_of_spark(warehouse: Path) -> dict[str, tuple[str, ...]]:
    """The same where Spark's ledger answers them."""
    return {
        "ledger, a transaction id": ("ledger", some(warehouse)["transaction_id"]),
        "ledger --pending": ("ledger", "--pending"),
        "ledger --summary": ("ledger", "--summary"),
    }


def some(warehouse: Path) -> dict[str, str]:
    """Ids and key of a half message in the middle of the history, which was committed."""
    half = f"read_parquet('{warehouse}/half/*/*.parquet')"
    committed = "queue = 0 AND queue_offset % 9 != 0"
    sql = f"FROM {half} WHERE {committed} AND queue_offset >= (SELECT max(queue_offset) // 2 FROM {half}) LIMIT 1"
    with duckdb.connect() as db:
        row: dict[str, str] = db.sql(sql).to_arrow_table().to_pylist()[0]
    return row


def asked(runs: int, *words: str) -> dict[str, float]:
    """Asks; fails when nothing is found."""
    seconds = []
    for _ in range(runs):
        begun = time.monotonic()
        done = subprocess.run(rig.command(*words), check=True, capture_output=True)
        seconds.append(time.monotonic() - begun)
        assert done.stdout.strip(), words
    return {"least": min(seconds), "median": statistics.median(seconds)}


if __name__ == "__main__":
    main()
