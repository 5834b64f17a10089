"""Appends by Delta's own transactions, of few rows, of many topics at once: what Delta's writer would have written."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from delta.tables import DeltaTable as DeltaTables
from deltalake import DeltaTable, write_deltalake
from py4j.java_gateway import JavaPackage, JVMView
from pyarrow.parquet import read_metadata
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from commitlake.coordinator.coordination.input_table import InputTable, SegmentKey
from commitlake.errors import FencedError, WarehouseError
from commitlake.protocol.clock import BrokerClock
from commitlake.spark.frames import of_rows
from commitlake.spark.parallel import run_all
from commitlake.tables import TableName, Warehouse, direct_append, small_files, topic_table
from commitlake.tables.direct_append import DirectAppend, StagedAppend, _Step
from commitlake.tables.schemas import TABLES, TOPIC, TableLayout
from commitlake.tables.warehouse import AppendGuard

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


def newest_commit(place: str) -> list[dict[str, Any]]:
    commits = sorted(Path(place, "_delta_log").glob("*.json"))
    return [json.loads(line) for line in commits[-1].read_text().splitlines()]


def said(commit: list[dict[str, Any]]) -> dict[str, Any]:
    same = ("operation", "operationParameters", "isBlindAppend", "isolationLevel", "userMetadata")
    return {name: commit[0]["commitInfo"][name] for name in same}


def meanwhile(monkeypatch: pytest.MonkeyPatch, change: Callable[[str], object]) -> None:
    """`change` gets the place of each table between the begin and the commit of an append to it."""
    begin = DirectAppend.begin

    def begun(self: DirectAppend, table: str) -> object:
        transaction = begin(self, table)
        change(table)
        return transaction

    monkeypatch.setattr(DirectAppend, "begin", begun)


@pytest.mark.short
def test_an_append_is_as_one_of_deltas_writer(spark: SparkSession, warehouse: Warehouse, plain: Warehouse) -> None:
    logs = []
    for each in (warehouse, plain):
        each.append(rows(spark, "a", "b"), NAME, MARKER)
        logs.append(newest_commit(each.locate(NAME)))
    ours, theirs = logs
    assert said(ours) == said(theirs)
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
    meanwhile(monkeypatch, lambda table: append_elsewhere(Path(table), "b"))
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

    def make_again(table: str) -> None:
        shutil.rmtree(table)
        append_elsewhere(Path(table), "new", **{"created_at": datetime.now(UTC)})

    with monkeypatch.context() as patch:
        meanwhile(patch, make_again)
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


@pytest.mark.parametrize("few", [True, False])
def test_an_append_of_no_rows_commits_nothing(spark: SparkSession, warehouse: Warehouse, few: bool) -> None:
    warehouse.append(rows(spark, "a").where("false"), NAME, MARKER, few=few)
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
    table = InputTable(spark, place, BrokerClock())
    assert (table._direct is not None) == is_direct
    for _ in range(3):
        table.append(table.ticks([SegmentKey(0, 1, 2)]), 5, few=few)
    written = {read_metadata(file).created_by.partition(" ")[0] for file in Path(place).rglob("part=0/*.parquet")}
    assert written == {"parquet-cpp-arrow" if few else "parquet-mr"}
    assert spark.read.format("delta").load(place).where("landed = 5 AND part = 0").count() == 3


TOPICS = [
    "orders",
    "Orders",
    "%RETRY%g",
    "%" * 127,
    "__HIVE_DEFAULT_PARTITION__",
    *(f"t{number}" for number in range(5)),
]


def rows_of(spark: SparkSession, topics: list[str], each: int = 20) -> DataFrame:
    names = ", ".join(f"'{topic}'" for topic in topics)
    return spark.range(each * len(topics)).selectExpr(
        f"element_at(array({names}), int(id % {len(topics)}) + 1) AS topic",
        "int(id % 3) AS queue_id",
        "concat('m', id) AS message_id",
        "IF(id % 2 = 0, concat('t', id), NULL) AS transaction_id",
        *("'g' AS producer_group", "NULL AS tags", "'k' AS keys", "map('color', 'red') AS properties"),
        *("NULL AS sharding_key", "unhex('00FF') AS body", "'half' AS source", "0 AS source_queue"),
        *("id AS source_offset", "0 AS source_index", "timestamp_millis(0) AS born_at", "NULL AS due_at"),
        *("timestamp_millis(1000 + id) AS stored_at", "timestamp_millis(2000 + id) AS visible_at", "7L AS batch_id"),
        "NULL AS landing_id",
    )


def fill(warehouse: Warehouse) -> None:
    warehouse.append_to_topics(rows_of(warehouse.spark, TOPICS), TOPICS, MARKER)


def staged(empty: Warehouse) -> StagedAppend:
    found = empty._staging()
    assert found is not None
    return found


@pytest.fixture
def empty(spark: SparkSession, tmp_path: Path) -> Warehouse:
    return Warehouse(spark, str(tmp_path))


@pytest.mark.short
def test_all_rows_are_there_and_read_as_after_plain_appends(
    spark: SparkSession, empty: Warehouse, beside: Warehouse
) -> None:
    topics = TOPICS[:6]
    rows = rows_of(spark, topics)
    for topic in topics:
        beside.append_to_topics(rows.where(f"topic = '{topic}'"), [topic], MARKER)
    empty.append_to_topics(rows, topics, MARKER)
    for topic in topics:
        ours, theirs = (each.read(topic_table(topic)).sort("source_offset") for each in (empty, beside))
        assert_df_equality(ours, theirs)
        assert DeltaTable(empty.locate(topic_table(topic))).to_pyarrow_table().num_rows == 20


def test_no_commit_makes_the_jvm_look_for_a_package_in_all_jars(
    spark: SparkSession, empty: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(empty)
    rows, append, found = rows_of(spark, TOPICS[:1], 1), staged(empty), list[str]()
    step = _Step(rows, MARKER, append._direct.operation(MARKER))
    adds, table = append._write(rows), empty.locate(topic_table(TOPICS[0]))
    adds[0]["partitionValues"].pop("digest")
    with monkeypatch.context() as patch:
        for kind in (JVMView, JavaPackage):
            patch.setattr(kind, "__getattr__", lambda _, name: found.append(name))
        append._commit(step, TOPICS[0], table, adds)
    assert found == []
    assert empty.markers(topic_table(TOPICS[0])) == [MARKER, MARKER]


@pytest.fixture
def beside(spark: SparkSession, empty: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """To which Delta's writer appends."""
    made = Warehouse(spark, f"{empty.root}/plain")
    monkeypatch.setattr(made, "_direct", lambda: None)
    return made


