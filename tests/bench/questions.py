"""How long questions take after millions of transactions, without Spark and with it.

    .venv/bin/python -m tests.bench.questions --decided 20000000
    .venv/bin/python -m tests.bench.questions --warehouse DIRECTORY

Each is the command that people type, with all that its start costs; the first of the runs finds files that may not be
in memory. What is asked for is in the middle of the history. 20 M transactions take 7 GB.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from pathlib import Path

import duckdb
from tests.bench import rig

_OPEN = 10_000


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("--decided", type=int, default=20_000_000, help="transactions with an end")
    parser.add_argument("--warehouse", type=Path, help="one that synthetic has written")
    parser.add_argument("--without-spark", action="store_true", help="ask only those that need no Spark")
    parser.add_argument("--runs", type=int, default=5, help="of each question without Spark")
    given = parser.parse_args()
    with rig.place(given) as place:
        warehouse = given.warehouse or place / "warehouse"
        if given.warehouse is None:
            history = ("--decided", given.decided, "--open", _OPEN)
            rig.fill(warehouse, place, *history)
        figures = {"--help": asked(given.runs, "--help")}
        for name, words in questions(warehouse).items():
            figures[name] = asked(given.runs, *words, "--set", f"warehouse={warehouse}")
        for name, words in ({} if given.without_spark else questions_of_spark(warehouse)).items():
            figures[name] = asked(1, *words, "--set", f"warehouse={warehouse}")
    rig.report("questions", given, figures)


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
