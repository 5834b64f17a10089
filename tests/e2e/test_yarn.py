"""On YARN, by the launcher alone.

In cluster mode a killed ApplicationMaster, two applications, a clean stop; in client mode killed executors and drivers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.support.cluster import hdfs
from tests.support.lake import Lake
from tests.support.polling import patience, wait_for
from tests.support.traffic import HASTY, Traffic
from tests.support.yarn import Yarn, yarn

from commitlake.kafka.embedded import EmbeddedBroker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_200)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as address:
        yield address


@pytest.fixture(scope="module")
def cluster(files: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with yarn(tmp_path_factory.mktemp("yarn"), files) as running:
        yield running


@pytest.fixture
def lake(broker: EmbeddedBroker, files: str, prefix: str, tmp_path: Path) -> Iterator[Lake]:
    place = f"{files}/{prefix.strip('.')}"
    changes = {"warehouse": f"{place}/warehouse", "checkpoints": f"{place}/checkpoints", **HASTY}
    with Lake(broker.bootstrap_servers, prefix, tmp_path, standby_after="5s", **changes) as opened:
        yield opened


@pytest.fixture
def conf(lake: Lake, tmp_path: Path) -> str:
    """A configuration with a secret in a file of the launcher's machine."""
    secret, file = tmp_path / "pw", tmp_path / "lake.yaml"
    secret.write_text("geheim")
    file.write_text(yaml.safe_dump({**lake.settings, "kafka.options": {"ssl.key.password": f"file:{secret}"}}))
    return str(file)


def epochs(lake: Lake) -> list[int]:
    return sorted(row["epoch"] for row in lake.rows("epochs"))


def test_a_killed_application_master_is_replaced_and_a_stop_is_not_tried_again(
    cluster: Yarn, lake: Lake, conf: str
) -> None:
    app = cluster.submit("--conf", conf)
    traffic = Traffic(lake)
    traffic.send()
    wait_for(lambda: lake.rows("transactions"), 300 * patience(), lambda: cluster.said(app)[-6_000:])
    cluster.kill_driver(app)
    traffic.send()
    wait_for(traffic.is_over, 400 * patience(), lambda: cluster.said(app)[-6_000:])
    assert (epochs(lake), cluster.attempts(app)) == ([1, 2], 2)
    assert "geheim" not in cluster.said(app)
    stopped = cluster.commitlake("stop", "--conf", conf, "--master", "local[2]")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    wait_for(lambda: cluster.state(app) == ("FINISHED", "SUCCEEDED"), 120 * patience(), lambda: str(cluster.state(app)))
    assert cluster.attempts(app) == 2
    traffic.assert_outcome()
    audit = cluster.commitlake("audit", "--conf", conf, "--master", "local[2]")
    assert (audit.returncode, "all is well" in audit.stdout) == (0, True), audit.stdout + audit.stderr


def test_of_two_applications_the_older_one_stands_by_and_takes_over_at_the_end_of_the_newer(
    cluster: Yarn, lake: Lake, conf: str
) -> None:
    older = cluster.submit("--conf", conf)
    traffic = Traffic(lake)
    wait_for(lambda: epochs(lake) == [1], 300 * patience(), lambda: cluster.said(older)[-6_000:])
    newer = cluster.submit("--conf", conf)
    wait_for(lambda: cluster.attempts(older) == 2, 300 * patience(), lambda: cluster.said(newer)[-6_000:])
    traffic.send()
    wait_for(traffic.is_over, 300 * patience(), lambda: cluster.said(newer)[-6_000:])
    time.sleep(20)  # four times `standby_after`
    assert epochs(lake) == [1, 2]
    assert cluster.commitlake("stop", "--conf", conf, "--master", "local[2]").returncode == 0
    traffic.send()
    wait_for(traffic.is_over, 300 * patience(), lambda: cluster.said(older)[-6_000:])
    assert epochs(lake) == [1, 2, 3]
    assert cluster.commitlake("stop", "--conf", conf, "--master", "local[2]").returncode == 0
    traffic.assert_outcome()


def test_in_client_mode_killed_executors_and_a_killed_driver_lose_nothing(
    cluster: Yarn, lake: Lake, conf: str, tmp_path: Path
) -> None:
    traffic = Traffic(lake)
    with cluster.client(tmp_path / "first", "--conf", conf) as said:
        traffic.send()
        wait_for(lambda: lake.rows("transactions"), 300 * patience(), said)
        cluster.kill_executors()
        traffic.send()
        wait_for(traffic.is_over, 400 * patience(), said)
    with cluster.client(tmp_path / "second", "--conf", conf) as said:
        traffic.send()
        wait_for(traffic.is_over, 400 * patience(), said)
        stopped = cluster.commitlake("stop", "--conf", conf, "--master", "local[2]")
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert epochs(lake)[-1] >= 2
    traffic.assert_outcome()
    audit = cluster.commitlake("audit", "--conf", conf, "--master", "local[2]")
    assert (audit.returncode, "all is well" in audit.stdout) == (0, True), audit.stdout + audit.stderr
