"""Appends by Delta's own transactions: as those of Delta's writer, and no dearer after a million commits."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable, write_deltalake
from pyarrow.parquet import read_metadata
from pyspark.sql import DataFrame, SparkSession

from commitlake.coordinator.coordination.input_rows import INPUT_SCHEMA
from commitlake.coordinator.coordination.input_table import InputTable, SegmentKey
from commitlake.errors import WarehouseError
from commitlake.protocol.clock import BrokerClock
from commitlake.spark.frames import of_rows
from commitlake.spark.parallel import run_all
from commitlake.tables import Warehouse, direct_append
from commitlake.tables.direct_append import DirectAppend
from commitlake.tables.schemas import TABLES

MARKER = {"batch_id": 7}
NAME = "destinations"


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Warehouse:
    made = Warehouse(spark, str(tmp_path))
    made.create()
    return made


@pytest.fixture
def plain(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """The same tables; Delta's writer appends."""
    made = Warehouse(spark, str(tmp_path))
    monkeypatch.setattr(made, "_direct", lambda: None)
    return made


def rows(spark: SparkSession, *topics: str) -> DataFrame:
    schema = TABLES[NAME].schema
    return spark.createDataFrame([(topic, f"topics/{topic}", None) for topic in topics], schema)


def append_elsewhere(table: Path, topic: str, **more: object) -> None:
    """As a program without Spark does."""
    row = pa.table({"topic": [topic], "table": [f"topics/{topic}"], **{name: [value] for name, value in more.items()}})
    write_deltalake(str(table), row, mode="append", schema_mode="merge")


def log_of(warehouse: Warehouse) -> Path:
    return Path(warehouse.root, NAME, "_delta_log")


def commits_known(spark: SparkSession, warehouse: Warehouse) -> int:
    context: Any = spark.sparkContext
    found = context._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, warehouse.locate(NAME))
    return int(found.unsafeVolatileSnapshot().logSegment().deltas().size())


def topics(warehouse: Warehouse) -> list[str]:
    found: list[str] = DeltaTable(f"{warehouse.root}/{NAME}").to_pyarrow_table()["topic"].to_pylist()
    return sorted(found)


@pytest.mark.short
def test_an_append_is_as_one_of_deltas_writer(spark: SparkSession, warehouse: Warehouse, plain: Warehouse) -> None:
    for each in (warehouse, plain):
        each.append(rows(spark, "a", "b"), NAME, MARKER)
    ours, theirs = (
        [json.loads(line) for line in (log_of(warehouse) / f"{version:020}.json").read_text().splitlines()]
        for version in (1, 2)
    )
    same = ("operation", "operationParameters", "isBlindAppend", "isolationLevel", "userMetadata")
    assert {name: ours[0]["commitInfo"][name] for name in same} == {
        name: theirs[0]["commitInfo"][name] for name in same
    }
    assert [set(line["add"]) for line in ours[1:]] == [set(line["add"]) for line in theirs[1:]]
    assert json.loads(ours[1]["add"]["stats"]) == json.loads(theirs[1]["add"]["stats"])
    read = warehouse.read(NAME)
    assert_df_equality(read.distinct(), rows(spark, "a", "b"), ignore_row_order=True, ignore_nullable=True)
    assert warehouse.markers(NAME) == [MARKER, MARKER]


def test_an_append_does_not_look_through_the_log(spark: SparkSession, warehouse: Warehouse, plain: Warehouse) -> None:
    """A commit that can't be there yet makes each look fail."""
    warehouse.append(rows(spark, "a"), NAME)
    unread = log_of(warehouse) / f"{9:020}.json"
    unread.write_text("{}")
    warehouse.append(rows(spark, "b"), NAME)
    with pytest.raises(WarehouseError, match="cannot write to the table"):
        plain.append(rows(spark, "c"), NAME)
    unread.unlink()
    assert topics(warehouse) == ["a", "b"]


def test_what_another_process_has_committed_is_seen(spark: SparkSession, warehouse: Warehouse) -> None:
    warehouse.append(rows(spark, "a"), NAME)
    append_elsewhere(Path(warehouse.root, NAME), "b")
    DeltaTable(f"{warehouse.root}/{NAME}").alter.set_table_properties({"delta.checkpointInterval": "7"})
    warehouse.append(rows(spark, "c"), NAME)
    assert topics(warehouse) == ["a", "b", "c"]
    assert warehouse.property(NAME, "delta.checkpointInterval") == "7"


