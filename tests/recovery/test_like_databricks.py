"""A coordinator in a session like those of Databricks (`support/databricks`), which is killed, starts again, and ends.

Beside it jobs and notebooks run there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.killing import ENVIRONMENT, kill
from tests.support.lake import Lake
from tests.support.polling import WAIT_S, patience, wait_for, wait_until_equal

from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.spark import runtime

CATALOG = Path(__file__).parents[1] / "support" / "catalog" / "NamedCatalog.java"
SHOWN = {
    "reading": ["orders: 4 rows up to batch", "daily: 1 rows up to batch"],
    "ledger": ["|COMMITTED", "half message"],
    "operations": ["all is well"],
    "quickstart": ["DISCARDED", "Figure"],
    "delta_tables": ["1 message of it, 20 of the streaming query"],
    "typed_topics": ["Spark: o-1 ann 20.00, sent 2 times", "DuckDB: o-2 bob 5.50"],
}
"""Notebooks, and what stands in their output."""
FALLBACKS = ("Delta's writer appends", "Delta deletes old commits once a day", "Delta prints a line for each table")


class Notebook:
    """The process, and what it has printed."""

    def __init__(self, root: Path, log: Path, *runs: str) -> None:
        self._log = log
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.databricks", str(root), *runs],
            stdin=subprocess.PIPE, stdout=log.open("w"), stderr=subprocess.STDOUT, cwd=root, start_new_session=True,
            env={**ENVIRONMENT, "PYSPARK_PYTHON": sys.executable, "MPLBACKEND": "Agg"},
        )  # fmt: skip

    def line(self, word: str) -> str:
        """The first line with a word, once it is there; fails when the process ends before."""

        def find() -> str | None:
            is_over = self.process.poll() is not None
            found = [line for line in self._log.read_text().splitlines() if line.startswith(word)]
            assert found or not is_over, self._log.read_text()[-4_000:]
            return found[0] if found else None

        return wait_for(find, WAIT_S * patience(), why=lambda: self._log.read_text()[-4_000:])

    def printed(self) -> str:
        return self._log.read_text()

    def output_of(self, notebook: str) -> str:
        """What a notebook has printed."""
        return self.printed().partition(f"NOTEBOOK {notebook}\n")[2].partition("NOTEBOOK ")[0]

    def end(self) -> None:
        """Lets it do the rest of its work."""
        self.process.communicate(b"\n", timeout=400 * patience())


@contextmanager
def notebook(root: Path, name: str, *runs: str) -> Iterator[Notebook]:
    opened = Notebook(root, root / name, *runs)
    try:
        yield opened
    finally:
        kill(opened.process)


@pytest.fixture
def root(broker: EmbeddedBroker, tmp_path: Path) -> Path:
    """A volume with the configuration, one for checkpoints, the root of the file system, and a catalog's class."""
    volumes = tmp_path / "Volumes" / "main" / "lake"
    conf: dict[str, Any] = {
        "warehouse": "schema:main.lake",
        "checkpoints": str(volumes / "checkpoints"),
        "kafka": {
            "bootstrap_servers": broker.bootstrap_servers,
            "topic_prefix": "like-databricks.",
            "queues": 2,
            "options": {"client.id": "secret:commitlake/client"},
        },
        "trigger_interval": "200ms",
        "catalog": {"location": f"{tmp_path}/dbfs/lake.db"},
        "receipts": f"{tmp_path}/receipts",
        "checks": {"nightly": {"table": "delta-log", "places": [f"{tmp_path}/sales.db"]}},
    }
    for place in (volumes / "checkpoints", volumes / "conf", tmp_path / "dbfs"):
        place.mkdir(parents=True)
    (volumes / "conf" / "databricks.yaml").write_text(yaml.safe_dump(conf))
    jars = [f"{runtime.spark_home()}/jars/*", *runtime.jars(runtime.packages())]
    subprocess.run(["javac", "-cp", ":".join(jars), "-d", tmp_path / "classes", CATALOG], check=True)
    return tmp_path


@pytest.mark.long
def test_a_coordinator_of_a_catalog_is_killed_and_goes_on_without_deltas_classes_and_jobs_and_notebooks_run(
    root: Path, broker: EmbeddedBroker
) -> None:
    warehouse = f"{root}/dbfs/lake.db"
    with Lake(broker.bootstrap_servers, "like-databricks.", root, warehouse=warehouse) as lake:
        with notebook(root, "first") as first:
            first.line("READY 1")
            assert [each for each in FALLBACKS if each not in first.printed()] == []
            lake.commit("a", "b")
            lake.op("ROLLBACK", "r", lake.half("r"))
            wait_until_equal(lambda: shown(warehouse), ["a", "b"], WAIT_S * patience())
            lake.commit("c")
        with notebook(root, "second", "all") as second:
            second.line("READY 2")
            scratch = root / "Volumes/main/lake/checkpoints"
            wait_until_equal(lambda: sorted(each.name[0] for each in scratch.glob("*/landing/*-*")), ["2"])
            lake.commit("d")
            wait_until_equal(lambda: shown(warehouse), ["a", "b", "c", "d"], WAIT_S * patience())
            second.end()
            assert second.line("JOBS") == "JOBS (['0', '1', '2', 'of a transaction'], 3)"
            assert second.line("AUDIT") == "AUDIT []"
            for name, shown_there in SHOWN.items():
                printed = second.output_of(name)
                assert [text for text in shown_there if text not in printed] == [], (name, printed)
            assert second.process.returncode == 0, second.printed()[-4_000:]


def shown(warehouse: str) -> list[str]:
    """Bodies that are visible."""
    from deltalake import DeltaTable

    table = f"{warehouse}/topic_orders"
    if not DeltaTable.is_deltatable(table):
        return []
    return sorted(body.decode() for body in DeltaTable(table).to_pyarrow_table()["body"].to_pylist())
