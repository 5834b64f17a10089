"""An embedded Kafka broker: KRaft, one node, loopback only, a child process that never outlives its parent."""

from __future__ import annotations

import base64
import fcntl
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from commitlake.config import Config
from commitlake.config.locations import is_local, local_path
from commitlake.errors import ConfigError, EmbeddedBrokerError
from commitlake.kafka import parent_watch
from commitlake.spark import runtime

log = logging.getLogger(__name__)

START_TIMEOUT_S = 60
STOP_GRACE_S = 10
"""A broker stops within 0.3 s. After a broker that was killed, the next start waits 9 s for the old session."""
_HEAP = "512m"
_STARTED = "Kafka Server started"
_TERMINATED = 143
"""Java's exit code after SIGTERM, which systemd sends to this process and the broker alike."""
_NODE = 1

# Sized for one machine that runs everything: few threads, and no 128 MiB buffer for the log cleaner.
_PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={node}@127.0.0.1:{controller_port}
listeners=BROKER://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=BROKER://127.0.0.1:{port}
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
log.dirs=logs
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=4
background.threads=2
log.cleaner.dedupe.buffer.size=16777216
"""

_LOGGING = f"""\
rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = stdout
appender.stdout.type = Console
appender.stdout.name = stdout
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = %d{{ISO8601}} %p %c{{1}}: %m%n
logger.started.name = kafka.server.KafkaRaftServer
logger.started.level = info
# "{_STARTED}" of this logger is what the start waits for.
"""


class EmbeddedBroker:
    """A Kafka broker for one process and its children, used as a context manager.

    Args:
        data_dir: the directory of the broker's data. The data of an earlier broker is used again, under the same
            cluster id. None for a temporary directory that is deleted with the broker.
        port: the loopback port; 0 for a free one.
        properties: server properties that take precedence over the broker's own, for example those of a secured one.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._is_temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="commitlake-kafka-") if data_dir is None else data_dir).absolute()
        self._configured_port = port
        self._properties = dict(properties or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def bootstrap_servers(self) -> str:
        """The address for Kafka clients, `127.0.0.1:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def log_file(self) -> Path:
        """The broker's output."""
        return self.data_dir / "broker.log"

    def start(self) -> EmbeddedBroker:
        """Start the broker and wait until it accepts connections.

        Raises:
            EmbeddedBrokerError: the broker does not start, for example because the port is busy.
            SetupError: there is no suitable Java, or Kafka's jars cannot be resolved.
        """
        self.port = _free_port(self.port or self._configured_port)
        classpath = _classpath()
        lock = self._lock()
        try:
            self._prepare(controller_port=_free_port(0))
            self._launch(classpath, lock)
        finally:
            os.close(lock)
        try:
            self._wait_until_started()
        except BaseException:
            self.stop()
            raise
        log.info("Kafka broker at %s, data in %s", self.bootstrap_servers, self.data_dir)
        threading.Thread(target=self._tell_of_end, args=(self._process,), name="commitlake-broker", daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop the broker; does nothing when it is not running."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        if self._is_temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def restart(self) -> None:
        """Stop the broker and start it again with its data, at the same port."""
        is_temporary, self._is_temporary = self._is_temporary, False
        try:
            self.stop()
            self.start()
        finally:
            self._is_temporary = is_temporary

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _lock(self) -> int:
        """Return a locked file that `parent_watch` keeps open, so that it is locked while the broker runs.

        Kafka's own lock comes too late: a second broker has written to the metadata log of the first before it fails.
        """
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.data_dir / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise EmbeddedBrokerError(self._unwritable(error)) from error
        deadline = time.monotonic() + STOP_GRACE_S  # the broker of a parent that was just killed is about to stop
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                holder = os.read(lock, 20).decode()
                os.close(lock)
                msg = f"the broker of process {holder} uses {self.data_dir}; stop it, or choose another directory"
                raise EmbeddedBrokerError(msg) from None
            os.truncate(lock, 0)
            os.write(lock, str(os.getpid()).encode())
            return lock

    def _launch(self, classpath: str, lock: int) -> None:
        with self.log_file.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, parent_watch.__file__, str(STOP_GRACE_S), *self._command(classpath)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,  # Kafka and Log4j split a path with a comma in two
                start_new_session=True,  # Ctrl-C is for the coordinator, which stops the broker last
                pass_fds=[lock],
            )

    def _tell_of_end(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if process is self._process and code != _TERMINATED:  # neither `stop` nor SIGTERM ended it
            log.error(
                "the Kafka broker of this process has ended with exit code %d, and nobody starts it again: end this "
                "process, and start it anew",
                code,
            )

    def _prepare(self, controller_port: int) -> None:
        logs = self.data_dir / "logs"
        try:
            logs.mkdir(parents=True, exist_ok=True)
            properties = _PROPERTIES.format(node=_NODE, port=self.port, controller_port=controller_port)
            properties += "".join(f"{name}={value}\n" for name, value in self._properties.items())  # the last wins
            (self.data_dir / "server.properties").write_text(properties)
            (self.data_dir / "log4j2.properties").write_text(_LOGGING)
            if not (logs / "meta.properties").exists():
                # `kafka-storage format` writes the same, but starts a JVM for 2 s.
                (logs / "meta.properties").write_text(f"version=1\ncluster.id={_new_id()}\nnode.id={_NODE}\n")
        except OSError as error:
            raise EmbeddedBrokerError(self._unwritable(error)) from error

    def _command(self, classpath: str) -> list[str]:
        return [
            runtime.java(),
            *runtime.LANGUAGE.split(),
            f"-Xmx{_HEAP}",
            "-Xms128m",
            "-XX:+UseSerialGC",
            "-Dfile.encoding=UTF-8",
            "-Dlog4j2.configurationFile=log4j2.properties",
            *("-cp", classpath, "kafka.Kafka", "server.properties"),
        ]

    def _wait_until_started(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while _STARTED not in self._output():
            assert self._process is not None
            if self._process.poll() is not None:
                raise EmbeddedBrokerError(self._failure(f"ended with exit code {self._process.returncode}"))
            if time.monotonic() > deadline:
                raise EmbeddedBrokerError(self._failure(f"is not up after {START_TIMEOUT_S} s"))
            time.sleep(0.05)

    def _unwritable(self, error: OSError) -> str:
        return f"cannot write the broker's data to {self.data_dir}: {error.strerror}; choose another directory"

    def _output(self) -> str:
        return self.log_file.read_text(errors="replace")

    def _failure(self, what: str) -> str:
        lines = [line for line in self._output().splitlines() if line.strip() and not line.startswith("\tat ")]
        last = "\n".join(lines[-6:])
        return f"the Kafka broker {what}; its data is in {self.data_dir}, the end of its broker.log is:\n{last}"


@contextmanager
def provide(config: Config) -> Iterator[Config]:
    """Yield `config` with the address of a broker: the configured one, or an embedded one that stops afterwards.

    By default the embedded broker keeps its data inside the warehouse that is filled from it, so both are deleted
    together.

    Raises:
        ConfigError: an embedded broker is asked for, but its directory would not be local.
        EmbeddedBrokerError: the broker does not start.
    """
    if not config.kafka.is_embedded:
        yield config
        return
    directory = config.kafka.embedded_dir or config.warehouse
    if not is_local(directory):
        msg = (
            f"kafka.bootstrap_servers: 'embedded' is not allowed with the warehouse {config.warehouse}; "
            "name a broker, or a local directory in kafka.embedded_dir"
        )
        raise ConfigError(msg)
    path = local_path(config.kafka.embedded_dir or f"{config.warehouse}/_kafka")
    with EmbeddedBroker(path, config.kafka.embedded_port) as broker:
        yield replace(config, kafka=replace(config.kafka, bootstrap_servers=broker.bootstrap_servers))


def _free_port(wanted: int) -> int:
    """Return `wanted`, or a free port for 0; the port of a broker that has just ended counts as free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            msg = f"port {wanted} is busy ({error.strerror}); stop what uses it, or let a free port be chosen (port 0)"
            raise EmbeddedBrokerError(msg) from error
        port: int = probe.getsockname()[1]
        return port


def _classpath() -> str:
    # Ivy leaves out the jars that Spark has: Scala, and the logging binding, without which the broker logs nothing.
    home = runtime.spark_home() / "jars"
    names = ("scala-library", "slf4j-api", "log4j-slf4j2-impl")
    from_spark = [str(jar) for name in names for jar in home.glob(f"{name}-*")]
    return os.pathsep.join(from_spark + runtime.jars([runtime.KAFKA_BROKER_PACKAGE]))


def _new_id() -> str:
    # One of 64 ids begins with "-", which `kafka-storage format` takes for an option. Kafka draws such ids again, too.
    new_id = "-"
    while new_id.startswith("-"):
        new_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return new_id
