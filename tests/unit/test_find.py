"""A business key is found wherever the tables hold it, by `commitlake find`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.support import table_features, topic_table
from tests.support.topic_table import AT, half, written
from typer.testing import CliRunner

import commitlake
from commitlake.clients.consumer.receipts import SCHEMA as RECEIPTS
from commitlake.errors import WarehouseError
from commitlake.protocol.message_batch import Member, join, pack
from commitlake.tools.cli.app import app


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
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


def test_a_key_is_found_everywhere_in_time_order(warehouse: Path) -> None:
    code, rows = found(warehouse, "k1")
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


def test_a_topic_whose_owner_renamed_a_column_is_told(warehouse: Path) -> None:
    table_features.rename(warehouse / "topics/orders", "keys", "business_keys")
    told = CliRunner().invoke(app, ["find", "k1", f"--set=warehouse={warehouse}"])
    assert isinstance(told.exception, WarehouseError)
    assert str(told.exception).startswith(f"the table at {warehouse}/topics/orders lacks the columns keys; nobody may")


def test_a_plain_message_is_found_and_what_nobody_has_sent_is_not(warehouse: Path) -> None:
    assert [(row["what"], row["message_id"]) for row in found(warehouse, "k2")[1]] == [("visible", "m2")]
    assert found(warehouse, "k") == (3, [])


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


def test_a_key_within_a_batch_that_was_rejected_is_found(warehouse: Path) -> None:
    members = [Member(b"\xff", {"UNIQ_KEY": "a", "KEYS": "b1"}), Member(b"", {"UNIQ_KEY": "b", "KEYS": "x b2"})]
    joined, bad = join(members, "B"), {"source": "messages", "kafka_partition": 2, "reason": "BAD_BATCH"}
    batch = ("BATCH", b"2")
    values: list[tuple[bytes | None, Any]] = [
        (joined.value, [batch, ("BATCH_HEAD", str(joined.head).encode())]),
        (pack(members), [batch]),
    ]
    values += [(b"\xff", [batch, ("BATCH_HEAD", b"many")]), (None, [batch])]
    rows = [{**bad, "kafka_offset": at, "value": value, "headers": own} for at, (value, own) in enumerate(values)]
    written(warehouse, "rejected", *rows)
    for key in ("b1", "b2"):
        assert [row["place"] for row in found(warehouse, key)[1]] == ["messages-2-0", "messages-2-1"]
    assert found(warehouse, "") == (3, [])