def test_a_commit_says_what_a_plain_one_says(spark: SparkSession, empty: Warehouse, beside: Warehouse) -> None:
    beside.append_to_topics(rows_of(spark, ["orders"]), ["orders"], MARKER)
    fill(empty)
    assert empty.markers(topic_table("orders")) == beside.markers(topic_table("orders")) == [MARKER]
    ours, theirs = (newest_commit(each.locate(topic_table("orders"))) for each in (empty, beside))
    assert said(ours) == said(theirs)
    added, expected = ([line["add"] for line in log if "add" in line] for log in (ours, theirs))
    statistics = {tuple(json.loads(add["stats"])["minValues"]) for add in added}
    assert statistics == {tuple(json.loads(add["stats"])["minValues"]) for add in expected}
    for add in (*added, *expected):
        add.pop("tags", None)  # on Spark 4.1 none is {} here, and missing there
    assert all(add["dataChange"] and set(add) == set(expected[0]) for add in added)


def test_a_topic_whose_commit_fails_is_told_and_the_others_are_there(empty: Warehouse) -> None:
    fill(empty)
    Path(empty.locate(topic_table("t3")), "queue_id=1").rename(Path(empty.root, "away"))
    Path(empty.locate(topic_table("t3")), "queue_id=1").write_text("no directory")
    with pytest.raises(WarehouseError, match=r"the table at .*/topics/t3: .*queue_id=1"):
        fill(empty)
    assert {topic: len(empty.markers(topic_table(topic))) for topic in TOPICS} == {
        topic: 1 if topic == "t3" else 2 for topic in TOPICS
    }


