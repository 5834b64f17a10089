"""Brokers that hang or are killed, and Kafka as in production: three, each record on all, acknowledged by two."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from tests.support.polling import wait_for

from commitlake.kafka import embedded
from commitlake.kafka.embedded import EmbeddedBroker


@contextmanager
def paused(broker: EmbeddedBroker, seconds: float | None = None) -> Iterator[None]:
    """Hangs until the end of the block, or for so many seconds."""
    assert broker._process is not None
    pid = broker._process.pid  # of the session of its watch and its JVM
    os.killpg(pid, signal.SIGSTOP)
    time.sleep(0.3)  # until all its threads have stopped; one answered yet
    timer = threading.Timer(seconds, os.killpg, (pid, signal.SIGCONT)) if seconds else None
    try:
        if timer:
            timer.start()
        yield
    finally:
        if timer:
            timer.cancel()
        os.killpg(pid, signal.SIGCONT)


class UnsteadyBroker(EmbeddedBroker):
    """A broker that can go away for a while."""

    def freeze(self, seconds: float) -> None:
        """It answers nobody for some time."""
        with paused(self):
            time.sleep(seconds)

    def crash(self, seconds: float = 0) -> None:
        """It is killed, and starts again on its log: some 10 s, as it waits for its own old session.

        Args:
            seconds: how long nobody starts it.
        """
        self.kill()
        time.sleep(seconds)
        self.restart()

    def kill(self) -> None:
        """It is gone until `restart`."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)  # it leads the group of its JVM
        wait_for(self._is_gone, 10)

    def _is_gone(self) -> bool:
        """Whether its port is free: the kill of a JVM takes some moments."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", self.port))
                return True
        return False


BROKERS = (1, 2, 3)
_PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to clients: one that connects to a dead broker again and again could get its port,
and would be connected to itself."""
_START_S = 300
"""Three JVMs that start beside each other on two busy cores."""


class KafkaCluster:
    """Three brokers, each of which is a controller too, so that one may be absent.

    Args:
        place: a directory for their data.
        properties: server properties of all of them.
    """

    def __init__(self, place: Path, **properties: str) -> None:
        ports = free_ports(2 * len(BROKERS))
        self.addresses = {number: f"127.0.0.1:{ports.pop()}" for number in BROKERS}
        controllers = {number: f"127.0.0.1:{ports.pop()}" for number in BROKERS}
        shared = {
            "controller.quorum.voters": ",".join(f"{number}@{at}" for number, at in controllers.items()),
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.replication.factor": "3",
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        cluster_id = embedded._new_id()
        self.brokers = {
            number: _node(place / str(number), number, cluster_id, self.addresses[number], controllers[number], shared)
            for number in BROKERS
        }

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self.addresses.values())

    def start(self, *numbers: int) -> None:
        """Starts brokers beside each other, by default those that do not run: one alone waits for a second."""
        wanted = numbers or [number for number in BROKERS if number not in self._running()]
        with patch.object(embedded, "START_TIMEOUT_S", _START_S), ThreadPoolExecutor(len(BROKERS)) as pool:
            list(pool.map(EmbeddedBroker.start, [self.brokers[number] for number in wanted]))

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            process = self.brokers[number]._process
            assert process is not None
            os.killpg(process.pid, signal.SIGKILL)  # its watch, and the JVM
        for number in numbers:
            self.brokers[number].stop()

    def stop(self) -> None:
        self.kill(*self._running())

    def _running(self) -> list[int]:
        return [number for number, broker in self.brokers.items() if broker._process is not None]

    def leader(self, topic: str) -> int:
        """The broker that leads partition 0; -1 for none."""
        return int(self._partition(topic)["leader_id"])

    def in_sync(self, topic: str) -> set[int]:
        """The brokers that have all of partition 0."""
        return set(self._partition(topic)["isr_nodes"])

    def _partition(self, topic: str) -> dict[str, Any]:
        return wait_for(lambda: self._described(topic))

    def _described(self, topic: str) -> dict[str, Any] | None:
        """None for an answer that did not come: the client asks a dead broker, too."""
        with suppress(KafkaError):
            client = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers.split(","))
            try:
                found: list[dict[str, Any]] = client.describe_topics([topic])[0]["partitions"]
                return next(each for each in found if each["partition_index"] == 0)
            finally:
                client.close()
        return None


@contextmanager
def kafka_cluster(place: Path, **properties: str) -> Iterator[KafkaCluster]:
    """Three brokers that run, and are gone afterwards; `a_b` stands for the server property `a.b`."""
    cluster = KafkaCluster(place, **properties)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _node(
    place: Path, number: int, cluster_id: str, address: str, controller: str, shared: dict[str, str]
) -> EmbeddedBroker:
    """A broker whose data directory is formatted for this cluster."""
    own = {"node.id": str(number), "listeners": f"BROKER://{address},CONTROLLER://{controller}"}
    (place / "logs").mkdir(parents=True)
    (place / "logs" / "meta.properties").write_text(f"version=1\ncluster.id={cluster_id}\nnode.id={number}\n")
    return EmbeddedBroker(place, int(address.rpartition(":")[2]), properties={**shared, **own})


def free_ports(count: int) -> list[int]:
    """Ports that nobody gets from the kernel before those who are told of them do."""
    found: list[int] = []
    for port in _PORTS[os.getpid() % 1_000 :: 7]:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("every port is taken")
