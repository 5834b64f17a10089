"""Few rows, whose files the driver writes: what Delta's writer would have written, in every table, for every reader."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from commitlake.errors import FencedError, WarehouseError
from commitlake.spark.frames import of_rows
from commitlake.tables import TableName, Warehouse, direct_append, small_files, topic_table
from commitlake.tables.append_guard import AppendGuard
from commitlake.tables.direct_append import DirectAppend
from commitlake.tables.schemas import TABLES, TableLayout

MARKER = {"of": 7}
TOPIC = topic_table("%RETRY%g")
NAMES = [*map(TableName, TABLES), TOPIC]
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
def warehouse(spark: SparkSession, tmp_path: Path) -> Warehouse:
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
    newest = sorted(Path(warehouse.locate(name), "_delta_log").glob("*.json"))[-1]
    lines = map(json.loads, newest.read_text().splitlines())
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
        each.append(rows, name, MARKER, few=True)
    assert (writers(ours, name), writers(theirs, name)) == ({"parquet-cpp-arrow"}, {"parquet-mr"})
    assert ours.markers(name, 1) == theirs.markers(name, 1) == [MARKER]
    read = [each.read(name).selectExpr(*readable(name)).sort(*name.layout.columns) for each in (ours, theirs)]
    assert_df_equality(read[0], read[1])
    assert read_by_delta(ours, name) == read_by_delta(theirs, name)


def readable(name: TableName) -> list[str]:
    """Columns as SQL that can be sorted."""
    return [f"to_json(struct(`{column}`)) AS `{column}`" for column in name.layout.columns]


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
        each.append(of_rows(spark, rows, TOPIC.layout.schema).coalesce(1), TOPIC, few=True)
    (own,), (other,) = adds(ours, TOPIC), adds(theirs, TOPIC)
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
    "a default": altered(
        "ADD COLUMNS (more INT)",
        "SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
        "ALTER COLUMN more SET DEFAULT 7",
    ),
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
    spark: SparkSession, warehouse: Warehouse, change: Callable[[Warehouse, str], None]
) -> None:
    rows = some_rows(spark, TOPIC.layout, 20)
    change(warehouse, TOPIC)
    warehouse.append(rows, TOPIC, MARKER, few=True)
    assert (writers(warehouse, TOPIC), warehouse.markers(TOPIC)) == ({"parquet-mr"}, [MARKER])
    assert warehouse.read(TOPIC).count() == 20


KEPT = {
    "how long its log is kept": _set("'delta.logRetentionDuration' = 'interval 9 days'"),
    "what only its owner reads": _set("'team' = 'shop'", "'commitlake.epoch' = '3'"),
    "how often there is a checkpoint": _set("'delta.checkpointInterval' = '7'"),
}


@pytest.mark.parametrize("change", KEPT.values(), ids=KEPT)
def test_a_property_that_no_file_depends_on_changes_nothing(
    spark: SparkSession, warehouse: Warehouse, change: Callable[[Warehouse, str], None]
) -> None:
    change(warehouse, TOPIC)
    warehouse.append(some_rows(spark, TOPIC.layout, 20), TOPIC, few=True)
    assert writers(warehouse, TOPIC) == {"parquet-cpp-arrow"}


def test_an_observation_of_the_rows_is_there(spark: SparkSession, warehouse: Warehouse) -> None:
    seen = Observation()
    rows = some_rows(spark, TOPIC.layout, 9).withColumn("size", F.lit(3))
    warehouse.append(rows.observe(seen, F.sum("size").alias("bytes")), TOPIC, few=True)
    assert (seen.get, writers(warehouse, TOPIC)) == ({"bytes": 27}, {"parquet-cpp-arrow"})


def test_no_rows_commit_nothing(spark: SparkSession, warehouse: Warehouse) -> None:
    warehouse.append(some_rows(spark, TOPIC.layout, 0), TOPIC, MARKER, few=True)
    assert warehouse.version(TOPIC) == 0


def test_a_kill_between_a_file_and_its_commit_shows_nothing(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it leaves is a file that no log names: VACUUM's."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(DirectAppend, "commit", killed)
        warehouse.append(some_rows(spark, TOPIC.layout, 5), TOPIC, few=True)
    assert list(Path(warehouse.locate(TOPIC)).rglob("*.parquet"))
    warehouse.append(some_rows(spark, TOPIC.layout, 3), TOPIC, few=True)
    assert warehouse.read(TOPIC).count() == DeltaTable(warehouse.locate(TOPIC)).count() == 3


def test_rows_of_several_topics_go_each_to_its_table_in_one_commit(spark: SparkSession, warehouse: Warehouse) -> None:
    topics = [f"t{number}" for number in range(6)]
    rows = some_rows(spark, TOPIC.layout, 60)
    rows = rows.withColumn("topic", F.expr("concat('t', pmod(xxhash64(message_id, body), 6))"))
    expected = {row["topic"]: row["count"] for row in rows.groupBy("topic").count().collect()}
    warehouse.append_to_topics(rows, topics, MARKER, few=True)
    found = {topic: warehouse.read(topic_table(topic)).count() for topic in expected}
    assert (found, sum(found.values())) == (expected, 60)
    assert all(warehouse.markers(topic_table(topic)) == [MARKER] for topic in expected)


def test_what_fails_names_the_table(spark: SparkSession, warehouse: Warehouse) -> None:
    broken = some_rows(spark, TOPIC.layout, 5).withColumn("batch_id", F.raise_error(F.lit("broken")).cast("bigint"))
    with pytest.raises(WarehouseError, match=r"the table at .*/topics/.*RETRY.*: .*broken"):
        warehouse.append(broken, TOPIC, few=True)


def test_what_is_not_few_is_sparks(spark: SparkSession, warehouse: Warehouse) -> None:
    assert small_files.are_few(small_files.MOST_ROWS, small_files.MOST_BYTES)
    assert not small_files.are_few(small_files.MOST_ROWS + 1)
    assert not small_files.are_few(1, small_files.MOST_BYTES + 1)
    warehouse.append(some_rows(spark, TOPIC.layout, 20), TOPIC)
    assert writers(warehouse, TOPIC) == {"parquet-mr"}


def test_off_local_disks_files_go_through_hadoop(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_append, "is_local", lambda _: False)
    rows = some_rows(spark, TOPIC.layout, 30)
    for _ in range(2):
        warehouse.append(rows, TOPIC, MARKER, few=True)
    assert (writers(warehouse, TOPIC), warehouse.markers(TOPIC)) == ({"parquet-cpp-arrow"}, [MARKER, MARKER])
    assert warehouse.read(TOPIC).count() == DeltaTable(warehouse.locate(TOPIC)).count() == 60


def test_where_others_may_append_epochs_are_looked_at_between_the_begin_and_the_commit(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
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
    warehouse.guard = Guard()
    warehouse.append(some_rows(spark, TOPIC.layout, 5), TOPIC, few=True)
    assert steps == ["begin", "check", "commit"]
    with pytest.raises(FencedError, match="another coordinator has taken over"):
        warehouse.append(some_rows(spark, TOPIC.layout, 5), TOPIC, few=True)
    assert warehouse.read(TOPIC).count() == 5
