"""Sets the demo up, and reports at its end: a coordinator and its standby, three shops, and two services.

The demo uses the exports and commands of `commitlake`, Kafka's client and SQLite, as an application would.
"""

from __future__ import annotations

import json
import subprocess
import sys
import webbrowser
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from commitlake.tools.demo import scenario, shop
from commitlake.tools.demo.comparison import OrderTables
from commitlake.tools.demo.orders import TOPIC
from commitlake.tools.demo.picture import of_a_checked_order
from commitlake.tools.demo.progress import DemoProgress
from commitlake.tools.demo.scenario import Scenario

# Short times make a short story. After six seconds, Kafka's least, a killed shop's checks go to another one.
SETTINGS: dict[str, object] = {
    "trigger_interval": "1s",
    "transaction": {"timeout": "2s", "check_interval": "2s", "check_max": 4},
}
KAFKA: dict[str, object] = {"options": {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1500"}}
_ROWS = 3
_WORDS = {"DIRECT": "at once", "CHECK": "after a check", "CHECK_MAX": "still unknown after the last check"}


def run(
    place: Path,
    directories: Mapping[str, object],
    broker: Any,
    coordinator: Sequence[str],
    report: Sequence[str],
    columns: int,
    *,
    is_opened: bool,
) -> int:
    """Play the story and print the report; returns 0 when all agree at its end, else 1.

    Args:
        place: a directory for the configuration, and for the databases of the services.
        directories: keys of the configuration, where the tables are.
        broker: starts Kafka as it is entered, at `bootstrap_servers`.
        coordinator: the command `commitlake run`, which ends when its standard input does.
        report: the command `commitlake report`.
        columns: width of the terminal; 0 when there is none.
        is_opened: whether a browser opens the report.

    Raises:
        CommitLakeError: something does not start or fails on the way.
    """
    progress = DemoProgress(columns)
    print(scenario.STORY, flush=True)
    progress.write("starting a Kafka broker and the coordinator (longer the first time) ...")
    conf = place / "demo.yaml"
    with broker, ExitStack() as started:
        kafka = {"bootstrap_servers": broker.bootstrap_servers, **KAFKA}
        conf.write_text(yaml.safe_dump({**SETTINGS, **directories, "kafka": kafka}, sort_keys=False))
        tables = OrderTables(Path(str(directories["warehouse"])), broker.bootstrap_servers)
        command = [*coordinator, "--conf", str(conf)]
        story = Scenario(place, conf, {**kafka, **shop.PATIENT}, command, tables, progress, started)
        differences = story.play()
        seconds, page = progress.seconds, place / "report.html"
        written = subprocess.Popen([*report, f"--conf={conf}", f"--out={page}"], stdout=subprocess.DEVNULL)
        is_well = _audit(story)
        written.wait()
        _report(story, differences, seconds, page)
    if is_opened and not webbrowser.open(page.as_uri()):
        print(f"\nthere is no browser; open {page.as_uri()} in one")
    return int(bool(differences) or not is_well)


def _audit(story: Scenario) -> bool:
    """Print the audit's verdict, and what it found; return whether all is well."""
    if story.auditor is None:  # the story did not come so far
        return False
    story.progress.write("the audit compares the tables message by message ...")
    is_well, said = story.auditor.audit()
    story.progress.write(said)
    return is_well


def _report(story: Scenario, differences: list[str], seconds: float, page: Path) -> None:
    """Print the counts, and what still differs or else the orders and one's life, and what to try next."""
    tables, blocks = story.tables, [_summary(story, seconds)]
    if differences:
        blocks.append(["NOT all right:", *(f"  {line}" for line in differences)])
    else:
        order, picture = of_a_checked_order(tables, story.killed())
        blocks += [
            _rows(tables, TOPIC),
            _how_to_look(tables.root, TOPIC),
            [f"what happened to {order}, in seconds since its send:", *picture],
            ["all right: nothing is pending; order table, topic table, points and shipments hold the same orders"],
            _next_steps(tables.root, order, page),
        ]
    print("\n" + "\n\n".join("\n".join(block) for block in blocks), flush=True)


def _summary(story: Scenario, seconds: float) -> list[str]:
    """Return the counts of transactional messages by state and reason."""
    counts = story.counts
    states = ("COMMITTED", "ROLLED_BACK", "DISCARDED", "PENDING")
    return [
        f"{counts['half']} half messages of {shop.TOTAL} orders, after {seconds:.0f} s:",
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


def _rows(tables: OrderTables, topic: str) -> list[str]:
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


def _how_to_look(warehouse: Path, topic: str) -> list[str]:
    """Return where the tables are, and how to read one."""
    # Not its `to_pandas`, which with pyarrow 26 may abort at the exit.
    table = f"DeltaTable({json.dumps(f'{warehouse}/topics/{topic}', ensure_ascii=False)})"
    imports = "import pandas; from urllib.parse import unquote; from deltalake import DeltaTable"
    look = f"{imports}; print(pandas.read_parquet([*map(unquote, {table}.file_uris())], partitioning=None))"
    return [
        f"the tables are in {warehouse}; look with any Delta reader, for example:",
        f"  {quote(sys.executable)} -c {quote(look)}",
    ]


def _next_steps(warehouse: Path, order: str, page: Path) -> list[str]:
    """Return three commands to try: what became of an order, what was discarded, and the report."""
    python, beside = quote(sys.executable), Path(sys.executable).with_name("commitlake")
    program = quote(str(beside)) if beside.exists() else f"{python} -m commitlake.tools.cli"
    where = quote(f"warehouse={warehouse}")
    return [
        "try next:",
        f"  {program} find {order} --set {where}",
        f"  {program} tx list --state DISCARDED --set {where}",
        f"  {python} -m webbrowser {quote(page.as_uri())}",
    ]
