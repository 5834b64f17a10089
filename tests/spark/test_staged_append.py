"""Rows of many topics at once: what one append for each table would have written, whatever the topics are called."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from delta.tables import DeltaTable as DeltaTables
from deltalake import DeltaTable
from py4j.java_gateway import JavaPackage, JVMView
from pyspark.sql import DataFrame, SparkSession

from commitlake.errors import WarehouseError
from commitlake.tables import Warehouse, topic_table
from commitlake.tables.direct_append import DirectAppend
from commitlake.tables.schemas import TOPIC
from commitlake.tables.staged_append import StagedAppend, _Step

TOPICS = [
    "orders",
    "Orders",
    "%RETRY%g",
    "%" * 127,
    "__HIVE_DEFAULT_PARTITION__",
    *(f"t{number}" for number in range(5)),
]
MARKER = {"batch_id": 7}


def rows_of(spark: SparkSession, topics: list[str], each: int = 20) -> DataFrame:
    names = ", ".join(f"'{topic}'" for topic in topics)
    return spark.range(each * len(topics)).selectExpr(
        f"element_at(array({names}), int(id % {len(topics)}) + 1) AS topic",
        "int(id % 3) AS queue_id",
        "concat('m', id) AS message_id",
        "IF(id % 2 = 0, concat('t', id), NULL) AS transaction_id",
        *("'g' AS producer_group", "NULL AS tags", "'k' AS keys", "map('color', 'red') AS properties"),
        *("NULL AS sharding_key", "unhex('00FF') AS body", "'half' AS source", "0 AS source_queue"),
        *("id AS source_offset", "0 AS source_index", "timestamp_millis(0) AS born_at"),
        *("timestamp_millis(1000 + id) AS stored_at", "timestamp_millis(2000 + id) AS visible_at", "7L AS batch_id"),
    )


def staged(warehouse: Warehouse) -> StagedAppend:
    found = warehouse._staging()
    assert found is not None
    return found


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Warehouse:
    return Warehouse(spark, str(tmp_path))


def log_of(place: str) -> list[dict[str, Any]]:
    commits = sorted(Path(place, "_delta_log").glob("*.json"))
    return [json.loads(line) for line in commits[-1].read_text().splitlines()]


@pytest.mark.short
def test_all_rows_are_there_and_read_as_after_plain_appends(
    spark: SparkSession, warehouse: Warehouse, plain: Warehouse
) -> None:
    topics = TOPICS[:6]
    rows = rows_of(spark, topics)
    for topic in topics:
        plain.append_to_topics(rows.where(f"topic = '{topic}'"), [topic], MARKER)
    warehouse.append_to_topics(rows, topics, MARKER)
    for topic in topics:
        ours, theirs = (each.read(topic_table(topic)).sort("source_offset") for each in (warehouse, plain))
        assert_df_equality(ours, theirs)
        assert DeltaTable(warehouse.locate(topic_table(topic))).to_pyarrow_table().num_rows == 20


def test_no_commit_makes_the_jvm_look_for_a_package_in_all_jars(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    rows, append, found = rows_of(spark, TOPICS[:1], 1), staged(warehouse), list[str]()
    step = _Step(rows, MARKER, append._direct.operation(MARKER))
    adds, table = append._write(rows), warehouse.locate(topic_table(TOPICS[0]))
    adds[0]["partitionValues"].pop("digest")
    with monkeypatch.context() as patch:
        for kind in (JVMView, JavaPackage):
            patch.setattr(kind, "__getattr__", lambda _, name: found.append(name))
        append._commit(step, TOPICS[0], table, adds)
    assert found == []
    assert warehouse.markers(topic_table(TOPICS[0])) == [MARKER, MARKER]


@pytest.fixture
def plain(spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """To which Delta's writer appends."""
    made = Warehouse(spark, f"{warehouse.root}/plain")
    monkeypatch.setattr(made, "_direct", lambda: None)
    return made


def test_a_commit_says_what_a_plain_one_says(spark: SparkSession, warehouse: Warehouse, plain: Warehouse) -> None:
    plain.append_to_topics(rows_of(spark, ["orders"]), ["orders"], MARKER)
    warehouse.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    assert warehouse.markers(topic_table("orders")) == plain.markers(topic_table("orders")) == [MARKER]
    ours, theirs = (log_of(each.locate(topic_table("orders"))) for each in (warehouse, plain))
    info, other = ours[0]["commitInfo"], theirs[0]["commitInfo"]
    same = ("operation", "operationParameters", "isBlindAppend", "isolationLevel", "userMetadata")
    assert {name: info[name] for name in same} == {name: other[name] for name in same}
    added, expected = ([line["add"] for line in log if "add" in line] for log in (ours, theirs))
    statistics = {tuple(json.loads(add["stats"])["minValues"]) for add in added}
    assert statistics == {tuple(json.loads(add["stats"])["minValues"]) for add in expected}
    for add in (*added, *expected):
        add.pop("tags", None)  # on Spark 4.1 none is {} here, and missing there
    assert all(add["dataChange"] and set(add) == set(expected[0]) for add in added)


def test_no_file_is_left_in_the_scratch_table(spark: SparkSession, warehouse: Warehouse) -> None:
    warehouse.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    assert list(Path(warehouse.root, "_staged").rglob("*.parquet")) == []