def test_a_commit_that_comes_between_is_a_conflict_that_delta_solves(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse.append(rows(spark, "a"), NAME)
    begin = DirectAppend.begin

    def overtaken(self: DirectAppend, table: str) -> object:
        begun = begin(self, table)
        append_elsewhere(Path(table), "b")
        return begun

    monkeypatch.setattr(DirectAppend, "begin", overtaken)
    warehouse.append(rows(spark, "c"), NAME)
    assert topics(warehouse) == ["a", "b", "c"]


@pytest.mark.parametrize("commits", [1, 3])
def test_rows_of_a_table_that_was_made_again_go_to_the_new_one(
    spark: SparkSession, warehouse: Warehouse, commits: int
) -> None:
    for topic in ("a", "b"):
        warehouse.append(rows(spark, topic), NAME)
    shutil.rmtree(Path(warehouse.root, NAME))
    for _ in range(commits):
        append_elsewhere(Path(warehouse.root, NAME), "new", **{"created_at": datetime.now(UTC)})
    warehouse.append(rows(spark, "d"), NAME)
    assert topics(warehouse) == ["d", *["new"] * commits]


def test_an_append_goes_into_no_hole_of_a_log_that_another_process_has_cleaned_up(
    spark: SparkSession, warehouse: Warehouse
) -> None:
    warehouse.append(rows(spark, "a"), NAME)
    table = Path(warehouse.root, NAME)
    for topic in ("b", "c"):
        append_elsewhere(table, topic)
    DeltaTable(str(table)).create_checkpoint()
    (log_of(warehouse) / f"{2:020}.json").unlink()  # a clean-up by times, of which one was ahead
    warehouse.append(rows(spark, "d"), NAME)
    assert topics(warehouse) == ["a", "b", "c", "d"]


def test_no_second_append_goes_into_the_hole_that_a_table_made_again_has(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is lost with the old table: it was being written as that went."""
    for topic in ("a", "b"):
        warehouse.append(rows(spark, topic), NAME)
    begin = DirectAppend.begin

    def made_again(self: DirectAppend, table: str) -> object:
        begun = begin(self, table)
        shutil.rmtree(table)
        append_elsewhere(Path(table), "new", **{"created_at": datetime.now(UTC)})
        return begun

    with monkeypatch.context() as patch:
        patch.setattr(DirectAppend, "begin", made_again)
        warehouse.append(rows(spark, "c"), NAME)
    with pytest.raises(WarehouseError, match="not contiguous"):
        warehouse.append(rows(spark, "d"), NAME)


@pytest.mark.parametrize("text", ["", "null", "[]", '{"version": null}', '{"version": Infinity}', "{}", "\x00"])
def test_a_damaged_note_of_the_last_checkpoint_holds_up_no_append(
    spark: SparkSession, warehouse: Warehouse, text: str
) -> None:
    warehouse.append(rows(spark, "a"), NAME)
    (log_of(warehouse) / "_last_checkpoint").write_text(text)
    warehouse.append(rows(spark, "b"), NAME)
    assert topics(warehouse) == ["a", "b"]


def test_an_append_of_no_rows_commits_nothing(spark: SparkSession, warehouse: Warehouse) -> None:
    warehouse.append(rows(spark, "a").where("false"), NAME, MARKER)
    assert [path.name for path in log_of(warehouse).glob("*.json")] == [f"{0:020}.json"]


def test_what_delta_keeps_of_a_log_is_no_longer_after_a_hundred_appends(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state begins with a checkpoint, and a look through the log finds a newer one."""
    monkeypatch.setattr(direct_append, "_MOST_COMMITS", 8)
    warehouse.set_property(NAME, "delta.checkpointInterval", "5")
    names = [f"t{number:02}" for number in range(30)]
    kept = []
    for name in names:
        warehouse.append(rows(spark, name), NAME)
        kept.append(commits_known(spark, warehouse))
    assert max(kept) <= 8
    for old in sorted(log_of(warehouse).glob("*.json"))[:20]:  # as a clean-up of the log does
        old.unlink()
    warehouse.append(rows(spark, "z"), NAME)
    assert topics(warehouse) == [*names, "z"]


def test_threads_append_to_one_table_and_lose_nothing(spark: SparkSession, warehouse: Warehouse) -> None:
    names = [f"t{number:02}" for number in range(16)]
    run_all(spark, [partial(warehouse.append, rows(spark, name), NAME) for name in names])
    assert topics(warehouse) == names


def test_deltas_writer_appends_where_others_may_or_delta_has_no_such_classes(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Warehouse(spark, "schema:lake")._direct() is None
    monkeypatch.setattr(warehouse.guard, "fences", True)
    assert warehouse._staging() is None
    with monkeypatch.context() as patch:
        patch.setattr(DirectAppend, "begin", None)
        warehouse.append(rows(spark, "b"), NAME)
    monkeypatch.setattr("commitlake.tables.direct_append._WRITE", "NoSuchClass")
    other = Warehouse(spark, warehouse.root)
    assert other._direct() is None
    other.append(rows(spark, "a"), NAME, MARKER)
    assert (topics(warehouse), warehouse.markers(NAME)) == (["a", "b"], [MARKER])


@pytest.mark.parametrize(("is_direct", "few"), [(True, False), (False, False), (True, True)])
def test_input_rows_are_the_same_each_way(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_direct: bool, few: bool
) -> None:
    if not is_direct:
        monkeypatch.setattr("commitlake.tables.direct_append._WRITE", "NoSuchClass")
    place = str(tmp_path / "input")
    table = InputTable(spark, place, BrokerClock(), of_rows(spark, [], INPUT_SCHEMA))
    assert (table._direct is not None) == is_direct
    for _ in range(3):
        table.append(table.ticks([SegmentKey(0, 1, 2)]), 5, few=few)
    written = {read_metadata(file).created_by.partition(" ")[0] for file in Path(place).rglob("part=0/*.parquet")}
    assert written == {"parquet-cpp-arrow" if few else "parquet-mr"}
    assert spark.read.format("delta").load(place).where("landed = 5 AND part = 0").count() == 3
