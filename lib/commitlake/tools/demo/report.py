"""The demo's output at its end."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from shlex import quote

from commitlake.tools.demo.comparison import OrderTables
from commitlake.tools.demo.orders import TOPIC
from commitlake.tools.demo.scenario import Scenario
from commitlake.tools.demo.shop import TOTAL

_ROWS = 3
_WORDS = {"DIRECT": "at once", "CHECK": "after a check", "CHECK_MAX": "still unknown after the last check"}


def show(story: Scenario, differences: list[str], seconds: float) -> None:
    """Print the counts, what a consumer sees, where the tables are, and whether all sides agree."""
    tables = story.tables
    where = place(tables.root, TOPIC)
    blocks = (summary(story, seconds), rows(tables, TOPIC), where, next_steps(tables), verdict(differences))
    print("\n" + "\n\n".join("\n".join(block) for block in blocks), flush=True)


def summary(story: Scenario, seconds: float) -> list[str]:
    """Return the counts of transactional messages by state and reason."""
    counts = story.counts
    states = ("COMMITTED", "ROLLED_BACK", "DISCARDED", "PENDING")
    return [
        f"{counts['half']} half messages of {TOTAL} orders, after {seconds:.0f} s:",
        f"  {story.tables.median_s(TOPIC):.1f} s from a commit to its row, the median, the killed coordinator included",
        *(_line(state.lower().replace("_", " "), counts[state], _reasons(counts, state)) for state in states),
        _line("checks", counts["checks"], "sent"),
        _line("paid orders", len(story.points.worked_on()), "have points; one of them has messages in two topics"),
        _line("shipped", len(story.logistics.worked_on()), f"of them, {story.logistics.retried} at the second attempt"),
        _line("rejected", counts["rejected"], "records"),
    ]


def _line(name: str, count: int, remark: str) -> str:
    return f"  {name:12} {count:4}  {remark}".rstrip()


def _reasons(counts: Counter[str], state: str) -> str:
    by = {name.removeprefix(f"{state} "): count for name, count in counts.items() if name.startswith(f"{state} ")}
    return ", ".join(f"{by[reason]} {_WORDS.get(reason, reason)}" for reason in sorted(by, reverse=True))


def rows(tables: OrderTables, topic: str) -> list[str]:
    """Return the first rows of a topic table, as a consumer reads them."""
    sql = f"""
    SELECT queue_id, keys, decode(body), (epoch_ms(visible_at) - epoch_ms(stored_at)) / 1000 FROM {{0}}
    ORDER BY visible_at, keys LIMIT {_ROWS}
    """
    found = [
        f"  queue {queue}  {keys}  {body}  visible {seconds:.1f} s after its send"
        for queue, keys, body, seconds in tables.query(sql, f"topics/{topic}")
    ]
    return [f"the first {_ROWS} rows of topics/{topic}, as a consumer sees them:", *found]


def place(warehouse: Path, topic: str) -> list[str]:
    """Return where the tables are, and how to read one."""
    # Not its `to_pandas`, which with pyarrow 26 may abort at the exit.
    table = f"DeltaTable({json.dumps(f'{warehouse}/topics/{topic}', ensure_ascii=False)})"
    imports = "import pandas; from urllib.parse import unquote; from deltalake import DeltaTable"
    look = f"{imports}; print(pandas.read_parquet([*map(unquote, {table}.file_uris())], partitioning=None))"
    return [
        f"the tables are in {warehouse}; look with any Delta reader, for example (pip install deltalake pandas):",
        f"  python -c {quote(look)}",
    ]


def next_steps(tables: OrderTables) -> list[str]:
    """Return three commands to try on the demo's tables."""
    beside = Path(sys.executable).with_name("commitlake")
    program = quote(str(beside)) if beside.exists() else f"{quote(sys.executable)} -m commitlake.tools.cli"
    ((lost,),) = tables.query("SELECT any_value(transaction_id) FROM {0} WHERE state = 'DISCARDED'", "transactions")
    words = ("tx list --state DISCARDED", f"tx show {lost}", "stats")
    where = quote(f"warehouse={tables.root}")
    return ["try next:", *(f"  {program} {each} --set {where}" for each in words)]


def verdict(differences: list[str]) -> list[str]:
    """Return whether all sides agree, and what differs if not."""
    if differences:
        return ["NOT all right:", *(f"  {line}" for line in differences)]
    return ["all right: nothing is pending; order table, topic table, points and shipments hold the same orders"]
