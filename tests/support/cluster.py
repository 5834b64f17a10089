"""A cluster on this machine: Spark's standalone master and workers that do not see this project, and HDFS."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support.killing import ROOT
from tests.support.polling import wait_for

from commitlake.spark import runtime

HADOOP = tuple(f"org.apache.hadoop:{name}:3.4.1" for name in ("hadoop-hdfs", "hadoop-hdfs-client", "hadoop-common"))
HOST = "127.0.0.1"
_SITE = {
    "dfs.replication": "1",
    "dfs.permissions.enabled": "false",
    "dfs.namenode.http-address": f"{HOST}:0",
    "dfs.datanode.address": f"{HOST}:0",
    "dfs.datanode.http.address": f"{HOST}:0",
    "dfs.datanode.ipc.address": f"{HOST}:0",
    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
    "dfs.datanode.hostname": HOST,
    "dfs.namenode.safemode.extension": "0",
    "dfs.namenode.fs-limits.min-block-size": "1024",
}


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Java:
    """A JVM of its own process group, with its output in a file."""

    def __init__(self, log: Path, class_path: str, *arguments: str, hides: Path | None = None, **settings: Any) -> None:
        self.log = log
        command = [runtime.java(), "-cp", class_path, *arguments]
        if hides is not None:  # an empty file system in its place, in a mount namespace of this process
            hide = f'mount -t tmpfs none "{hides}" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", hide, "sh", *command]
            if os.geteuid() != 0:
                command[1:1] = ["--user", "--map-root-user"]
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, **settings
            )

    def until(self, text: str) -> None:
        """Waits for a line of its output."""
        wait_for(lambda: text in self._output(), 60, self._output)

    def _output(self) -> str:
        written = self.log.read_text(errors="replace")
        assert self.process.poll() is None, written[-4_000:]
        return written

    def kill(self) -> None:
        """Ends it at once, with all that it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def hdfs(place: Path) -> Iterator[str]:
    """A file system of one NameNode and one DataNode; yields its address, `hdfs://HOST:PORT`."""
    address = f"hdfs://{HOST}:{free_port()}"
    conf = place / "conf"
    for webapp in ("hdfs", "datanode"):
        (conf / "webapps" / webapp / "WEB-INF").mkdir(parents=True)
        (conf / "webapps" / webapp / "WEB-INF" / "web.xml").write_text("<web-app/>")
    write_site(conf / "core-site.xml", {"fs.defaultFS": address})
    own = {"dfs.namenode.name.dir": f"file://{place}/name", "dfs.datanode.data.dir": f"file://{place}/data"}
    write_site(conf / "hdfs-site.xml", _SITE | own)
    class_path = os.pathsep.join([str(conf), *runtime.jars(HADOOP)])
    name_node = "org.apache.hadoop.hdfs.server.namenode.NameNode"
    formatted = [runtime.java(), "-cp", class_path, name_node, "-format", "-nonInteractive"]
    done = subprocess.run(formatted, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    data_node = "org.apache.hadoop.hdfs.server.datanode.DataNode"
    with ExitStack() as stack:
        for name, main in (("name", name_node), ("data", data_node)):
            java = Java(place / f"{name}.log", class_path, "-Xmx256m", main)
            stack.callback(java.kill)
        wait_for((place / "data" / "current").exists, 60, lambda: (place / "data.log").read_text()[-2_000:])
        yield address


def write_site(file: Path, properties: dict[str, str]) -> None:
    """Writes a file of Hadoop's configuration."""
    lines = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items()]
    file.write_text(f"<configuration>{''.join(lines)}</configuration>")


class Spark:
    """A standalone master and workers of one core each, with a Spark of their own, to which this project is hidden."""

    def __init__(self, place: Path, workers: int) -> None:
        self.place, self.home = place, place / "spark"
        # Links where the disk allows it: 450 MB.
        shutil.copytree(runtime.spark_home(), self.home, copy_function=_link, ignore=shutil.ignore_patterns("examples"))
        self._class_path = f"{self.home}/jars/*"
        self.address = f"spark://{HOST}:{free_port()}"
        arguments = ["--host", HOST, "--port", self.address.rpartition(":")[2], "--webui-port", "0"]
        self.master = self._java("master", "org.apache.spark.deploy.master.Master", *arguments)
        self.master.until("I have been elected leader")
        self.workers = [self._worker(number) for number in range(workers)]
        for worker in self.workers:
            worker.until("Successfully registered with master")

    def _worker(self, number: int) -> Java:
        directory = self.place / f"worker-{number}"
        arguments = ["-c", "1", "-m", "1g", "-h", HOST, "--webui-port", "0", "-d", str(directory), self.address]
        return self._java(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *arguments, hides=ROOT)

    def _java(self, name: str, main: str, *arguments: str, hides: Path | None = None) -> Java:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.place),
            "SPARK_HOME": str(self.home),
            "SPARK_SCALA_VERSION": "2.13",  # else the launcher looks for its own build directories
            "SPARK_LOCAL_IP": HOST,
        }
        if "JAVA_HOME" in os.environ:
            environment["JAVA_HOME"] = os.environ["JAVA_HOME"]
        log = self.place / f"{name}.log"
        return Java(log, self._class_path, "-Xmx256m", main, *arguments, hides=hides, env=environment, cwd=self.place)

    def kill_an_executor(self) -> None:
        """SIGKILL to an executor; the master starts another."""
        found = self.executors()
        assert found, "no executor runs"
        os.kill(found[0], signal.SIGKILL)
        wait_for(lambda: found[0] not in self.executors(), 30)

    def executors(self) -> list[int]:
        name, home = b"CoarseGrainedExecutorBackend", str(self.home).encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if name in command and home in command:
                found.append(int(process.name))
        return sorted(found)

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
        for pid in self.executors():  # which have a session of their own
            os.kill(pid, signal.SIGKILL)
        self.master.kill()


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)
    return target


@contextmanager
def standalone(place: Path, workers: int = 2) -> Iterator[Spark]:
    """A standalone cluster that is gone when the test is over."""
    place.mkdir(parents=True)
    cluster = Spark(place, workers)
    try:
        yield cluster
    finally:
        cluster.stop()
        time.sleep(0.1)
