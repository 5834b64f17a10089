from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from tests.support.killing import ENVIRONMENT, kill
from tests.support.polling import WAIT_S, wait_for

from commitlake import config
from commitlake.errors import ConfigError, EmbeddedBrokerError
from commitlake.kafka import topics
from commitlake.kafka.embedded import EmbeddedBroker, provide

PARENT = """
import signal, sys, time
from commitlake.kafka.embedded import EmbeddedBroker
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests deaf to it
with EmbeddedBroker(sys.argv[1]) as broker:
    print(broker.port, flush=True)
    time.sleep(120)
"""


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until_closed(port: int) -> None:
    wait_for(lambda: not is_open(port), why=lambda: f"port {port} is still open")


@contextmanager
def parent_of_broker(directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that runs a broker, and the broker's port."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        yield parent, int(parent.stdout.readline())
    finally:
        kill(parent)


def test_a_configured_directory_keeps_cluster_id_and_records(tmp_path: Path) -> None:
    found = config.from_mapping({"warehouse": str(tmp_path), "kafka.queues": 2})
    with provide(found) as first:
        topics.ensure_topics(first)
        before = topics.identity(first)
        producer = KafkaProducer(bootstrap_servers=first.kafka.bootstrap_servers)
        producer.send("commitlake.half", b"kept", partition=1).get(timeout=60)
        producer.close()
    with provide(found) as second:
        assert topics.identity(second) == before
        assert topics.end_offsets(second, ["half"]) == {"commitlake.half": {0: 0, 1: 1}}
        consumer = KafkaConsumer(
            "commitlake.half",
            bootstrap_servers=second.kafka.bootstrap_servers,
            auto_offset_reset="earliest",
            consumer_timeout_ms=10_000,
        )
        assert next(iter(consumer)).value == b"kept"
        consumer.close()


def test_the_broker_listens_on_loopback_only_and_is_gone_after_stop() -> None:
    with EmbeddedBroker() as broker:
        assert is_open(broker.port)
        listening = (broker.data_dir / "server.properties").read_text()
        assert f"listeners=BROKER://127.0.0.1:{broker.port},CONTROLLER://127.0.0.1:" in listening
    assert not is_open(broker.port)
    assert not broker.data_dir.exists()


@pytest.mark.parametrize("name", ["plain", "acme, inc", "my lake {y} #1 wärehouse"])
def test_restart_keeps_port_and_data(tmp_path: Path, name: str) -> None:
    tmp_path = tmp_path / name
    with EmbeddedBroker(tmp_path) as broker:
        found = config.from_mapping({"kafka.bootstrap_servers": broker.bootstrap_servers})
        topics.ensure_topics(found)
        before = topics.identity(found)
        broker.restart()
        assert topics.identity(found) == before


def test_the_broker_stops_when_its_parent_is_killed(tmp_path: Path) -> None:
    with parent_of_broker(tmp_path) as (parent, port):
        assert is_open(port)
        parent.kill()
        parent.wait()
        wait_until_closed(port)


def test_ctrl_c_reaches_the_broker_only_through_its_parent(tmp_path: Path) -> None:
    with parent_of_broker(tmp_path) as (parent, port):
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.wait(WAIT_S) != 0
        wait_until_closed(port)
    assert "Exception" not in (tmp_path / "broker.log").read_text()


def test_a_busy_port_fails_the_start_and_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedBrokerError, match=f"port {port} is busy"):
            EmbeddedBroker(port=port).start()


def test_a_second_broker_on_a_directory_fails_and_the_first_goes_on(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as first:
        with pytest.raises(EmbeddedBrokerError, match=f"the broker of process {os.getpid()} uses"):
            EmbeddedBroker(tmp_path).start()
        topics.ensure_topics(config.from_mapping({"kafka.bootstrap_servers": first.bootstrap_servers}))


def test_a_killed_parent_can_be_replaced_at_once(tmp_path: Path) -> None:
    with parent_of_broker(tmp_path) as (parent, _):
        parent.kill()
        with EmbeddedBroker(tmp_path) as broker:
            assert is_open(broker.port)


def test_a_failed_start_shows_the_end_of_the_brokers_log(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "meta.properties").write_text("version=1\nnode.id=77\ncluster.id=a\n")
    with pytest.raises(EmbeddedBrokerError, match=r"(?s)ended with exit code 1.*77"):
        EmbeddedBroker(tmp_path).start()


def test_a_directory_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedBrokerError, match="choose another directory"):
        EmbeddedBroker(tmp_path / "file" / "below").start()


def test_an_embedded_broker_needs_a_local_directory() -> None:
    elsewhere = config.from_mapping({"warehouse": "s3a://bucket/warehouse"})
    with pytest.raises(ConfigError, match=r"kafka\.embedded_dir"), provide(elsewhere):
        pass


def test_a_broker_that_is_killed_is_told_and_one_that_is_stopped_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedBroker(tmp_path):
        pass
    assert not caplog.records
    with EmbeddedBroker(tmp_path) as broker:
        assert broker._process is not None
        (java,) = Path(f"/proc/{broker._process.pid}/task/{broker._process.pid}/children").read_text().split()
        os.kill(int(java), signal.SIGKILL)
        wait_for(lambda: "the Kafka broker of this process has ended" in caplog.text)
    assert len(caplog.records) == 1
