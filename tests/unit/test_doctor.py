"""Questions about odd warehouses, of an ended coordinator, with senseless conditions; where a business key is found."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.support import topic_table
from tests.support.killing import held
from tests.support.topic_table import AT, half, written
from typer.testing import CliRunner

import commitlake
from commitlake.clients.consumer.receipts import SCHEMA as RECEIPTS
from commitlake.config import Config, from_mapping
from commitlake.config.locations import JVM_LOCK, SIGN_OF_LIFE
from commitlake.coordinator.metrics.server import serving
from commitlake.errors import ConfigError, KafkaError, WarehouseError
from commitlake.protocol.message_batch import Member, join, pack
from commitlake.reading.questions import liveness
from commitlake.reading.questions.tables import opened
from commitlake.reading.questions.transactions import Wanted
from commitlake.reading.table import file_time_ms
from commitlake.tables import TABLES
from commitlake.tools import doctor
from commitlake.tools.cli import bulk
from commitlake.tools.cli.app import app
from commitlake.tools.findings import Diagnosis, verdict

STARTED = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A coordinator that started at noon and wrote last at five past."""
    own = {"host": "h", "version": "1"}
    first = {"epoch": 1, "pid": 7, "started_at": STARTED - timedelta(1), **own}
    written(tmp_path, "epochs", first, {"epoch": 2, "pid": 8, "started_at": STARTED, **own})
    written(tmp_path, "batches", {"batch_id": 4, "completed_at": STARTED + timedelta(minutes=5)})
    (tmp_path / JVM_LOCK).write_text("8")
    return tmp_path


def coordinator(warehouse: Path, **settings: object) -> Diagnosis:
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
    written(warehouse, "positions")
    free, fixed = (from_mapping({"warehouse": str(warehouse), "kafka.embedded_port": port}) for port in (0, 19092))
    with opened(str(warehouse)) as tables:
        assert doctor._kafka(tables, fixed).detail == "embedded: it runs with its coordinator"
        with held(warehouse):
            assert "--set kafka.bootstrap_servers" in doctor._kafka(tables, free).detail
            with pytest.raises(KafkaError, match=r"^127\.0\.0\.1:19092$"):
                doctor._kafka(tables, fixed)


