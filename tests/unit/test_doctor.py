"""Questions about odd warehouses: a coordinator that has ended, keys and conditions that make no sense."""

from __future__ import annotations

import os
import re
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support.holding import held
from typer.testing import CliRunner

from commitlake.config import Config, from_mapping
from commitlake.config.locations import JVM_LOCK, SIGN_OF_LIFE
from commitlake.coordinator.metrics.server import serving
from commitlake.errors import ConfigError, KafkaError
from commitlake.reading.questions import liveness
from commitlake.reading.questions.tables import opened
from commitlake.reading.questions.transactions import Wanted
from commitlake.reading.table import file_time_ms
from commitlake.tools import doctor
from commitlake.tools.cli import bulk
from commitlake.tools.cli.app import app

STARTED = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A coordinator that started at noon and wrote last at five past."""
    at = pa.timestamp("us", "UTC")
    epochs = {
        "epoch": pa.array([1, 2]), "host": ["h", "h"], "pid": pa.array([7, 8], pa.int32()), "version": ["1", "1"],
        "started_at": pa.array([STARTED - timedelta(1), STARTED], at),
    }  # fmt: skip
    write_deltalake(str(tmp_path / "epochs"), pa.table(epochs))
    batches = {"batch_id": pa.array([4]), "completed_at": pa.array([STARTED + timedelta(minutes=5)], at)}
    write_deltalake(str(tmp_path / "batches"), pa.table(batches))
    (tmp_path / JVM_LOCK).write_text("8")
    return tmp_path


def coordinator(warehouse: Path, **settings: object) -> doctor.Diagnosis:
    conf = from_mapping({"warehouse": str(warehouse), **settings})
    with opened(conf.warehouse) as tables:
        return doctor._coordinator(tables, conf)


def test_a_coordinator_that_runs_is_well_and_a_killed_one_is_not(warehouse: Path) -> None:
    with held(warehouse):
        found = [coordinator(warehouse) for _ in range(2)]  # asking takes and frees nothing
    assert [(each.is_well, each.detail) for each in found] == [(True, "epoch 2 on h, pid 8, version 1")] * 2
    ended = coordinator(warehouse)
    assert not ended.is_well
    told = "none runs; the last one was epoch 2 on h, pid 8, version 1, seen last at 2026-01-01T12:05:00Z; start one"
    assert ended.detail == told


@pytest.mark.parametrize(
    ("host", "wrong", "told"),
    [
        ("here", None, ""),
        ("here", "no round for 61 s", "; no round for 61 s; its log says more"),
        (
            "here",
            "hangs",
            r"; its /healthz at 127.0.0.1:\d+ does not answer \(timed out\); is it still starting\? If not, ",
        ),
        ("another", "hangs", ""),  # its loopback address is not this machine's
        ("elsewhere", "hangs", ""),  # such as a pod, whose name nobody else knows
    ],
)
def test_a_coordinator_that_runs_is_asked_how_it_is(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, host: str, wrong: str | None, told: str
) -> None:
    """One under SIGSTOP holds its lock, and the system takes connections for it."""
    named = {"metrics.host": "coordinator.invalid"} if host == "elsewhere" else {}
    monkeypatch.setattr(doctor, "_HEALTH_S", 0.5)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(socket, "gethostname", lambda: "h" if host == "here" else host)
    with socket.create_server(("127.0.0.1", 0)) as silent, serving("127.0.0.1", 0, tuple, lambda: wrong) as answering:
        port = silent.getsockname()[1] if wrong == "hangs" else answering
        with held(warehouse):
            found = coordinator(warehouse, **{"metrics.port": port, **named})
    assert found.is_well == (not told)
    assert re.match(f"epoch 2 on h, pid 8, version 1{told}", found.detail), found.detail


def test_an_embedded_broker_is_looked_at_while_its_coordinator_runs_and_its_port_is_fixed(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was "ok" whatever became of it."""

    def away(config: Config) -> None:
        raise KafkaError(config.kafka.bootstrap_servers)

    monkeypatch.setattr(doctor, "connect", away)
    place = pa.struct({"source": pa.string(), "partition": pa.int32(), "next": pa.int64()})
    positions = {"landing_id": pa.array([], pa.int64()), "offsets": pa.array([], pa.list_(place))}
    write_deltalake(str(warehouse / "positions"), pa.table(positions))
    free, fixed = (from_mapping({"warehouse": str(warehouse), "kafka.embedded_port": port}) for port in (0, 19092))
    with opened(str(warehouse)) as tables:
        assert doctor._kafka(tables, fixed).detail == "embedded: it runs with its coordinator"
        with held(warehouse):
            assert "--set kafka.bootstrap_servers" in doctor._kafka(tables, free).detail
            with pytest.raises(KafkaError, match=r"^127\.0\.0\.1:19092$"):
                doctor._kafka(tables, fixed)