def test_what_a_kill_left_is_deleted(spark: SparkSession, empty: Warehouse) -> None:
    staged(empty)._write(rows_of(spark, TOPICS))
    assert list(Path(empty.root, "_staged").rglob("*.parquet"))
    staged(Warehouse(spark, empty.root))
    assert list(Path(empty.root, "_staged").rglob("*.parquet")) == []


def test_rows_go_to_a_table_while_it_is_compacted(empty: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        fill(empty)

    def compact(table: str) -> None:
        if table.endswith("/orders"):
            empty.table(topic_table("orders")).optimize().executeCompaction()

    meanwhile(monkeypatch, compact)
    fill(empty)
    assert empty.read(topic_table("orders")).count() == 80


DEFAULT = (
    "ADD COLUMNS (more INT)",
    "SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
    "ALTER COLUMN more SET DEFAULT 7",
)
ALTERED = {
    "a default": DEFAULT,
    "a column made again under its name": (
        "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', "
        "'delta.minWriterVersion' = '5')",
        "DROP COLUMN producer_group",
        "ADD COLUMNS (producer_group STRING)",
    ),
}


@pytest.mark.parametrize("changes", ALTERED.values(), ids=ALTERED)
def test_an_altered_table_gets_the_rows_of_an_append_of_its_own(
    spark: SparkSession, empty: Warehouse, beside: Warehouse, changes: tuple[str, ...]
) -> None:
    for each in (empty, beside):
        fill(each)
        for change in changes:
            spark.sql(f"ALTER TABLE delta.`{each.locate(topic_table('orders'))}` {change}")
        fill(each)
    ours, theirs = (each.read(topic_table("orders")) for each in (empty, beside))
    order = ("source_offset", ours.columns[-1])  # the column that was added
    assert_df_equality(ours.sort(*order), theirs.sort(*order))
    assert empty.markers(topic_table("orders")) == [MARKER, MARKER]
    assert list(Path(empty.root, "_staged").rglob("*.parquet")) == []


@pytest.mark.parametrize("partitions", [[], ["source_queue"], ["queue_id", "source"]])
def test_a_table_with_other_partitions_gets_an_append_of_its_own(
    spark: SparkSession, empty: Warehouse, partitions: list[str]
) -> None:
    fill(empty)
    empty.set_property(topic_table("orders"), "delta.appendOnly", "false")
    made = DeltaTables.replace(spark).location(empty.locate(topic_table("orders"))).addColumns(TOPIC.schema)
    (made.partitionedBy(*partitions) if partitions else made).execute()
    fill(empty)
    assert empty.read(topic_table("orders")).count() == 20


def test_a_sessions_default_of_mapped_columns_is_not_that_of_the_tables(spark: SparkSession, tmp_path: Path) -> None:
    default = "spark.databricks.delta.properties.defaults.columnMapping.mode"
    spark.conf.set(default, "name")
    try:
        empty = Warehouse(spark, str(tmp_path))
        fill(empty)
    finally:
        spark.conf.unset(default)
    assert DeltaTable(empty.locate(topic_table("orders"))).to_pyarrow_table().num_rows == 20


def test_rows_of_a_table_that_is_gone_are_refused_and_the_other_topics_have_theirs(
    spark: SparkSession, empty: Warehouse
) -> None:
    fill(empty)
    shutil.rmtree(empty.locate(topic_table("orders")))
    for topics in (TOPICS, ["orders"]):
        with pytest.raises(WarehouseError, match=r"the table at .*/topics/orders: there is no table at .* any more"):
            empty.append_to_topics(rows_of(spark, topics), topics, MARKER)
    assert empty.read(topic_table("t1")).count() == 40


def test_a_row_that_breaks_a_tables_constraint_is_refused_and_the_other_topics_have_theirs(
    spark: SparkSession, empty: Warehouse
) -> None:
    empty.append_to_topics(rows_of(spark, TOPICS, 2), TOPICS, MARKER)
    orders = topic_table("orders")
    spark.sql(f"ALTER TABLE delta.`{empty.locate(orders)}` ADD CONSTRAINT early CHECK (source_offset < 20)")
    with pytest.raises(WarehouseError, match=r"topics/orders: .*CHECK constraint early"):
        fill(empty)
    assert {topic: empty.read(topic_table(topic)).count() for topic in TOPICS} == {
        topic: 2 if topic == "orders" else 22 for topic in TOPICS
    }


MARKED = {"of": 7}
RETRY = topic_table("%RETRY%g")
NAMES = [*map(TableName, TABLES), RETRY]
_EPOCH, _MICRO = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
VALUES: dict[str, list[Any]] = {
    "int": [0, 1, -1, 2**31 - 1, -(2**31)],
    "bigint": [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)],
    "string": ["", "half", "ä", "\U0001f600" * 9, "z" * 32, "z" * 33, "x" * 10_000, "a\0b", "='%/ "],
    "binary": [b"", b"\0", b"\xff" * 300, b"x" * 10_000],
    "boolean": [True, False],
    "timestamp": [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2026, 1, 1, 0, 0, 0, 1_001, tzinfo=UTC),
        datetime(2026, 1, 1, 0, 0, 0, 1_999, tzinfo=UTC),
    ],
}


