"""`commitlake erase`: what is gone, what stays, and that a kill in between leaves nothing behind for good."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as Table
from pyspark.sql import SparkSession
from tests.support.lake import Lake

import commitlake
from commitlake import config
from commitlake.coordinator.maintenance.run import Maintenance
from commitlake.errors import WarehouseError
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol.clock import now_ms
from commitlake.tables import Warehouse, topic_table
from commitlake.tools import erase as erasing
from commitlake.tools.audit.audit import audit
from commitlake.tools.erase import ERASED, ToErase

ANN = ToErase("people", "ann", None)
SECRET = secrets.token_hex(64)
"""Does not compress, so it stands in a file as it is."""


@pytest.fixture(scope="module")
def played(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Messages of ann and of bob: of a transaction, normal, delivered, discarded, rejected, and read by a group."""
    with Lake(broker.bootstrap_servers, "erase.", tmp_path_factory.mktemp("erase")) as lake:
        for who in ("ann", "bob", "ann anna"):
            said = f"{who} {SECRET}".encode()
            own: dict[str, Any] = {
                "keys": who,
                "properties": {"mail": f"{who}@{SECRET}"},
                "body": said,
                "topic": "people",
            }
            name = who.replace(" ", "-")
            lake.op("COMMIT", f"t-{name}", lake.half(f"t-{name}", **own))
            lake.half(f"lost-{name}", **own)
            lake.message(f"m-{name}", **{**own, "sharding_key": said})
            lake.message(f"d-{name}", **own, delays={"TIMER_DELAY_MS": "1"})
            lake.message(f"r-{name}", **{**own, "queue_id": 1_000})
        lake.run(spark, transaction_timeout="0s", transaction_retention="1ms")
        with commitlake.consume({"warehouse": str(lake.warehouse)}, "people", group="points", follow=False) as messages:
            for message in messages:
                message.retry(after="1h", remark=f"no account of {SECRET}")
        yield lake


@pytest.fixture
def lake(played: Lake, tmp_path: Path) -> Iterator[Lake]:
    with played.copied(tmp_path) as lake:
        shutil.copytree(f"{played.warehouse}_receipts", f"{lake.warehouse}_receipts")
        yield lake


def erase(spark: SparkSession, lake: Lake, wanted: ToErase = ANN) -> dict[str, int]:
    receipts = f"{lake.warehouse}_receipts/receipts"
    return erasing.erase(Warehouse(spark, str(lake.warehouse)), receipts, wanted, now_ms(), "she asked for it")


def holding(lake: Lake, text: str) -> set[str]:
    """Directories of the tables of which a file has the text."""
    found = set()
    for place in (lake.warehouse, Path(f"{lake.warehouse}_receipts")):
        for file in place.rglob("*"):
            if file.is_file() and text.encode() in file.read_bytes():
                found.add(str(file.relative_to(lake.root)))
    return found


def swept(spark: SparkSession, lake: Lake) -> None:
    """Maintenance, and what deltalake keeps of the receipts, for which no file stays a moment longer than it must."""
    conf = lake.configured()
    keep = replace(conf.maintenance, file_retention_ms=0, topic_file_retention_ms=0)
    found = Maintenance(Warehouse(spark, conf.warehouse), replace(conf, maintenance=keep))
    names = ("half", "delayed", "discarded", "rejected", topic_table("people"))  # all would take minutes
    found._tables = lambda: iter([(name, name, 0) for name in names])  # type: ignore[method-assign]
    assert found.run().failed == []
    table = Table(f"{lake.warehouse}_receipts/receipts")
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def test_what_a_person_said_is_gone_from_every_table_and_all_others_keep_theirs(
    spark: SparkSession, lake: Lake
) -> None:
    before = lake.topic("people")
    assert {row["keys"] for row in before} >= {"ann", "ann anna", "bob"}
    counts = erase(spark, lake)
    assert {name: count for name, count in counts.items() if not count} == {}
    rows = {row["message_id"]: row for row in lake.topic("people")}
    assert rows.keys() == {row["message_id"] for row in before}
    for row in before:
        now = rows[row["message_id"]]
        if row["keys"] == "bob":
            assert now == row
        else:
            assert (now["keys"], now["body"], now["sharding_key"]) == (None, None, None)
            assert [name for name, _ in now["properties"]] == [ERASED]
            assert {k: v for k, v in now.items() if k in ("source", "source_queue", "source_offset", "batch_id")} == {
                k: v for k, v in row.items() if k in ("source", "source_queue", "source_offset", "batch_id")
            }
    assert audit(spark, str(lake.warehouse)).is_well


