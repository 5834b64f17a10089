"""A session as Databricks has it, as near as can be here: renamed classes, another file system, a metastore."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import renamed_delta
from tests.support.killing import ENVIRONMENT, kill
from tests.support.lake import Lake

from commitlake.kafka.embedded import EmbeddedBroker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

DBUTILS = """
class secrets:
    @staticmethod
    def get(scope, key):
        return {"commitlake/pw": "geheim"}[f"{scope}/{key}"]

class dbutils:
    secrets = secrets
"""


class Notebook:
    """A process with such a session and a coordinator in it."""

    def __init__(self, place: Path, conf: dict[str, object], jars: list[str]) -> None:
        package = place / "databricks" / "sdk"
        package.mkdir(parents=True, exist_ok=True)
        (package / "runtime.py").write_text(DBUTILS)
        own = {"DATABRICKS_RUNTIME_VERSION": "17.3", "PYTHONPATH": f"{place}:{ENVIRONMENT['PYTHONPATH']}"}
        module = "tests.support.databricks_child"
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(place), json.dumps(conf), ",".join(jars)],
            *(), env={**ENVIRONMENT, **own}, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(place / "log").open("a"),
        )  # fmt: skip

    def line(self, begins: str) -> str:
        """The next line of its output that begins so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(begins):
                return line.removeprefix(begins).strip()
        raise AssertionError("the notebook has ended")

    def do(self, command: str) -> str:
        """Lets it carry out a command; returns what it says."""
        self.tell(command)
        return self.line(command.partition(" ")[0])

    def tell(self, command: str) -> None:
        """Gives it a command."""
        assert self.process.stdin is not None
        print(command, file=self.process.stdin, flush=True)

    def until(self, command: str, result: str) -> None:
        """Repeats a command until it says so."""
        for _ in range(120):
            if (found := self.do(command)) == result:
                return
            time.sleep(1)
        raise AssertionError(f"{command}: {found}, not {result}")


@pytest.fixture
def lake(broker: EmbeddedBroker, prefix: str, tmp_path: Path) -> Iterator[Lake]:
    with Lake(broker.bootstrap_servers, prefix, tmp_path) as opened:
        yield opened


def test_a_coordinator_runs_is_killed_and_goes_on(
    lake: Lake, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    jars = renamed_delta.beside(renamed_delta.jar(tmp_path_factory.mktemp("delta")))
    conf = {
        **lake.settings,
        "warehouse": "schema:spark_catalog.lake",
        "checkpoints": "dbfs:/checkpoints",
        "kafka.options": {"ssl.key.password": "secret:commitlake/pw"},
        "checks": {"stock-service": {"table": "delta-log", "places": [f"{tmp_path}/managed/shop.db"]}},
    }
    running: list[Notebook] = []
    try:
        running.append(first := Notebook(tmp_path, conf, jars))
        assert first.line("READY") == "1"
        lake.commit("a", "b", "c")
        first.until("count orders", "3")
        lake.commit("d")
        os.killpg(first.process.pid, signal.SIGKILL)
        running.append(second := Notebook(tmp_path, conf, jars))
        lake.commit("e")
        assert second.line("READY") == "2"
        second.until("count orders", "5")
        assert second.do("append") == "1"
        second.until("count stock", "1")
        assert second.do("audit") == "True"
        second.tell("stop")
        second.line("STOPPED")
        assert second.process.wait(60) == 0, (tmp_path / "log").read_text()[-4_000:]
    finally:
        for each in running:
            kill(each.process)
