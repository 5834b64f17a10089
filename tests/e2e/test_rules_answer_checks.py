"""A coordinator whose rules answer the checks of a group that has no producer any more."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.polling import wait_for

import commitlake
from commitlake.clients.delta import marks
from commitlake.clients.delta.allowed_places import DEADLINE, TABLES
from commitlake.errors import ConfigError


def rule(place: Path) -> dict[str, str]:
    return {
        "table": f"delta:{place}",
        "match": "keys = id",
        "commit": "state = 'PAID'",
        "rollback": "state = 'CANCELLED' OR (absent AND age > '2s')",
        "every": "1s",
    }


def ends(lake: Lake) -> dict[str, tuple[str, str]]:
    return {row["transaction_id"]: (row["state"], row["reason"]) for row in lake.rows("transactions")}


def test_transactions_of_a_dead_group_end_by_what_its_table_says(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    states = {f"order-{number}": ("PAID", "CANCELLED", "NEW")[number % 3] for number in range(30)}
    write_deltalake(str(tmp_path / "orders"), pa.table({"id": list(states), "state": list(states.values())}))
    for name in [*states, "lost"]:
        lake.half(name, keys=name, group="gone")
    lake.half("order-0-of-others", keys="order-0", group="others")
    settings = {**lake.settings, "transaction.timeout": "1s", "checks": {"gone": rule(tmp_path / "orders")}}
    with commitlake.start(spark, settings):
        wait_for(lambda: len(ends(lake)) == 21, why=lambda: ends(lake))
        wanted: dict[str, tuple[str, str]] = {
            name: ("COMMITTED", "CHECK") if state == "PAID" else ("ROLLED_BACK", "CHECK")
            for name, state in states.items()
            if state != "NEW"
        }
        assert ends(lake) == wanted | {"lost": ("ROLLED_BACK", "CHECK")}
        write_deltalake(str(tmp_path / "orders"), pa.table({"id": ["order-2"], "state": ["PAID"]}), mode="append")
        wait_for(lambda: ends(lake).get("order-2") == ("COMMITTED", "CHECK"))
    remarks = Counter(row["remark"] for row in lake.rows("op"))
    assert set(remarks) == {"by the rule checks.gone of the coordinator"}
    assert lake.rows("rejected") == []
    visible: list[dict[str, Any]] = lake.rows("topics/orders")
    assert sorted(row["transaction_id"] for row in visible) == sorted(
        [name for name, state in states.items() if state == "PAID"] + ["order-2"]
    )


def test_a_rule_that_can_not_be_used_stops_the_start(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    unsafe = {**rule(tmp_path), "rollback": "absent"}
    with pytest.raises(ConfigError, match="it holds without a row at an age of 0ms"):
        commitlake.start(spark, {**lake.settings, "checks": {"gone": unsafe}})


GARBAGE = {
    "a number": "5",
    "a text": '"x"',
    "numbers": "[5]",
    "an object": '{"/lake": 1}',
    "null": "null",
    "no tables": "[]",
    "lists": "[[[]]]",
    "deep": "[" * 100_000,
    "no JSON": "[",
    "half a character": '["\\ud800"]',
    "a NUL": '["/lake\\u0000"]',
    "no table": '["/no/table/is/here"]',
    "another scheme": '["foo://lake"]',
    "a file": '["/etc/passwd"]',
}
DEADLINES = ["soon", "1e400", "-1", "9" * 30, "9" * 10_000, ""]


def with_a_writer_of_tomorrow(place: str) -> str:
    """A table that deltalake reads and can't write."""
    write_deltalake(place, pa.table({"a": [1]}))
    told = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["ofTomorrow"]}}
    (Path(place) / "_delta_log" / f"{1:020}.json").write_text(json.dumps(told))
    return place


def test_what_a_transaction_says_of_its_tables_harms_no_other(
    spark: SparkSession, lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = str(tmp_path / "orders")
    write_deltalake(table, pa.table({"a": [1]}))
    unwritable = with_a_writer_of_tomorrow(str(tmp_path / "tomorrow"))
    for name, places in {**GARBAGE, "unwritable": json.dumps([unwritable])}.items():
        lake.half(name, group="nightly", properties={TABLES: places, DEADLINE: "0"})
    for number, deadline in enumerate(DEADLINES):
        lake.half(f"deadline {number}", group="nightly", properties={TABLES: json.dumps([table]), DEADLINE: deadline})
    late, written, older = f"{marks.PREFIX}late", f"{marks.PREFIX}written", "of an older job"
    for name in (late, written, older):
        lake.half(name, group="nightly", properties={TABLES: json.dumps([table]), DEADLINE: "0"})
    mark = CommitProperties(app_transactions=[Transaction(name, marks.WRITTEN) for name in (written, older)])
    write_deltalake(table, pa.table({"a": [2]}), mode="append", commit_properties=mark)
    rules = {"nightly": {"table": "delta-log", "every": "1s", "places": [str(tmp_path)]}}
    caplog.set_level(logging.WARNING, logger="commitlake")
    with commitlake.start(spark, {**lake.settings, "transaction.timeout": "1s", "checks": rules}):
        wait_for(lambda: len(ends(lake)) >= 3, why=lambda: caplog.messages)
        left = {*GARBAGE, "unwritable", *(f"deadline {number}" for number in range(len(DEADLINES)))}
        wait_for(
            lambda: all(any(f"transaction {name} stays open" in each for each in caplog.messages) for name in left)
        )
    committed, rolled_back = ("COMMITTED", "CHECK"), ("ROLLED_BACK", "CHECK")
    assert ends(lake) == {late: rolled_back, written: committed, older: committed}
    assert max(map(len, caplog.messages)) < 500


def test_a_producer_gets_nothing_written_where_its_rule_names_no_place_or_under_the_ids_of_others(
    spark: SparkSession, lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    victim, allowed = str(tmp_path / "victim"), str(tmp_path / "mine")
    own = f"{lake.settings['warehouse']}/transactions"
    stream = CommitProperties(app_transactions=[Transaction("somebodys-stream", 0)])
    for table in (victim, allowed):
        write_deltalake(table, pa.table({"a": [1]}), commit_properties=stream)
    (tmp_path / "mine" / "link").symlink_to(victim)
    tried = {
        f"{marks.PREFIX}victim": victim,
        f"{marks.PREFIX}own": own,
        f"{marks.PREFIX}dots": f"{allowed}/../victim",
        f"{marks.PREFIX}link": f"file://{allowed}/link",
        "not-yet-used": allowed,
    }
    for name, table in tried.items():
        lake.half(name, group="nightly", properties={TABLES: json.dumps([table]), DEADLINE: "0"})
    lake.half(f"{marks.PREFIX}mine", group="nightly", properties={TABLES: json.dumps([allowed]), DEADLINE: "0"})
    rules = {"nightly": {"table": "delta-log", "every": "1s", "places": [allowed]}}
    caplog.set_level(logging.WARNING, logger="commitlake")
    with commitlake.start(spark, {**lake.settings, "transaction.timeout": "1s", "checks": rules}):
        wait_for(lambda: ends(lake), why=lambda: caplog.messages)
        wait_for(lambda: all(any(f"{name} stays open" in each for each in caplog.messages) for name in tried))
    assert ends(lake) == {f"{marks.PREFIX}mine": ("ROLLED_BACK", "CHECK")}
    assert DeltaTable(victim).version() == 0
    assert [DeltaTable(allowed).transaction_version(name) for name in ("somebodys-stream", "not-yet-used")] == [0, None]
    assert all(DeltaTable(own).transaction_version(name) is None for name in tried)
