"""Clusters whose workers do not see this project, with tables and checkpoints on HDFS: standalone, and YARN.

On YARN by the launcher alone: in cluster mode a killed ApplicationMaster, two applications, a clean stop; in client
mode killed executors and drivers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster import Spark, hdfs, standalone
from tests.support.killing import ROOT
from tests.support.lake import Lake
from tests.support.polling import wait_for
from tests.support.running import coordinator
from tests.support.traffic import HASTY, Traffic, assert_some_shown, send_some

from commitlake.kafka.embedded import EmbeddedBroker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_200)]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    with standalone(tmp_path_factory.mktemp("cluster") / "standalone") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as address:
        yield address


@pytest.fixture
def lake(broker: EmbeddedBroker, files: str, prefix: str, tmp_path: Path) -> Iterator[Lake]:
    place = f"{files}/{prefix.strip('.')}"
    changes = {"warehouse": f"{place}/warehouse", "checkpoints": f"{place}/checkpoints", **HASTY}
    with Lake(broker.bootstrap_servers, prefix, tmp_path, standby_after="5s", **changes) as opened:
        yield opened


def commitlake(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "spark-submit.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_executors_that_do_not_see_the_project_work_off_a_backlog(workers: Spark, lake: Lake, tmp_path: Path) -> None:
    send_some(lake)
    with coordinator(tmp_path, "--available-now", master=workers.address, **lake.settings) as running:
        assert running.end(400) == 0, running.said[-4_000:]
    assert_some_shown(lake)


def test_a_mix_of_all_kinds_survives_the_death_of_an_executor(workers: Spark, lake: Lake, tmp_path: Path) -> None:
    traffic = Traffic(lake)
    with coordinator(tmp_path, master=workers.address, **lake.settings) as running:
        running.ready()
        traffic.send()
        wait_for(lambda: lake.rows("half"), 120, lambda: running.said[-4_000:])
        workers.kill_an_executor()
        traffic.send()
        running.until(traffic.is_over, 240)
        running.stop()
    traffic.assert_outcome()
    audit = commitlake("audit", "--set", f"warehouse={lake.settings['warehouse']}", "--master", "local[2]")
    assert (audit.returncode, "all is well" in audit.stdout) == (0, True), audit.stdout + audit.stderr


def test_a_driver_that_was_killed_goes_on_from_another_directory(workers: Spark, lake: Lake, tmp_path: Path) -> None:
    traffic = Traffic(lake)
    with coordinator(tmp_path / "first", master=workers.address, **lake.settings) as running:
        running.ready()
        traffic.send()
        wait_for(lambda: lake.rows("transactions"), 120)
        os.killpg(running.process.pid, signal.SIGKILL)
    traffic.send()
    elsewhere = {**lake.settings, "checkpoints": f"{lake.settings['checkpoints']}-of-another"}
    with coordinator(tmp_path / "second", master=workers.address, **elsewhere) as running:
        running.until(traffic.is_over, 240)
        running.stop()
    traffic.assert_outcome()


def test_a_paused_coordinator_ends_when_another_has_taken_over(workers: Spark, lake: Lake, tmp_path: Path) -> None:
    traffic = Traffic(lake)
    one_core = "--conf spark.cores.max=1"
    with coordinator(tmp_path / "1", master=workers.address, spark_args=one_core, **lake.settings) as first:
        first.ready()
        traffic.send()
        wait_for(lambda: lake.rows("transactions"), 120)
        os.killpg(first.process.pid, signal.SIGSTOP)
        with coordinator(tmp_path / "2", master=workers.address, spark_args=one_core, **lake.settings) as second:
            second.ready()
            traffic.send()
            wait_for(lambda: len(lake.rows("half")) > 7, 120)
            before = first.said
            os.killpg(first.process.pid, signal.SIGCONT)
            traffic.send()
            assert first.end() == 1
            second.until(traffic.is_over, 240)
            second.stop()
    told = first.said.removeprefix(before)
    assert "another coordinator has taken over this warehouse" in told
    assert len(told.splitlines()) <= 5, told
    traffic.assert_outcome()


def test_a_standby_takes_over_when_the_coordinator_was_killed(workers: Spark, lake: Lake, tmp_path: Path) -> None:
    traffic = Traffic(lake)
    one_core = "--conf spark.cores.max=1"
    with coordinator(tmp_path / "1", master=workers.address, spark_args=one_core, **lake.settings) as first:
        first.ready()
        with coordinator(
            tmp_path / "2", "--standby", master=workers.address, spark_args=one_core, **lake.settings
        ) as second:
            wait_for(lambda: "standing by" in second.said, 120, lambda: second.said)
            traffic.send()
            wait_for(lambda: lake.rows("transactions"), 120)
            time.sleep(7)  # longer than `standby_after`
            assert "READY" not in second.said
            os.killpg(first.process.pid, signal.SIGKILL)
            traffic.send()
            second.until(traffic.is_over, 240)
            second.stop()
    assert sorted(row["epoch"] for row in lake.rows("epochs")) == [1, 2]
    traffic.assert_outcome()
