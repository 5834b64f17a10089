"""The notebooks, run as they are, with nothing installed but the extra `notebook`."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
from deltalake import DeltaTable
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyspark.sql import SparkSession
from tests.support.polling import wait_for

import commitlake
from commitlake import DefaultMQProducer, Message
from commitlake.coordinator import restarts
from commitlake.errors import CommitLakeError
from commitlake.kafka.embedded import EmbeddedBroker

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "notebooks" / "quickstart.py"
EXAMPLES = ROOT / "notebooks" / "examples"

# Python runs it at every start, so Spark's workers are held to it too.
SITECUSTOMIZE = """
import importlib.util
import sys

def is_refused(name):
    return name.partition(".")[0] in {refused}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if is_refused(name):
            raise ModuleNotFoundError(f"{{name}} is not installed by commitlake[notebook]", name=name)

find_spec = importlib.util.find_spec  # PySpark asks it what is there
importlib.util.find_spec = lambda name, package=None: None if is_refused(name) else find_spec(name, package)
sys.meta_path.insert(0, Refuse())
"""


def installed_by(requirement: str) -> set[str]:
    """The distributions that pip installs for a requirement."""
    found: dict[tuple[str, frozenset[str]], None] = {}
    waiting = [Requirement(requirement)]
    while waiting:
        wanted = waiting.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in found:
            continue
        found[key] = None
        for text in _requires(wanted.name):
            needed = Requirement(text)
            extras = wanted.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return {name for name, _ in found}


def _requires(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # JupyterLab, which opens notebooks and is not part of the extra `dev`
        return []


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which only what `commitlake[notebook]` installs can be imported."""
    allowed = installed_by("commitlake[notebook]")
    assert "matplotlib" in allowed, "the environment is older than setup.py; run ./spark-submit.sh --set-up dev"
    refused = {
        module
        for module, names in metadata.packages_distributions().items()
        if allowed.isdisjoint(map(canonicalize_name, names))
    }
    assert "pytest" in refused
    place = tmp_path_factory.mktemp("alone")
    (place / "sitecustomize.py").write_text(SITECUSTOMIZE.format(refused=refused))
    paths = [str(place), str(ROOT / "lib")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def test_nothing_else_can_be_imported(alone: dict[str, str]) -> None:
    for module, code in (("commitlake", 0), ("matplotlib", 0), ("pyspark", 0), ("pytest", 1), ("chispa", 1)):
        done = subprocess.run([sys.executable, "-c", f"import {module}"], env=alone, capture_output=True, check=False)
        assert done.returncode == code, done.stderr


def test_the_quickstart_shows_each_end_of_a_transaction(
    alone: dict[str, str], broker: EmbeddedBroker, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    own = {
        "QUICKSTART_PLACE": str(tmp_path),
        "QUICKSTART_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "MPLBACKEND": "Agg",
        "TMPDIR": str(tmp_path / "tmp"),
    }
    done = subprocess.run(
        [sys.executable, QUICKSTART], env=alone | own, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr

    ends = DeltaTable(str(tmp_path / "warehouse" / "transactions")).to_pyarrow_table().to_pylist()
    assert Counter((row["state"], row["reason"]) for row in ends) == {
        ("COMMITTED", "DIRECT"): 28,
        ("COMMITTED", "CHECK"): 4,
        ("ROLLED_BACK", "DIRECT"): 4,
        ("DISCARDED", "CHECK_MAX"): 4,
    }
    visible = DeltaTable(str(tmp_path / "warehouse" / "topics" / "orders")).to_pyarrow_table()["keys"].to_pylist()
    (database,) = (tmp_path / "tmp").rglob("orders.db")
    with sqlite3.connect(database) as db:
        assert sorted(visible) == sorted(row[0] for row in db.execute("SELECT id FROM orders"))
    assert (tmp_path / "quickstart.png").read_bytes().startswith(b"\x89PNG")


def printed(notebook: str, alone: dict[str, str], **own: str) -> list[str]:
    """The lines that a notebook prints; it ends well."""
    done = subprocess.run(
        [sys.executable, ROOT / "notebooks" / notebook],
        env={**alone, **own}, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.soak
def test_delta_commits_and_streams_are_local_transactions(alone: dict[str, str], tmp_path: Path) -> None:
    assert printed("delta_tables.py", alone, DELTA_PLACE=str(tmp_path)) == [
        "the job fails",
        "1000 rows in the table",
        "1 message of it, 20 of the streaming query",
        "1 payment; again attempt: DUPLICATE_OF messages",
    ]


@pytest.mark.long
def test_bodies_of_a_typed_topic_are_columns_to_spark_and_duckdb(alone: dict[str, str], tmp_path: Path) -> None:
    assert printed("typed_topics.py", alone, TYPED_PLACE=str(tmp_path)) == [
        "Spark: o-1 ann 20.00, sent 2 times",
        "Spark: o-2 bob 5.50, sent 1 times",
        "DuckDB: o-1 ann 20.00",
        "DuckDB: o-2 bob 5.50",
        "o-3: NO_OBJECT, one espresso",
    ]


def test_a_session_that_is_there_needs_only_the_defaults(
    spark: SparkSession, alone: dict[str, str], tmp_path: Path
) -> None:
    with commitlake.start(spark, {name: str(tmp_path / name) for name in ("warehouse", "checkpoints")}) as running:
        servers = running.config.kafka.bootstrap_servers
        with DefaultMQProducer("shop", bootstrap_servers=servers) as producer:
            producer.send(Message("news", "opened"))
        table = f"{tmp_path}/warehouse/topics/news"
        wait_for(lambda: DeltaTable.is_deltatable(table) and DeltaTable(table).count() == 1, 60)
        examples_run(alone, servers, str(tmp_path / "warehouse"))
    with socket.socket() as probe:  # its broker is gone
        assert probe.connect_ex(("127.0.0.1", int(servers.rpartition(":")[2]))) != 0


def test_a_start_changes_nothing_in_the_callers_session(
    spark: SparkSession,
    broker: EmbeddedBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does a failure need somebody who waits for it."""
    monkeypatch.setattr(restarts, "PAUSES_S", ())
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    before = spark.conf.getAll
    failures: list[CommitLakeError] = []
    conf: dict[str, object] = {
        **{name: str(tmp_path / name) for name in ("warehouse", "checkpoints")},
        "kafka": {"bootstrap_servers": broker.bootstrap_servers, "topic_prefix": "beside.", "queues": 1},
    }
    with commitlake.start(spark, conf, on_failure=failures.append):
        assert spark.conf.getAll == before
        assert spark.streams.active == []
        shutil.rmtree(tmp_path / "warehouse" / "positions")
        (tmp_path / "warehouse" / "positions").write_text("no directory, so no table can be made here again")
        with DefaultMQProducer("shop", bootstrap_servers=broker.bootstrap_servers, topic_prefix="beside.") as producer:
            producer.send(Message("news", "opened"))
        wait_for(lambda: failures, why=lambda: caplog.messages)
    spark.conf.unset("spark.sql.shuffle.partitions")
    assert "cannot write to the table at" in str(failures[0])
    assert any("the coordinator has stopped: cannot write to the table at" in line for line in caplog.messages)


def examples_run(environment: dict[str, str], servers: str, warehouse: str) -> None:
    transactions = subprocess.Popen(
        [sys.executable, EXAMPLES / "rocketmq_transaction.py", servers],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # What a shell runs in the background ignores SIGINT, and so do its children: Ctrl-C would do nothing.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip
    try:
        schedule = subprocess.run(
            [sys.executable, EXAMPLES / "rocketmq_schedule.py", servers, warehouse],
            env=environment, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
    finally:
        transactions.send_signal(signal.SIGINT)
        printed, errors = transactions.communicate(timeout=60)
    assert (schedule.returncode, schedule.stderr) == (0, "")
    waited = [float(seconds) for seconds in re.findall(r"visible ([\d.]+) s after it was stored\n", schedule.stdout)]
    assert (len(waited), min(waited) >= 10) == (100, True)
    assert (transactions.returncode, errors) == (0, "")
    assert len(printed.splitlines()) == 10


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda path: path.stem)
def test_a_notebook_is_in_databricks_source_form(notebook: Path) -> None:
    text = notebook.read_text()
    assert text.startswith("# Databricks notebook source\n")
    cells = text.split("# COMMAND ----------\n")
    assert len(cells) >= 6
    for cell in cells:
        is_prose = "# MAGIC" in cell
        assert is_prose != bool(ast.parse(cell).body), cell
