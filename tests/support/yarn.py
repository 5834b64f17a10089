"""YARN on this machine: a ResourceManager and a NodeManager whose containers do not see this project."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.cluster import HOST, Java, free_port, write_site
from tests.support.killing import ROOT, kill
from tests.support.polling import wait_for

from commitlake.spark import runtime

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
        environment = {**os.environ, "HADOOP_CONF_DIR": str(self._conf), "COMMITLAKE_SPARK_ARGS": spark_args}
        command = [str(ROOT / "spark-submit.sh"), *arguments]
        return subprocess.run(
            command, env=environment, cwd=self._conf, capture_output=True, text=True, check=False, timeout=400
        )

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
        environment = {**os.environ, "HADOOP_CONF_DIR": str(self._conf), "COMMITLAKE_SPARK_ARGS": _SMALL}
        command = [str(ROOT / "spark-submit.sh"), "run", *arguments, "--master", "yarn"]
        with log.open("w") as output:
            driver = subprocess.Popen(
                command, env=environment, cwd=self._conf, stdout=output, stderr=output, start_new_session=True
            )
        try:
            yield lambda: log.read_text()[-6_000:]
        finally:
            kill(driver)

    def kill_executors(self) -> None:
        """SIGKILL to each executor of all applications."""
        found = [pid for pid, command in _processes() if "ExecutorBackend" in command and str(self._logs) in command]
        assert found, "there is no executor"
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def state(self, app: str) -> tuple[str, str]:
        """The state of an application, such as RUNNING, and its end, such as SUCCEEDED."""
        found = self._apps()[app]
        return found["state"], found["finalStatus"]

    def attempts(self, app: str) -> int:
        return len(self._get(f"apps/{app}/appattempts")["appAttempts"]["appAttempt"])

    def kill_driver(self, app: str) -> None:
        """SIGKILL to the ApplicationMaster, in which the driver is; YARN ends the rest of its container."""
        found = [pid for pid, command in _processes() if app in command and "ApplicationMaster" in command]
        assert found, f"{app} has no ApplicationMaster"
        for pid in found:
            os.kill(pid, signal.SIGKILL)

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


def _processes() -> Iterator[tuple[int, str]]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            yield int(process.name), (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue


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
            stack.callback(_end_containers, local)
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
    return {"HOME": str(home), "LANG": "C.UTF-8", "JAVA_HOME": _java_home(), **kept}


def _java_home() -> str:
    return str(Path(runtime.java()).resolve().parents[1])


def _tail(place: Path) -> str:
    return "\n".join(file.read_text(errors="replace")[-3_000:] for file in place.glob("*.log"))


def _end_containers(local: Path) -> None:
    """Containers have sessions of their own, so they outlive their NodeManager."""
    for pid, command in _processes():
        if str(local) in command:
            os.kill(pid, signal.SIGKILL)
