"""`./spark-submit.sh run` as an operator meets it: READY, signals, the end, and what goes wrong at the start."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from tests.support.lake import Lake
from tests.support.polling import patience, wait_for
from tests.support.running import Coordinator, coordinator

from commitlake.kafka.embedded import EmbeddedBroker

ERROR_WITHIN_S = 20


@pytest.mark.parametrize(
    ("number", "send"),
    [
        pytest.param(signal.SIGTERM, os.kill, id="SIGTERM to the process", marks=pytest.mark.short(core_seconds=50)),
        pytest.param(signal.SIGINT, os.killpg, id="SIGINT to the group", marks=pytest.mark.soak),
    ],
)
def test_a_signal_ends_a_coordinator_with_0_and_leaves_nothing_behind_but_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    monkeypatch.setenv("COMMITLAKE_LOG", "INFO")
    monkeypatch.setenv("COMMITLAKE_LOG_FORMAT", "json")
    with coordinator(tmp_path) as running:
        said = running.ready()
        assert said["warehouse"] == str(running.warehouse)
        assert said["kafka"].startswith("127.0.0.1:")
        assert re.search(r"^READY .* new warehouse$", running.said, re.MULTILINE)
        assert len(running.group()) > 1
        send(running.process.pid, number)
        assert running.end() == 0
        wait_for(lambda: not running.group(), 15, running.group)
        lines = [line for line in running.said.splitlines() if not line.startswith("READY ")]
        told = [json.loads(line) for line in lines]
    assert {"commitlake.tools.cli.commands"} <= {line["logger"] for line in told}
    assert any(line["message"].startswith("stopping") for line in told)
    assert not any("stack" in line for line in told)


@pytest.mark.soak
def test_available_now_works_off_what_is_there_and_exits_0(broker: EmbeddedBroker, tmp_path: Path) -> None:
    place = tmp_path / "a,b"
    place.mkdir()
    lake = Lake(broker.bootstrap_servers, "now.", place)
    lake.op("COMMIT", "t", lake.half("t"))
    lake.close()
    where = {"kafka__bootstrap_servers": broker.bootstrap_servers, "kafka__topic_prefix": "now."}
    with coordinator(place, "--available-now", kafka__queues=2, **where) as running:
        assert running.end(150) == 0, running.said
        assert [row["body"] for row in lake.topic("orders")] == [b"t"]
        assert DeltaTable(str(running.warehouse / "epochs")).to_pyarrow_table().num_rows == 1


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def assert_short_error(running: Coordinator, *words: str) -> None:
    begun = time.monotonic()
    assert running.end(240) != 0
    assert time.monotonic() - begun < ERROR_WITHIN_S * patience()
    assert all(word in running.said for word in words), running.said
    assert "Traceback" not in running.said
    assert "\tat " not in running.said
    assert len(running.said.splitlines()) <= 10, running.said


@pytest.mark.short(core_seconds=30)
def test_a_wrong_bootstrap_server_is_named(tmp_path: Path) -> None:
    with coordinator(tmp_path, kafka__bootstrap_servers="127.0.0.1:1") as running:
        assert_short_error(running, "127.0.0.1:1", "kafka.bootstrap_servers")


def test_a_warehouse_that_can_not_be_written_is_named(broker: EmbeddedBroker, tmp_path: Path) -> None:
    (tmp_path / "warehouse").write_text("a file where a directory should be")
    with coordinator(tmp_path, kafka__bootstrap_servers=broker.bootstrap_servers) as running:
        assert_short_error(running, str(tmp_path / "warehouse"))


@pytest.mark.parametrize("key", ["warehouse", pytest.param("checkpoints", marks=pytest.mark.soak)])
def test_a_place_in_a_directory_that_is_not_there_is_refused(tmp_path: Path, key: str) -> None:
    """A path that was cut short or mistyped would be a second, empty warehouse."""
    place: dict[str, Any] = {key: tmp_path / "cut" / "short"}
    with coordinator(tmp_path, **place) as running:
        assert_short_error(running, f"{key}: {tmp_path}/cut/short is not allowed: the directory {tmp_path}/cut is not")
    assert not (tmp_path / "cut").exists()


def test_a_busy_port_of_the_embedded_broker_is_named(tmp_path: Path, busy_port: int) -> None:
    with coordinator(tmp_path, kafka__embedded_port=busy_port) as running:
        assert_short_error(running, str(busy_port), "busy")


def test_a_damaged_table_is_named_with_its_file(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """390 lines of the stacks of two languages."""
    half = tmp_path / "warehouse" / "half"
    for _ in range(3):
        write_deltalake(str(half), pa.table({"n": [1]}), mode="append")
    gone = half / "_delta_log" / f"{1:020}.json"
    gone.unlink()
    with coordinator(tmp_path, kafka__bootstrap_servers=broker.bootstrap_servers) as running:
        assert_short_error(running, f"error: the table at {half} is damaged: {gone} is missing; bring it back")


@pytest.mark.soak
def test_partition_counts_that_differ_are_an_error(broker: EmbeddedBroker, tmp_path: Path) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics([NewTopic("differ.half", 2, 1), NewTopic("differ.op", 3, 1), NewTopic("differ.messages", 2, 1)])
    admin.close()
    settings = {"kafka__bootstrap_servers": broker.bootstrap_servers, "kafka__topic_prefix": "differ."}
    with coordinator(tmp_path, kafka__queues=2, **settings) as running:
        assert_short_error(running, "differ.op", "partitions")


@pytest.mark.soak
def test_a_second_coordinator_on_an_embedded_broker_names_the_first(tmp_path: Path) -> None:
    with coordinator(tmp_path) as first:
        first.ready()
        with coordinator(tmp_path) as second:
            assert_short_error(second, "another coordinator", f"host {socket.gethostname()}", "epoch 1")
        first.process.terminate()
        assert first.end() == 0