@pytest.fixture(scope="module")
def ours(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return made(spark, tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """To which Delta's writer appends."""
    warehouse = made(spark, tmp_path_factory.mktemp("theirs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warehouse, "_direct", lambda: None)
        yield warehouse


@pytest.fixture
def one_table(spark: SparkSession, tmp_path: Path) -> Warehouse:
    """With one table."""
    made = Warehouse(spark, str(tmp_path))
    made.ensure_topic("%RETRY%g")
    return made


def made(spark: SparkSession, place: Path) -> Warehouse:
    warehouse = Warehouse(spark, str(place))
    warehouse.create()
    warehouse.ensure_topic("%RETRY%g")
    return warehouse


def some_rows(spark: SparkSession, layout: TableLayout, count: int, seed: int = 1) -> DataFrame:
    chosen = random.Random(seed)
    rows = [{field.name: value(field.dataType, chosen) for field in layout.schema} for _ in range(count)]
    return of_rows(spark, rows, layout.schema)


def value(kind: DataType, chosen: random.Random) -> Any:
    if chosen.random() < 0.2:
        return None
    if isinstance(kind, MapType):
        keys = chosen.sample(VALUES["string"][:5], chosen.randrange(3))
        return [(key, value(kind.valueType, chosen)) for key in keys]
    if isinstance(kind, ArrayType):
        return [value(kind.elementType, chosen) for _ in range(chosen.randrange(3))]
    if isinstance(kind, StructType):
        return {field.name: value(field.dataType, chosen) for field in kind}
    return chosen.choice(VALUES[kind.simpleString()])


def read_by_delta(warehouse: Warehouse, name: TableName) -> list[str]:
    """By the reader that has no Spark; in an order that no writer has a say in."""
    table = DeltaTable(warehouse.locate(name)).to_pyarrow_table().select(name.layout.columns)
    return sorted(map(repr, table.to_pylist()))


def adds(warehouse: Warehouse, name: str) -> list[dict[str, Any]]:
    """What the newest commit says of its files."""
    lines = newest_commit(warehouse.locate(name))
    return [{**add, "stats": json.loads(add["stats"])} for line in lines if (add := line.get("add"))]


def writers(warehouse: Warehouse, name: str) -> set[str]:
    """Which programs have written the files of the newest commit."""
    places = [Path(warehouse.locate(name), add["path"]) for add in adds(warehouse, name)]
    return {pq.read_metadata(place).created_by.partition(" ")[0] for place in places}


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_every_table_are_those_of_deltas_writer(
    spark: SparkSession, ours: Warehouse, theirs: Warehouse, name: TableName
) -> None:
    rows = some_rows(spark, name.layout, 100)
    for each in (ours, theirs):
        each.append(rows, name, MARKED, few=True)
    assert (writers(ours, name), writers(theirs, name)) == ({"parquet-cpp-arrow"}, {"parquet-mr"})
    assert ours.markers(name, 1) == theirs.markers(name, 1) == [MARKED]
    sortable = [f"to_json(struct(`{column}`)) AS `{column}`" for column in name.layout.columns]
    read = [each.read(name).selectExpr(*sortable).sort(*name.layout.columns) for each in (ours, theirs)]
    assert_df_equality(read[0], read[1])
    assert read_by_delta(ours, name) == read_by_delta(theirs, name)


@pytest.mark.parametrize("name", NAMES)
def test_files_have_the_types_that_sparks_have(
    spark: SparkSession, ours: Warehouse, theirs: Warehouse, name: TableName
) -> None:
    found = []
    for each in (ours, theirs):
        each.append(some_rows(spark, name.layout, 1), name, few=True)
        file = pq.ParquetFile(Path(each.locate(name), adds(each, name)[0]["path"]))
        columns = [file.schema.column(number) for number in range(len(file.schema))]
        types = [(it.path, it.physical_type, it.logical_type.type, it.max_definition_level) for it in columns]
        found.append((types, file.metadata.row_group(0).column(0).compression, file.schema_arrow.remove_metadata()))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", [name for name in NAMES if name.layout.stats])
def test_no_statistics_leave_a_row_out(spark: SparkSession, ours: Warehouse, name: TableName) -> None:
    rows = some_rows(spark, name.layout, 60, seed=9)
    ours.append(rows, name, few=True)
    for add in adds(ours, name):
        file = pq.read_table(Path(ours.locate(name), add["path"]), partitioning=None)
        assert add["stats"]["numRecords"] == file.num_rows
        assert add["stats"]["nullCount"] == {column: file[column].null_count for column in name.layout.stats}
    table, read = DeltaTable(ours.locate(name)), ours.read(name)
    for column in name.layout.stats:
        is_time = dict(rows.dtypes)[column] == "timestamp"
        number = F.unix_micros(column) if is_time else F.col(column)
        for wanted, count in read.groupBy(number.alias("value")).count().where("value IS NOT NULL").collect():
            literal = F.timestamp_micros(F.lit(wanted)) if is_time else F.lit(wanted)
            assert read.where(F.col(column) == literal).count() == count, (column, wanted)
            value = _EPOCH + wanted * _MICRO if is_time else wanted
            assert table.to_pyarrow_table(filters=[(column, "=", value)]).num_rows == count, (column, wanted)


def test_statistics_are_those_of_delta(spark: SparkSession, ours: Warehouse, theirs: Warehouse) -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {"queue_id": 3, "source": "half", "source_offset": n - 1, "stored_at": first + timedelta(milliseconds=n)}
        for n in range(9)
    ]
    for each in (ours, theirs):
        each.append(of_rows(spark, rows, RETRY.layout.schema).coalesce(1), RETRY, few=True)
    (own,), (other,) = adds(ours, RETRY), adds(theirs, RETRY)
    assert own["stats"] == other["stats"]
    assert (own["partitionValues"], set(own)) == (other["partitionValues"], set(other) - {"tags"})
    assert own["path"].partition("/")[0] == other["path"].partition("/")[0] == "queue_id=3"


def test_of_long_strings_the_first_characters_are_there() -> None:
    def ends(*values: str) -> list[Any]:
        found = small_files.statistics(pa.table({"text": [*values]}), ["text"])
        return [found["minValues"]["text"], found["maxValues"]["text"]]

    assert ends("a" * 40, "b" * 32) == ["a" * 32, "b" * 32]
    assert ends("b" * 33) == ["b" * 32, "b" * 32 + "\U0010ffff"]
    assert ends("\U0010ffff" * 33) == ["\U0010ffff" * 32, "\U0010ffff" * 33]


def test_times_are_rounded_away_from_the_rows() -> None:
    at = [datetime(1969, 12, 31, 23, 59, 59, 998_500, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]
    found = small_files.statistics(pa.table({"at": pa.array(at, pa.timestamp("us", "UTC"))}), ["at"])
    assert found["minValues"] == {"at": "1969-12-31T23:59:59.998Z"}
    assert found["maxValues"] == {"at": "2026-01-01T00:00:00.001Z"}


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "lz4_raw", "uncompressed", "none"])
def test_files_are_compressed_as_sparks_are(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    rows, found = some_rows(spark, TABLES["batches"], 5), list[bytes]()
    rows.write.option("compression", codec).parquet(str(tmp_path / "theirs"))
    small_files.written(rows.toArrow(), TABLES["batches"], codec, lambda _, content: found.append(content))
    files = pa.BufferReader(found[0]), next((tmp_path / "theirs").glob("*.parquet"))
    ours, theirs = (pq.read_metadata(file).row_group(0).column(0).compression for file in files)
    assert ours == theirs


def altered(*changes: str) -> Callable[[Warehouse, str], None]:
    def change(warehouse: Warehouse, name: str) -> None:
        for each in changes:
            warehouse.spark.sql(f"ALTER TABLE delta.`{warehouse.locate(name)}` {each}")

    return change


def _set(*properties: str) -> Callable[[Warehouse, str], None]:
    return altered(*(f"SET TBLPROPERTIES ({each})" for each in properties))


OWNED = {
    "a constraint": altered("ADD CONSTRAINT early CHECK (source_offset < 9 OR true)"),
    "a default": altered(*DEFAULT),
    "mapped columns": _set("'delta.columnMapping.mode' = 'name'"),
    "deletion vectors": _set("'delta.enableDeletionVectors' = 'true'"),
    "a change feed": _set("'delta.enableChangeDataFeed' = 'true'"),
    "row tracking": _set("'delta.enableRowTracking' = 'true'"),
    "compaction after commits": _set("'delta.autoOptimize.autoCompact' = 'true'"),
    "wider files": _set("'delta.autoOptimize.optimizeWrite' = 'true'"),
    "other statistics": _set("'delta.dataSkippingStatsColumns' = 'source_offset,transaction_id'"),
}


@pytest.mark.parametrize("change", OWNED.values(), ids=OWNED)
def test_a_table_that_its_owner_has_changed_gets_files_of_deltas_writer(
    spark: SparkSession, one_table: Warehouse, change: Callable[[Warehouse, str], None]
) -> None:
    rows = some_rows(spark, RETRY.layout, 20)
    change(one_table, RETRY)
    one_table.append(rows, RETRY, MARKED, few=True)
    assert (writers(one_table, RETRY), one_table.markers(RETRY)) == ({"parquet-mr"}, [MARKED])
    assert one_table.read(RETRY).count() == 20


KEPT = {
    "how long its log is kept": _set("'delta.logRetentionDuration' = 'interval 9 days'"),
    "what only its owner reads": _set("'team' = 'shop'", "'commitlake.epoch' = '3'"),
    "how often there is a checkpoint": _set("'delta.checkpointInterval' = '7'"),
}


@pytest.mark.parametrize("change", KEPT.values(), ids=KEPT)
def test_a_property_that_no_file_depends_on_changes_nothing(
    spark: SparkSession, one_table: Warehouse, change: Callable[[Warehouse, str], None]
) -> None:
    change(one_table, RETRY)
    one_table.append(some_rows(spark, RETRY.layout, 20), RETRY, few=True)
    assert writers(one_table, RETRY) == {"parquet-cpp-arrow"}


def test_an_observation_of_the_rows_is_there(spark: SparkSession, one_table: Warehouse) -> None:
    seen = Observation()
    rows = some_rows(spark, RETRY.layout, 9).withColumn("size", F.lit(3))
    one_table.append(rows.observe(seen, F.sum("size").alias("bytes")), RETRY, few=True)
    assert (seen.get, writers(one_table, RETRY)) == ({"bytes": 27}, {"parquet-cpp-arrow"})


def test_a_kill_between_a_file_and_its_commit_shows_nothing(
    spark: SparkSession, one_table: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it leaves is a file that no log names: VACUUM's."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(DirectAppend, "commit", killed)
        one_table.append(some_rows(spark, RETRY.layout, 5), RETRY, few=True)
    assert list(Path(one_table.locate(RETRY)).rglob("*.parquet"))
    one_table.append(some_rows(spark, RETRY.layout, 3), RETRY, few=True)
    assert one_table.read(RETRY).count() == DeltaTable(one_table.locate(RETRY)).count() == 3


def test_rows_of_several_topics_go_each_to_its_table_in_one_commit(spark: SparkSession, one_table: Warehouse) -> None:
    topics = [f"t{number}" for number in range(6)]
    rows = some_rows(spark, RETRY.layout, 60)
    rows = rows.withColumn("topic", F.expr("concat('t', pmod(xxhash64(message_id, body), 6))"))
    expected = {row["topic"]: row["count"] for row in rows.groupBy("topic").count().collect()}
    one_table.append_to_topics(rows, topics, MARKED, few=True)
    found = {topic: one_table.read(topic_table(topic)).count() for topic in expected}
    assert (found, sum(found.values())) == (expected, 60)
    assert all(one_table.markers(topic_table(topic)) == [MARKED] for topic in expected)


def test_what_fails_names_the_table(spark: SparkSession, one_table: Warehouse) -> None:
    broken = some_rows(spark, RETRY.layout, 5).withColumn("batch_id", F.raise_error(F.lit("broken")).cast("bigint"))
    with pytest.raises(WarehouseError, match=r"the table at .*/topics/.*RETRY.*: .*broken"):
        one_table.append(broken, RETRY, few=True)


def test_what_is_not_few_is_sparks(spark: SparkSession, one_table: Warehouse) -> None:
    assert small_files.are_few(small_files.MOST_ROWS, small_files.MOST_BYTES)
    assert not small_files.are_few(small_files.MOST_ROWS + 1)
    assert not small_files.are_few(1, small_files.MOST_BYTES + 1)
    one_table.append(some_rows(spark, RETRY.layout, 20), RETRY)
    assert writers(one_table, RETRY) == {"parquet-mr"}


def test_off_local_disks_files_go_through_hadoop(
    spark: SparkSession, one_table: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_append, "is_local", lambda _: False)
    rows = some_rows(spark, RETRY.layout, 30)
    for _ in range(2):
        one_table.append(rows, RETRY, MARKED, few=True)
    assert (writers(one_table, RETRY), one_table.markers(RETRY)) == ({"parquet-cpp-arrow"}, [MARKED, MARKED])
    assert one_table.read(RETRY).count() == DeltaTable(one_table.locate(RETRY)).count() == 60


def test_where_others_may_append_epochs_are_looked_at_between_the_begin_and_the_commit(
    spark: SparkSession, one_table: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    class Guard(AppendGuard):
        fences = True

        def check(self) -> None:
            steps.append("check")
            if len(steps) > 3:
                raise FencedError("another coordinator has taken over")

    def noting(name: str) -> Callable[..., Any]:
        step = getattr(DirectAppend, name)

        def noted(*given: Any) -> Any:
            steps.append(name)
            return step(*given)

        return noted

    for name in ("begin", "commit"):
        monkeypatch.setattr(DirectAppend, name, noting(name))
    one_table.guard = Guard()
    one_table.append(some_rows(spark, RETRY.layout, 5), RETRY, few=True)
    assert steps == ["begin", "check", "commit"]
    with pytest.raises(FencedError, match="another coordinator has taken over"):
        one_table.append(some_rows(spark, RETRY.layout, 5), RETRY, few=True)
    assert one_table.read(RETRY).count() == 5