def test_the_verdict_comes_first(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    well, wrong = Diagnosis("disk", True, ""), Diagnosis("kafka", False, "")
    assert verdict([well]) == Diagnosis("verdict", True, "all is well")
    assert verdict([well, wrong]).detail == "1 of 2 needs a look: kafka"
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
    def found() -> Diagnosis:
        with opened(conf.warehouse) as tables:
            return doctor._rejects(tables, conf)

    def reject(*reasons: str) -> None:
        written(tmp_path, "rejected", *({"rejected_at": datetime.now(UTC), "reason": each} for each in reasons))

    conf = from_mapping({"warehouse": str(tmp_path)})
    reject("DUPLICATE_OF", "DUPLICATE_OF")
    assert (found().is_well, found().detail) == (True, "0 records in the last day, beside 2 duplicates of topics.dedup")
    reject("BAD_OP")
    assert not found().is_well and found().detail.startswith("1 record in the last day, beside 2 duplicates")


def test_a_key_that_is_no_text_is_shown_with_escapes(tmp_path: Path) -> None:
    own = {"rejected_at": STARTED, "reason": "BAD_OP", "source": "half", "kafka_partition": 0, "detail": "x"}
    keys = (b"\xff\x00a", b"order-1", "Zürich\x1b".encode(), None)
    written(tmp_path, "rejected", *({**own, "kafka_offset": at, "key": key} for at, key in enumerate(keys)))
    done = CliRunner().invoke(app, ["rejected", f"--set=warehouse={tmp_path}"])
    assert done.exit_code == 0, done.output
    for key in (r"\\xFF\\x00a", "order-1", r"Zürich\x1b"):
        assert key.replace(r"\\", "\\") in done.output


@pytest.mark.parametrize("where", ["nonsense", "1 = 1; SELECT 1", "keys =", "no_such_column = 1"])
def test_a_condition_that_makes_no_sense_is_one_short_error(tmp_path: Path, where: str) -> None:
    for name in TABLES:
        written(tmp_path, name)
    conf = from_mapping({"warehouse": str(tmp_path)})
    plan = bulk.BulkDecision("ROLLBACK", Wanted(states=("PENDING",), where=where), (), None, "x", 10)
    with pytest.raises(ConfigError, match=r"--where: .*; give a condition on columns"):
        bulk.run(conf, plan, dry_run=True, ask=False)


@pytest.fixture
def keyed(tmp_path: Path) -> Path:
    """Each table has the key k1."""
    place = tmp_path / "warehouse"
    written(place, "half", half(1, "k1"), half(2, "a k1"), half(3, "other"))
    ended = {"queue": 0, "half_offset": 1, "state": "COMMITTED", "reason": "CHECK", "round": 0, "checks": 1}
    written(place, "transactions", {**ended, "transaction_id": "t1", "stored_at": AT, "resolved_at": AT})
    written(place, "reentries")
    late = {"queue": 1, "message_id": "d", "topic": "orders", "keys": "k1", "stored_at": AT + 10}
    written(place, "delayed", *({**late, "queue_offset": at, "deliver_at": AT + 1_500_000} for at in (4, 5)))
    gone = {"queue": 1, "source": "messages", "queue_offset": 5, "message_id": "d", "topic": "orders"}
    written(place, "deliveries", {**gone, "state": "RECALLED", "deliver_at": AT, "resolved_at": AT})
    bad = {"source": "messages", "kafka_partition": 2, "kafka_offset": 7, "reason": "TOPIC_NOT_ALLOWED", "detail": "no"}
    own = [("KEYS", b"k1"), ("REAL_TOPIC", b"secret"), ("UNIQ_KEY", b"r")]
    written(place, "rejected", {**bad, "headers": own, "rejected_at": AT + 20}, {**bad, "rejected_at": AT})
    written(place, "destinations", {"topic": "orders"})
    topic_table.write(place, "orders", [topic_table.message(1, batch=1), topic_table.message(2)])
    receipt = {"consumer_group": "points", "topic": "orders", "keys": "k1", "message_id": "m1", "state": "DONE",
               "source": "half", "source_queue": 0, "source_offset": 1, "source_index": 0, "attempt": 2}  # fmt: skip
    rows = pa.Table.from_pylist([{**dict.fromkeys(RECEIPTS.names), **receipt, "at": AT + 30}], RECEIPTS)
    write_deltalake(f"{place}_receipts/receipts", rows)
    return place


def found(warehouse: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    done = CliRunner().invoke(app, ["find", *words, "--json", f"--set=warehouse={warehouse}"])
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_key_is_found_everywhere_in_time_order(keyed: Path) -> None:
    code, rows = found(keyed, "k1")
    assert (code, list(rows[0])) == (
        0, ["at", "what", "state", "topic", "message_id", "transaction_id", "place", "detail"],
    )  # fmt: skip
    assert [(row["what"], row["state"], row["place"], row["detail"]) for row in rows] == [
        ("transaction", "COMMITTED", "half-0-1", "group shop, reason CHECK"),
        ("transaction", "PENDING", "half-0-2", "group shop"),
        ("delayed", "WAITING", "messages-1-4", "due 2026-01-01T00:00:01.500Z"),
        ("delayed", "RECALLED", "messages-1-5", "due 2026-01-01T00:00:01.500Z"),
        ("rejected", "TOPIC_NOT_ALLOWED", "messages-2-7", "no"),
        ("receipt", "DONE", "half-0-1-0", "group points, attempt 2"),
        ("visible", None, "half-0-1-0", None),
    ]
    assert rows[4]["topic"] == "secret"
    assert rows[0]["at"] == "2026-01-01T00:00:00.000Z"


def test_a_topic_whose_owner_renamed_a_column_is_told(keyed: Path) -> None:
    topic_table.rename(keyed / "topics/orders", "keys", "business_keys")
    told = CliRunner().invoke(app, ["find", "k1", f"--set=warehouse={keyed}"])
    assert isinstance(told.exception, WarehouseError)
    assert str(told.exception).startswith(f"the table at {keyed}/topics/orders lacks the columns keys; nobody may")


def test_a_plain_message_is_found_and_what_nobody_has_sent_is_not(keyed: Path) -> None:
    assert [(row["what"], row["message_id"]) for row in found(keyed, "k2")[1]] == [("visible", "m2")]
    assert found(keyed, "k") == (3, [])


def test_what_waits_for_its_time_is_found_also_by_a_clock_that_is_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, hour = time.time_ns(), 3_600_000_000_000
    message = {"queue": 0, "message_id": "d", "topic": "orders", "keys": "k1", "deliver_at": (now + hour) // 1_000}
    written(tmp_path, "delayed", *({**message, "queue_offset": at} for at in range(3)))
    ended = {**message, "source": "messages", "resolved_at": now // 1_000}
    del ended["keys"]
    written(tmp_path, "deliveries", *({**ended, "queue_offset": at, "state": "RECALLED"} for at in (0, 2)))
    for ahead in (0, 2 * hour):
        monkeypatch.setattr(time, "time_ns", lambda by=ahead: now + by)
        assert [row["queue_offset"] for row in commitlake.delayed({"warehouse": str(tmp_path)}, keys="k1")] == [1]


def test_a_key_within_a_batch_that_was_rejected_is_found(keyed: Path) -> None:
    members = [Member(b"\xff", {"UNIQ_KEY": "a", "KEYS": "b1"}), Member(b"", {"UNIQ_KEY": "b", "KEYS": "x b2"})]
    joined, bad = join(members, "B"), {"source": "messages", "kafka_partition": 2, "reason": "BAD_BATCH"}
    batch = ("BATCH", b"2")
    values: list[tuple[bytes | None, Any]] = [
        (joined.value, [batch, ("BATCH_HEAD", str(joined.head).encode())]),
        (pack(members), [batch]),
    ]
    values += [(b"\xff", [batch, ("BATCH_HEAD", b"many")]), (None, [batch])]
    rows = [{**bad, "kafka_offset": at, "value": value, "headers": own} for at, (value, own) in enumerate(values)]
    written(keyed, "rejected", *rows)
    for key in ("b1", "b2"):
        assert [row["place"] for row in found(keyed, key)[1]] == ["messages-2-0", "messages-2-1"]
    assert found(keyed, "") == (3, [])