def test_a_topic_whose_commit_fails_is_told_and_the_others_are_there(spark: SparkSession, warehouse: Warehouse) -> None:
    warehouse.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    Path(warehouse.locate(topic_table("t3")), "queue_id=1").rename(Path(warehouse.root, "away"))
    Path(warehouse.locate(topic_table("t3")), "queue_id=1").write_text("no directory")
    with pytest.raises(WarehouseError, match=r"the table at .*/topics/t3: .*queue_id=1"):
        warehouse.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    assert {topic: len(warehouse.markers(topic_table(topic))) for topic in TOPICS} == {
        topic: 1 if topic == "t3" else 2 for topic in TOPICS
    }


def test_what_a_kill_left_is_deleted(spark: SparkSession, warehouse: Warehouse) -> None:
    staged(warehouse)._write(rows_of(spark, TOPICS))
    assert list(Path(warehouse.root, "_staged").rglob("*.parquet"))
    staged(Warehouse(spark, warehouse.root))
    assert list(Path(warehouse.root, "_staged").rglob("*.parquet")) == []


def test_rows_go_to_a_table_while_it_is_compacted(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        warehouse.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    begin = DirectAppend.begin

    def compacted_meanwhile(self: DirectAppend, table: str) -> object:
        begun = begin(self, table)
        if table.endswith("/orders"):
            warehouse.table(topic_table("orders")).optimize().executeCompaction()
        return begun

    monkeypatch.setattr(DirectAppend, "begin", compacted_meanwhile)
    warehouse.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    assert warehouse.read(topic_table("orders")).count() == 80


ALTERED = {
    "a default": (
        "ADD COLUMNS (more INT)",
        "SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
        "ALTER COLUMN more SET DEFAULT 7",
    ),
    "a column made again under its name": (
        "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', "
        "'delta.minWriterVersion' = '5')",
        "DROP COLUMN producer_group",
        "ADD COLUMNS (producer_group STRING)",
    ),
}


@pytest.mark.parametrize("changes", ALTERED.values(), ids=ALTERED)
def test_an_altered_table_gets_the_rows_of_an_append_of_its_own(
    spark: SparkSession, warehouse: Warehouse, plain: Warehouse, changes: tuple[str, ...]
) -> None:
    for each in (warehouse, plain):
        each.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
        for change in changes:
            spark.sql(f"ALTER TABLE delta.`{each.locate(topic_table('orders'))}` {change}")
        each.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    ours, theirs = (each.read(topic_table("orders")) for each in (warehouse, plain))
    order = ("source_offset", ours.columns[-1])  # the column that was added
    assert_df_equality(ours.sort(*order), theirs.sort(*order))
    assert warehouse.markers(topic_table("orders")) == [MARKER, MARKER]
    assert list(Path(warehouse.root, "_staged").rglob("*.parquet")) == []


@pytest.mark.parametrize("partitions", [[], ["source_queue"], ["queue_id", "source"]])
def test_a_table_with_other_partitions_gets_an_append_of_its_own(
    spark: SparkSession, warehouse: Warehouse, partitions: list[str]
) -> None:
    warehouse.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    warehouse.set_property(topic_table("orders"), "delta.appendOnly", "false")
    made = DeltaTables.replace(spark).location(warehouse.locate(topic_table("orders"))).addColumns(TOPIC.schema)
    (made.partitionedBy(*partitions) if partitions else made).execute()
    warehouse.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    assert warehouse.read(topic_table("orders")).count() == 20


def test_a_sessions_default_of_mapped_columns_is_not_that_of_the_tables(spark: SparkSession, tmp_path: Path) -> None:
    default = "spark.databricks.delta.properties.defaults.columnMapping.mode"
    spark.conf.set(default, "name")
    try:
        warehouse = Warehouse(spark, str(tmp_path))
        warehouse.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    finally:
        spark.conf.unset(default)
    assert DeltaTable(warehouse.locate(topic_table("orders"))).to_pyarrow_table().num_rows == 20


def test_rows_of_a_table_that_is_gone_are_refused_and_the_other_topics_have_theirs(
    spark: SparkSession, warehouse: Warehouse
) -> None:
    warehouse.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    shutil.rmtree(warehouse.locate(topic_table("orders")))
    for topics in (TOPICS, ["orders"]):
        with pytest.raises(WarehouseError, match=r"the table at .*/topics/orders: there is no table at .* any more"):
            warehouse.append_to_topics(rows_of(spark, topics), topics, MARKER)
    assert warehouse.read(topic_table("t1")).count() == 40


def test_a_row_that_breaks_a_tables_constraint_is_refused_and_the_other_topics_have_theirs(
    spark: SparkSession, warehouse: Warehouse
) -> None:
    warehouse.append_to_topics(rows_of(spark, TOPICS, 2), TOPICS, MARKER)
    orders = topic_table("orders")
    spark.sql(f"ALTER TABLE delta.`{warehouse.locate(orders)}` ADD CONSTRAINT early CHECK (source_offset < 20)")
    with pytest.raises(WarehouseError, match=r"topics/orders: .*CHECK constraint early"):
        warehouse.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    assert {topic: warehouse.read(topic_table(topic)).count() for topic in TOPICS} == {
        topic: 2 if topic == "orders" else 22 for topic in TOPICS
    }


def test_each_table_gets_an_append_of_its_own_where_delta_has_no_such_classes(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlake.tables.direct_append._WRITE", "NoSuchClass")
    assert warehouse._staging() is None
    warehouse.append_to_topics(rows_of(spark, TOPICS), TOPICS, MARKER)
    assert warehouse.read(topic_table("t4")).count() == 20
