"""Sets the demo up: the coordinator, three shops of which one is killed, and two services downstream.

The demo uses the exports and commands of `commitlake`, Kafka's client and SQLite, as an application would.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from commitlake.tools.demo import report, scenario, shop
from commitlake.tools.demo.comparison import OrderTables
from commitlake.tools.demo.downstream import Service
from commitlake.tools.demo.orders import OrderTable
from commitlake.tools.demo.processes import CoordinatorProcess, instances
from commitlake.tools.demo.progress import DemoProgress
from commitlake.tools.demo.scenario import Scenario

# Short times make a short story. After six seconds, Kafka's least, a killed shop's checks go to another one.
SETTINGS: dict[str, object] = {
    "trigger_interval": "1s",
    "transaction": {"timeout": "2s", "check_interval": "2s", "check_max": 4},
}
KAFKA: dict[str, object] = {"options": {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1500"}}


def run(
    place: Path,
    directories: Mapping[str, object],
    broker: Any,
    coordinator: Sequence[str],
    audit: Sequence[str],
    columns: int,
) -> int:
    """Play the story and print the report; returns 0 when all agree at its end, else 1.

    Args:
        place: a directory for the configuration, and for the databases of the services.
        directories: keys of the configuration, where the tables are.
        broker: starts Kafka as it is entered, at `bootstrap_servers`.
        coordinator: the command `commitlake run`, which ends when its standard input does.
        audit: the command `commitlake audit`.
        columns: width of the terminal; 0 when there is none.

    Raises:
        CommitLakeError: something does not start or fails on the way.
    """
    progress = DemoProgress(columns)
    print(scenario.STORY, flush=True)
    progress.write("starting a Kafka broker and the coordinator (longer the first time) ...")
    conf = place / "demo.yaml"
    with broker:
        kafka = {"bootstrap_servers": broker.bootstrap_servers, **KAFKA}
        conf.write_text(yaml.safe_dump({**SETTINGS, **directories, "kafka": kafka}, sort_keys=False))
        tables = OrderTables(Path(str(directories["warehouse"])), broker.bootstrap_servers)
        differences = _play(place, conf, kafka, tables, [*coordinator, "--conf", str(conf)], progress)
    return max(_audit([*audit, "--conf", str(conf)], progress), int(bool(differences)))


def _play(
    place: Path, conf: Path, kafka: Mapping[str, Any], tables: OrderTables, command: list[str], progress: DemoProgress
) -> list[str]:
    table = OrderTable(str(place / "orders.db"))
    table.create(shop.BALANCES)
    producer = {**kafka, **shop.PATIENT}
    with ExitStack() as started:
        enter = started.enter_context
        coordinator = enter(CoordinatorProcess(command, place / "coordinator.log"))
        points = enter(Service(conf, tables.root, "points", place))
        logistics = enter(Service(conf, tables.root, "logistics", place, fails_first=7))
        shops = enter(instances(place / "orders.db", producer, progress.write))
        story = Scenario(coordinator, tables, table, shops, points, logistics, progress)
        differences = story.play(producer)
        report.show(story, differences, progress.seconds)
    return differences


def _audit(command: list[str], progress: DemoProgress) -> int:
    """Run `commitlake audit`, and print its verdict, or its whole output when it finds something."""
    print(flush=True)
    progress.write("the audit compares the tables message by message ...")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout.strip()
    progress.write(said.rpartition("\n")[2] if done.returncode == 0 else f"{said}\n{done.stderr.strip()}")
    return int(done.returncode != 0)
