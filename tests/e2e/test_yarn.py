"""On YARN, by the launcher alone.

In cluster mode a killed ApplicationMaster, two applications, a clean stop; in client mode killed executors and drivers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.cluster import HOST, Java, free_port, hdfs, write_site
from tests.support.killing import ROOT, kill
from tests.support.lake import Lake
from tests.support.polling import patience, wait_for
from tests.support.traffic import HASTY, Traffic

from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.spark import runtime

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_200)]


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


@pytest.fixture(scope="module")
def cluster(files: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with yarn(tmp_path_factory.mktemp("yarn"), files) as running:
        yield running


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


_NAMES = ("yarn-server-resourcemanager", "yarn-server-nodemanager", "yarn-server-timelineservice", "hdfs-client")
_JARS = tuple(f"org.apache.hadoop:hadoop-{name}:3.4.1" for name in _NAMES)
_OPENED = ("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.io=ALL-UNNAMED")
"""Packages of Java 17 that Hadoop's web servers look into."""
_SERVER = "org.apache.hadoop.yarn.server"
_SMALL = (
    "--conf spark.driver.memory=1g --conf spark.executor.instances=1 --conf spark.executor.cores=2 "
    "--conf spark.executor.memory=1g"
)


class Yarn:
    """A running YARN, and what is submitted to it.

    Args:
        conf: its configuration, for `HADOOP_CONF_DIR`.
        address: of the ResourceManager's web service.
        logs: where containers write.
    """

    def __init__(self, conf: Path, address: str, logs: Path) -> None:
        self._conf, self._address, self._logs = conf, address, logs

    def has_node(self) -> bool:
        """Whether its node has registered."""
        try:
            return bool(self._get("metrics")["clusterMetrics"]["activeNodes"])
        except OSError:
            return False

    def commitlake(self, *arguments: str, spark_args: str = "") -> subprocess.CompletedProcess[str]:
        """Runs the launcher where this YARN is known."""
        launched = self._launched(arguments, spark_args)
        return subprocess.run(**launched, capture_output=True, text=True, check=False, timeout=400)

    def _launched(self, arguments: Sequence[str], spark_args: str) -> dict[str, Any]:
        environment = {**os.environ, "HADOOP_CONF_DIR": str(self._conf), "COMMITLAKE_SPARK_ARGS": spark_args}
        return {"args": [str(ROOT / "spark-submit.sh"), *arguments], "env": environment, "cwd": self._conf}

    def submit(self, *arguments: str) -> str:
        """Submits a coordinator in cluster mode; returns the id of its application."""
        before = set(self._apps())
        done = self.commitlake("run", *arguments, "--master", "yarn", spark_args=f"--deploy-mode cluster {_SMALL}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "yarn logs -applicationId" in done.stdout
        (new,) = set(self._apps()) - before
        assert f"Submitted application {new}" in done.stderr
        return new

    @contextmanager
    def client(self, log: Path, *arguments: str) -> Iterator[Callable[[], str]]:
        """A coordinator in client mode, which is killed with its JVM at the end; gives what it says."""
        launched = self._launched(("run", *arguments, "--master", "yarn"), _SMALL)
        with log.open("w") as output:
            driver = subprocess.Popen(**launched, stdout=output, stderr=output, start_new_session=True)
        try:
            yield lambda: log.read_text()[-6_000:]
        finally:
            kill(driver)

    def kill_executors(self) -> None:
        """SIGKILL to each executor of all applications."""
        assert _kill("ExecutorBackend", str(self._logs)), "there is no executor"

    def state(self, app: str) -> tuple[str, str]:
        """The state of an application, such as RUNNING, and its end, such as SUCCEEDED."""
        found = self._apps()[app]
        return found["state"], found["finalStatus"]

    def attempts(self, app: str) -> int:
        return len(self._get(f"apps/{app}/appattempts")["appAttempts"]["appAttempt"])

    def kill_driver(self, app: str) -> None:
        """SIGKILL to the ApplicationMaster, in which the driver is; YARN ends the rest of its container."""
        assert _kill("ApplicationMaster", app), f"{app} has no ApplicationMaster"

    def said(self, app: str) -> str:
        """What its containers have written."""
        return "\n".join(
            file.read_text(errors="replace") for file in sorted(self._logs.glob(f"{app}/*/std*")) if file.is_file()
        )

    def _apps(self) -> dict[str, dict[str, Any]]:
        found = self._get("apps")["apps"] or {"app": []}
        return {each["id"]: each for each in found["app"]}

    def _get(self, what: str) -> Any:
        with urllib.request.urlopen(f"http://{self._address}/ws/v1/cluster/{what}", timeout=10) as answer:
            return json.load(answer)


def _kill(*words: str) -> int:
    """SIGKILL to each process whose command has all words; how many there were."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end meanwhile
            command = (process / "cmdline").read_text().replace("\0", " ")
            if all(word in command for word in words):
                found += 1
                os.kill(int(process.name), signal.SIGKILL)
    return found


@contextmanager
def yarn(place: Path, files: str) -> Iterator[Yarn]:
    """A YARN over the HDFS at `files`; it is gone when the test is over."""
    conf, logs, local, home = (place / name for name in ("conf", "logs", "local", "home"))
    for each in (conf, logs, local, home):
        each.mkdir(parents=True)
    ports = {name: f"{HOST}:{free_port()}" for name in ("", "scheduler.", "resource-tracker.", "admin.", "webapp.")}
    sites = {f"yarn.resourcemanager.{name}address": address for name, address in ports.items()}
    write_site(conf / "core-site.xml", {"fs.defaultFS": files, "hadoop.tmp.dir": str(place / "tmp")})
    write_site(conf / "yarn-site.xml", sites | _of_node(logs, local))
    write_site(conf / "capacity-scheduler.xml", _QUEUES)
    class_path = os.pathsep.join([str(conf), *runtime.jars(_JARS)])
    with ExitStack() as stack:
        for name in ("resourcemanager.ResourceManager", "nodemanager.NodeManager"):
            is_node = name.startswith("node")
            java = Java(
                *(place / f"{name}.log", class_path, "-Xmx256m", *_OPENED, f"{_SERVER}.{name}"),
                hides=ROOT if is_node else None,
                env=_environment(home) if is_node else None,
            )
            stack.callback(java.kill)
            stack.callback(_kill, str(local))  # containers have sessions of their own, and outlive their NodeManager
        running = Yarn(conf, ports["webapp."], logs)
        wait_for(running.has_node, 120, lambda: _tail(place))
        yield running


_QUEUES = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
}


def _of_node(logs: Path, local: Path) -> dict[str, str]:
    own = {
        "address": f"{HOST}:0",
        "localizer.address": f"{HOST}:{free_port()}",
        "webapp.address": f"{HOST}:0",
        "hostname": HOST,
        "local-dirs": str(local),
        "log-dirs": str(logs),
        "resource.memory-mb": "12288",
        "resource.cpu-vcores": "8",
        "vmem-check-enabled": "false",
        "delete.debug-delay-sec": "600",
        "disk-health-checker.max-disk-utilization-per-disk-percentage": "99",
    }
    scheduler = {"minimum-allocation-mb": "256", "maximum-allocation-mb": "12288"}
    return {f"yarn.nodemanager.{name}": value for name, value in own.items()} | {
        f"yarn.scheduler.{name}": value for name, value in scheduler.items()
    }


def _environment(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    return {"HOME": str(home), "LANG": "C.UTF-8", "JAVA_HOME": str(Path(runtime.java()).resolve().parents[1]), **kept}


def _tail(place: Path) -> str:
    return "\n".join(file.read_text(errors="replace")[-3_000:] for file in place.glob("*.log"))