def test_no_byte_of_it_is_left_once_files_are_swept(spark: SparkSession, lake: Lake) -> None:
    assert any("/half/" in name for name in holding(lake, f"ann {SECRET}"))
    erase(spark, lake)
    erase(spark, lake, ToErase("people", "bob", None))
    swept(spark, lake)
    assert holding(lake, SECRET) == set()


def test_a_second_run_finds_nothing(spark: SparkSession, lake: Lake) -> None:
    erase(spark, lake)
    assert set(erase(spark, lake).values()) == {0}


@pytest.mark.parametrize("kill_at", range(1, 5))
def test_after_a_kill_the_same_command_erases_the_rest(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    calls = []
    update = DeltaTable.update

    def killed(self: DeltaTable, *given: Any, **named: Any) -> None:
        calls.append(1)
        if len(calls) > kill_at:
            raise KeyboardInterrupt
        update(self, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "update", killed)
        with pytest.raises(KeyboardInterrupt):
            erase(spark, lake)
    erase(spark, lake)
    for name in ("topics/people", "half", "delayed", "discarded"):
        assert [row["message_id"] for row in lake.rows(name) if "ann" in (row["keys"] or "").split()] == []


def test_only_what_fits_the_condition_goes(spark: SparkSession, lake: Lake) -> None:
    erase(spark, lake, ToErase("people", None, "message_id = 'm-ann'"))
    erased = [row["message_id"] for row in lake.topic("people") if row["body"] is None]
    assert erased == ["m-ann"]


def test_a_property_of_the_producers_with_that_name_keeps_nothing(spark: SparkSession, lake: Lake) -> None:
    own: dict[str, Any] = {"keys": "eve", "properties": {ERASED: "never"}, "body": b"said", "topic": "people"}
    lake.op("COMMIT", "t-eve", lake.half("t-eve", **own))
    lake.run(spark)
    assert erase(spark, lake, ToErase("people", "eve", None))["half"] == 1
    (row,) = [row for row in lake.topic("people") if row["message_id"].startswith("t-eve")]
    assert row["body"] is None


def test_counting_changes_nothing(spark: SparkSession, lake: Lake) -> None:
    before = holding(lake, SECRET)
    counts = erasing.found(Warehouse(spark, str(lake.warehouse)), ANN)
    assert all(counts.values())
    assert holding(lake, SECRET) == before


def test_what_is_open_or_waits_is_refused(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    with Lake(broker.bootstrap_servers, "erase-open.", tmp_path) as lake:
        lake.half("open", topic="people", keys="ann")
        lake.message("later", topic="people", keys="bob", delays={"TIMER_DELAY_MS": "3600000"})
        lake.op("COMMIT", "timed", lake.half("timed", topic="people", keys="cid", delays={"TIMER_DELAY_MS": "3600000"}))
        lake.run(spark)
        for key, what in (("ann", "open: open-0"), ("bob", "delayed: later"), ("cid", "waiting: timed-0")):
            with pytest.raises(WarehouseError, match=f"would be erased are {what}"):
                erase(spark, lake, ToErase("people", key, None))


def test_a_group_that_reads_later_gets_an_empty_message(spark: SparkSession, lake: Lake) -> None:
    erase(spark, lake)
    with commitlake.consume({"warehouse": str(lake.warehouse)}, "people", group="late", follow=False) as messages:
        found = {message.message_id: message.body for message in messages}
    assert found["m-ann"] == b""
    assert found["m-bob"] != b""


def test_where_the_bytes_still_are_is_told_with_the_log_of_a_topic_with_columns() -> None:
    conf = config.from_mapping({"topics.schemas": {"people": {"format": "json", "schema": "mail STRING"}}})
    told = erasing.remains(conf, ANN)
    assert "7d for the topic's table, 1h for the others, and a quarter longer. The log of the topic's table has" in told
    assert "The log" not in erasing.remains(config.from_mapping({}), ANN)