def test_the_verdict_comes_first(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    well, wrong = doctor.Diagnosis("disk", True, ""), doctor.Diagnosis("kafka", False, "")
    assert doctor.verdict([well]) == doctor.Diagnosis("verdict", True, "all is well")
    assert doctor.verdict([well, wrong]).detail == "1 of 2 needs a look: kafka"
    assert doctor.show(from_mapping({"warehouse": str(warehouse / "none")}), as_json=False) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "LOOK  verdict      1 of 1 needs a look: tables"
    assert second.startswith("LOOK  tables       warehouse: the directory ")


def test_a_warehouse_that_is_not_there_is_one_finding(tmp_path: Path) -> None:
    (found,) = doctor.examine(from_mapping({"warehouse": str(tmp_path / "nowhere")}))
    assert not found.is_well
    assert found.detail.startswith(f"warehouse: the directory {tmp_path}/nowhere is not there; a relative path")


def test_a_file_that_can_not_be_read_is_a_finding_among_others(warehouse: Path) -> None:
    """As where the doctor is another user than the coordinator; root may read all, but no directory as a file."""
    (warehouse / JVM_LOCK).unlink()
    (warehouse / JVM_LOCK).mkdir()
    found = {each.what: each for each in doctor.examine(from_mapping({"warehouse": str(warehouse)}))}
    assert not found["coordinator"].is_well
    assert JVM_LOCK in found["coordinator"].detail
    assert "kafka" in found


def test_a_table_with_other_columns_is_a_finding_among_others(warehouse: Path) -> None:
    """As those of an older version, or of another application."""
    for name in ("half", "rejected"):
        write_deltalake(str(warehouse / name), pa.table({"x": [1]}))
    found = {each.what: each for each in doctor.examine(from_mapping({"warehouse": str(warehouse)}))}
    assert not found["rejects"].is_well
    assert found["rejects"].detail.startswith("Binder Error: Referenced column ")
    assert "\n" not in found["rejects"].detail
    assert "kafka" in found


def test_without_a_lock_file_none_runs(warehouse: Path) -> None:
    (warehouse / JVM_LOCK).unlink()
    assert not coordinator(warehouse).is_well


def test_off_local_disks_the_sign_of_life_tells(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "is_local", lambda _: False)
    conf = from_mapping({"warehouse": f"file://{warehouse}", "standby_after": "15s"})
    assert not liveness.runs(conf)
    sign = warehouse / SIGN_OF_LIFE
    sign.write_text("host h, pid 8, sign 3")
    assert liveness.runs(conf)
    before = time.time() - 20
    os.utime(sign, (before, before))
    assert not liveness.runs(conf)
    assert file_time_ms(f"file://{warehouse}", SIGN_OF_LIFE) == int(before * 1_000)
    with opened(str(warehouse)) as tables:
        assert liveness.last_seen_ms(tables, conf) == int(before * 1_000)


def test_an_intended_duplicate_is_no_reject(tmp_path: Path) -> None:
    def found() -> doctor.Diagnosis:
        with opened(conf.warehouse) as tables:
            return doctor._rejects(tables, conf)

    def reject(*reasons: str) -> None:
        at = pa.array([datetime.now(UTC)] * len(reasons), pa.timestamp("us", "UTC"))
        write_deltalake(str(tmp_path / "rejected"), pa.table({"rejected_at": at, "reason": [*reasons]}), mode="append")

    conf = from_mapping({"warehouse": str(tmp_path)})
    reject("DUPLICATE_OF", "DUPLICATE_OF")
    assert (found().is_well, found().detail) == (True, "0 records in the last day, beside 2 duplicates of topics.dedup")
    reject("BAD_OP")
    assert not found().is_well and found().detail.startswith("1 record in the last day, beside 2 duplicates")


def test_a_key_that_is_no_text_is_shown_with_escapes(tmp_path: Path) -> None:
    rejected: dict[str, Any] = {
        "rejected_at": pa.array([STARTED] * 4, pa.timestamp("us", "UTC")), "reason": ["BAD_OP"] * 4,
        "source": ["half"] * 4, "kafka_partition": pa.array([0] * 4, pa.int32()), "kafka_offset": pa.array(range(4)),
        "key": pa.array([b"\xff\x00a", b"order-1", "Zürich\x1b".encode(), None], pa.binary()), "detail": ["x"] * 4,
    }  # fmt: skip
    write_deltalake(str(tmp_path / "rejected"), pa.table(rejected))
    done = CliRunner().invoke(app, ["rejected", f"--set=warehouse={tmp_path}"])
    assert done.exit_code == 0, done.output
    for key in (r"\\xFF\\x00a", "order-1", r"Zürich\x1b"):
        assert key.replace(r"\\", "\\") in done.output


@pytest.mark.parametrize("where", ["nonsense", "1 = 1; SELECT 1", "keys =", "no_such_column = 1"])
def test_a_condition_that_makes_no_sense_is_one_short_error(tmp_path: Path, where: str) -> None:
    schemas: dict[str, list[tuple[str, pa.DataType]]] = {
        "half": [*((name, pa.int64()) for name in ("queue", "queue_offset", "first_queue", "first_offset"))],
        "transactions": [("queue", pa.int64()), ("half_offset", pa.int64()), ("round", pa.int32())],
        "checks": [*((name, pa.int32()) for name in ("queue", "half_offset", "round", "check_no"))],
        "reentries": [
            *((name, pa.int32()) for name in ("queue", "offset", "kind", "round", "part_queue", "part_offset"))
        ],
        "open_rows": [*((name, pa.int32()) for name in ("queue", "offset", "kind", "landing_id"))],
        "positions": [("landing_id", pa.int64())],
    }
    texts = ("transaction_id", "message_id", "producer_group", "topic", "tags", "keys")
    schemas["half"] += [*((name, pa.string()) for name in texts), ("properties", pa.map_(pa.string(), pa.string()))]
    schemas["half"].append(("stored_at", pa.timestamp("us", "UTC")))
    schemas["checks"].append(("requested_at", pa.timestamp("us", "UTC")))
    for name, columns in schemas.items():
        DeltaTable.create(str(tmp_path / name), pa.schema(columns))
    conf = from_mapping({"warehouse": str(tmp_path)})
    plan = bulk.BulkDecision("ROLLBACK", Wanted(states=("PENDING",), where=where), (), None, "x", 10)
    with pytest.raises(ConfigError, match=r"--where: .*; give a condition on columns"):
        bulk.run(conf, plan, dry_run=True, ask=False)
