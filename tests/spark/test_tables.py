"""The Delta tables: what other readers rely on, and how CommitLake creates, appends to and reads them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import deltalake
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from commitlake import config
from commitlake.coordinator.landing.topic_admission import Topics
from commitlake.coordinator.recovery import fencing
from commitlake.errors import ConfigError, SetupError, WarehouseError
from commitlake.protocol.version import CONTRACT, __version__
from commitlake.reading.catalog import location
from commitlake.spark import cluster, session
from commitlake.tables import TABLES, TOPIC, Warehouse, topic_table
from commitlake.tables.creation import create_at_path, is_as_made
from commitlake.tables.schemas import TableLayout


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    created = Warehouse(spark, str(tmp_path_factory.mktemp("tables")))
    created.create()
    created.ensure_topic("%RETRY%g")
    return created


@pytest.fixture
def of_catalog(spark: SparkSession, tmp_path: Path) -> Iterator[Warehouse]:
    """In a schema of the session's catalog, at `a place`."""
    spark.sql(f"CREATE DATABASE tables_of_a_test LOCATION '{tmp_path}/a place'")
    yield Warehouse(spark, "schema:spark_catalog.tables_of_a_test")
    spark.sql("DROP DATABASE tables_of_a_test CASCADE")


def batch(spark: SparkSession, number: int = 7) -> DataFrame:
    return spark.sql(f"select {number} as batch_id, current_timestamp() as completed_at, 1 as landing_id")


@pytest.mark.short
def test_tables_have_the_schema_of_the_contract_and_plain_delta_features(
    warehouse: Warehouse,
) -> None:
    places = {name: (warehouse.locate(name), table) for name, table in TABLES.items()}
    places["topic"] = (warehouse.locate(topic_table("%RETRY%g")), TOPIC)
    for name, (place, table) in places.items():
        found = deltalake.DeltaTable(place)
        assert [field.name for field in found.schema().fields] == table.columns, name
        assert tuple(found.metadata().partition_columns) == table.partition_by, name
        assert found.protocol().min_reader_version == 1, name


def test_a_topic_with_a_percent_sign_has_a_path_that_any_reader_can_open(warehouse: Warehouse) -> None:
    assert (Path(warehouse.root) / "topics" / "~RETRY~g" / "_delta_log").is_dir()
    assert warehouse.topics() == {"%RETRY%g"}


@pytest.mark.short
def test_an_append_puts_columns_in_order_and_remembers_its_marker(spark: SparkSession, warehouse: Warehouse) -> None:
    rows = spark.sql("select 5L as landing_id, timestamp'2026-01-01' as completed_at, 7 as batch_id, 'more' as other")
    before = warehouse.version("batches")
    warehouse.append(rows, "batches", {"batch_id": 7})
    warehouse.append(rows, "batches")
    assert_df_equality(
        warehouse.read("batches", before + 1),
        spark.sql("select 7L as batch_id, timestamp'2026-01-01' as completed_at, 5L as landing_id"),
        ignore_nullable=True,
    )
    assert warehouse.markers("batches") == [{"batch_id": 7}]
    assert warehouse.version("batches") == before + 2


def test_topic_tables_refuse_to_delete(spark: SparkSession, warehouse: Warehouse) -> None:
    with pytest.raises(PySparkException, match="append"):
        spark.sql(f"delete from delta.`{warehouse.locate(topic_table('%RETRY%g'))}` where true")


def test_a_foreign_table_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1).write.format("delta").save(str(tmp_path / "half"))
    with pytest.raises(WarehouseError, match="half"):
        Warehouse(spark, str(tmp_path)).create()


def test_a_table_that_is_gone_is_made_anew_only_where_an_older_version_lacked_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A start made `half` anew in silence: "0 of 0 rows"."""
    warehouse = Warehouse(spark, str(tmp_path))
    warehouse.create()
    fencing.begin_epoch(warehouse, "0.0.1")
    shutil.rmtree(tmp_path / "half")
    warehouse.create()
    fencing.begin_epoch(warehouse, __version__)
    shutil.rmtree(tmp_path / "half")
    with pytest.raises(WarehouseError, match=f"no table at {tmp_path}/half any more.*bring it back from a copy"):
        warehouse.create()
    assert not (tmp_path / "half").exists()


def test_a_table_whose_log_lacks_a_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Delta says `DELTA_VERSIONS_NOT_CONTIGUOUS`, and not of which table."""
    Warehouse(spark, str(tmp_path)).create()
    for _ in range(3):
        Warehouse(spark, str(tmp_path)).append(batch(spark), "batches")
    gone = tmp_path / "batches" / "_delta_log" / f"{2:020}.json"
    gone.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    for use in (Warehouse.create, Warehouse.must_exist, lambda warehouse: warehouse.read("batches").count()):
        with pytest.raises(WarehouseError, match=f"{tmp_path}/batches is damaged: {gone} is missing"):
            use(Warehouse(spark, str(tmp_path)))


@pytest.mark.short
def test_tables_of_an_older_version_get_new_columns_and_keep_rows(spark: SparkSession, tmp_path: Path) -> None:
    older = TableLayout(
        StructType([field for field in TABLES["delayed"].schema if field.name != "delay_ms"]), ("queue",)
    )
    warehouse = Warehouse(spark, str(tmp_path))
    create_at_path(spark, warehouse.locate("delayed"), older)
    spark.sql(f"insert into delta.`{tmp_path}/delayed` (queue, queue_offset, message_id) values (0, 7, 'before')")
    with pytest.raises(WarehouseError, match="start the coordinator of this version there once"):
        warehouse.must_exist()
    warehouse.create()
    warehouse.must_exist()
    kept = warehouse.read("delayed").select("queue_offset", "message_id", "delay_ms")
    assert [tuple(row) for row in kept.collect()] == [(7, "before", None)]
    assert warehouse.read("delayed").columns == TABLES["delayed"].columns


def test_a_warehouse_of_a_newer_contract_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    warehouse = Warehouse(spark, str(tmp_path))
    fencing.own(warehouse, None)
    fencing.own(warehouse, None)
    newer = (
        warehouse.read("epochs")
        .where("epoch = 2")
        .selectExpr("3L AS epoch", "'9.0' AS version", "contract + 1 AS contract")
    )
    newer.write.format("delta").mode("append").save(warehouse.locate("epochs"))
    before = warehouse.version("epochs"), warehouse.version("half")
    told = rf"CommitLake 9\.0 has run on {tmp_path}, by version {CONTRACT + 1} of the contract; this one"
    with pytest.raises(WarehouseError, match=told):
        fencing.own(warehouse, None)
    spark.sql(f"ALTER TABLE delta.`{warehouse.locate('epochs')}` ADD COLUMNS (later int)")
    with pytest.raises(WarehouseError, match="start the newer version"):
        fencing.own(warehouse, None)
    assert (warehouse.version("epochs"), warehouse.version("half")) == (before[0] + 1, before[1])


def test_tables_may_be_in_a_catalog(spark: SparkSession, of_catalog: Warehouse) -> None:
    warehouse = of_catalog
    warehouse.create()
    warehouse.ensure_topic("orders")
    warehouse.ensure_topic("TopicTest")
    assert [name for name in ("orders", "TopicTest", "my-topic", "%RETRY%g") if warehouse.may_hold(name)] == [
        "orders",
        "TopicTest",
    ]
    topics = Topics(warehouse, 10, lambda _: None)
    sent = "select 'half' as target, topic, timestamp_millis(at) as stored_at from values {} as (topic, at)"
    topics.admit(spark.sql(sent.format("('ORDERS', 1), ('New', 3), ('new', 2), ('other', 4)")))
    assert topics.names == {"orders", "TopicTest", "new", "other"}, "case does not count there"
    assert Warehouse(spark, warehouse.root).topics() == topics.names
    warehouse.append(batch(spark), "batches", {"n": 1})
    assert (warehouse.read("batches").count(), warehouse.markers("batches")) == (1, [{"n": 1}])
    assert warehouse.read(topic_table("orders")).columns == TOPIC.columns


def test_a_table_stays_where_an_older_version_has_put_it(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark, str(tmp_path))
    warehouse.create()
    warehouse.ensure_topic("_events")
    (tmp_path / "topics" / "topic._events").rename(older := tmp_path / "topics" / "_events")
    upgraded = Warehouse(spark, str(tmp_path))
    assert upgraded.found_topics() == {"_events"}
    upgraded.add_topics(["_events", "_new"])
    assert upgraded.locate("topics/_events") == location(str(tmp_path), "topics/_events").uri == str(older)
    assert {path.name for path in (tmp_path / "topics").iterdir()} == {"_events", "topic._new"}
    assert {row["table"] for row in upgraded.read("destinations").collect()} == {"topics/_events", "topics/topic._new"}
    assert upgraded.read("topics/_new").count() == upgraded.read("topics/_events").count() == 0


@pytest.mark.parametrize(
    "left",
    ["", ".0.json.tmp", ".0.json.crc", "00000000000000000000.crc", "_commits/", "_staged_commits/", "_sidecars/"],
)
def test_a_table_whose_creation_was_cut_short_is_created(spark: SparkSession, tmp_path: Path, left: str) -> None:
    """A full disk and a kill leave a log without a commit, which Delta itself takes neither as a table nor as none."""
    warehouse = Warehouse(spark, str(tmp_path / "warehouse"))
    for name in ("half", "topics/orders"):
        log = tmp_path / "warehouse" / name / "_delta_log"
        (log / left if left.endswith("/") else log).mkdir(parents=True)
        (log / left).touch()
    assert warehouse.found_topics() == set()
    warehouse.create()
    warehouse.add_topics(["orders"])
    assert warehouse.read("half").count() == warehouse.read("topics/orders").count() == 0
    assert warehouse.found_topics() == {"orders"}


def test_a_table_whose_creation_in_a_catalog_was_cut_short_is_created(
    spark: SparkSession, of_catalog: Warehouse, tmp_path: Path
) -> None:
    place, warehouse = tmp_path / "a place", of_catalog
    (place / "half/_delta_log/_staged_commits").mkdir(parents=True)
    warehouse.create()
    (place / "topic_topictest/_delta_log/_staged_commits").mkdir(parents=True)  # as Spark writes `TopicTest`
    warehouse.ensure_topic("TopicTest")
    assert warehouse.topics() == {"TopicTest"}
    assert warehouse.read("half").count() == warehouse.read(topic_table("TopicTest")).count() == 0
    create_at_path(spark, f"{place}/topic_others", TOPIC)
    before = sorted(path.name for path in (place / "topic_others/_delta_log").iterdir())
    with pytest.raises(WarehouseError, match=r"topic_others.*fix the cause"):
        warehouse.ensure_topic("others")
    assert sorted(path.name for path in (place / "topic_others/_delta_log").iterdir()) == before


def test_a_log_that_is_not_a_tables_is_left_alone_and_named(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark, str(tmp_path / "warehouse"))
    foreign = tmp_path / "warehouse/half/_delta_log/notes.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    with pytest.raises(WarehouseError, match=r"warehouse/half: .*fix the cause"):
        warehouse.create()
    assert foreign.read_text() == "mine"


def test_rows_of_a_table_that_never_got_any_need_no_scan(spark: SparkSession, tmp_path: Path) -> None:
    tables = Warehouse(spark, str(tmp_path))
    tables.create()
    plan = tables.rows("batches")._jdf.queryExecution().optimizedPlan().toString()
    assert plan.startswith("LocalRelation <empty>")
    for number in range(3):
        tables.append(batch(spark, number), "batches")
    assert tables.rows("batches").count() == 3
    deltalake.DeltaTable(tables.locate("batches")).create_checkpoint()
    (tmp_path / "batches" / "_delta_log" / "00000000000000000000.json").unlink()
    (tmp_path / "batches" / "_delta_log" / "00000000000000000001.json").unlink()
    assert Warehouse(spark, str(tmp_path)).rows("batches").count() == 3


def test_a_copy_with_all_rows_in_its_first_commit_is_read(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.format("delta").save(str(tmp_path / "batches"))
    assert Warehouse(spark, str(tmp_path)).rows("batches").count() == 3


def test_an_append_outside_utc_rebuilds_no_state_of_its_table(spark: SparkSession, tmp_path: Path) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    zones = jvm.java.util.TimeZone
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone("Europe/Berlin"))
    try:
        tables = Warehouse(spark, str(tmp_path))
        tables.create()
        for number in range(3):
            tables.append(batch(spark, number), "batches")
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, tables.locate("batches"))
        assert log.unsafeVolatileSnapshot().version() == 3
        assert not log.unsafeVolatileSnapshot().stateReconstructionTriggered()
    finally:
        zones.setDefault(before)


@pytest.mark.parametrize("text", ["hourly", "token", "the secret"])
def test_a_property_is_read_as_it_was_set_whatever_it_says(warehouse: Warehouse, text: str) -> None:
    """Spark hides values that look like a secret or a URL, and a random id of Kafka's may."""
    warehouse.set_property("half", "commitlake.test", text)
    assert warehouse.property("half", "commitlake.test") == text


def test_a_topic_of_a_catalog_has_its_name_whatever_it_says(of_catalog: Warehouse) -> None:
    of_catalog.ensure_topic("HourlyOrders")
    assert list(of_catalog._catalog_topics()) == ["HourlyOrders"]


KEY = "spark.delta.logStore.s3a.impl"


@pytest.fixture
def own(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark.newSession()


@pytest.mark.parametrize("store", [None, "io.delta.storage.S3SingleDriverLogStore"])
def test_a_log_store_without_an_atomic_put_is_refused(own: SparkSession, store: str | None) -> None:
    if store:
        own.conf.set(KEY, store)
    with pytest.raises(
        ConfigError, match=r"s3a.impl: io.delta.storage.S3SingleDriverLogStore is not allowed.*rows are"
    ):
        cluster._check_log_store(own, "s3a://bucket/lake")


def test_a_log_store_whose_jars_are_missing_is_refused_with_their_names(own: SparkSession) -> None:
    own.conf.set(KEY, "io.delta.storage.S3DynamoDBLogStore")
    with pytest.raises(SetupError, match=r"can't be loaded .*delta-storage-s3-dynamodb.*aws-java-sdk-dynamodb:1\.12"):
        cluster._check_log_store(own, "s3a://bucket/lake")


def test_another_log_store_is_taken(own: SparkSession) -> None:
    own.conf.set(KEY, "io.delta.storage.HDFSLogStore")
    cluster._check_log_store(own, "s3a://bucket/lake")


def test_elsewhere_delta_knows_what_to_use(own: SparkSession) -> None:
    cluster._check_log_store(own, "hdfs://name/lake")


@pytest.mark.parametrize(
    ("checkpoints", "looks_every"),
    [("/lake/checkpoints", "80ms"), ("hdfs://name/lake", "80ms"), ("s3a://bucket/lake", "500ms")],
)
def test_an_idle_coordinator_asks_an_object_store_for_rows_twice_a_second(
    own: SparkSession, monkeypatch: pytest.MonkeyPatch, checkpoints: str, looks_every: str
) -> None:
    settings = config.from_mapping({"warehouse": "/lake/warehouse", "checkpoints": checkpoints})
    session.apply_settings(own, settings)
    assert own.conf.get("spark.sql.streaming.pollingDelay") == looks_every
    monkeypatch.setenv("COMMITLAKE_SPARK_ARGS", "--conf spark.sql.streaming.pollingDelay=2s")
    session.apply_settings(own, settings)
    assert own.conf.get("spark.sql.streaming.pollingDelay") == "2s", "the operator's value wins"


def test_a_table_says_what_it_is_and_a_table_without_comments_is_as_made_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = Warehouse(spark, str(tmp_path))
    tables.create()
    tables.ensure_topic("orders")
    columns = spark.sql(f"DESCRIBE delta.`{tmp_path}/topics/orders`").collect()
    described = {row["col_name"]: row["comment"] for row in columns}
    assert described["stored_at"] == "when Kafka appended it; the message may be shown long after"
    assert tables.table("half").detail().collect()[0]["description"] == "half messages, as they landed"
    commented = TOPIC.schema.json()
    assert is_as_made(_metadata(re.sub('"comment":"[^"]*"', "", commented)), TOPIC)
    assert not is_as_made(_metadata(commented.replace('"comment"', '"note"')), TOPIC)


def _metadata(schema: str) -> SimpleNamespace:
    found = {"configuration": TOPIC.properties(), "partitionColumns": ["queue_id"], "schemaString": schema}
    return SimpleNamespace(json=lambda: json.dumps({"metaData": found}))


def test_views_and_tables_of_other_formats_in_a_catalog_are_no_topics(
    spark: SparkSession, of_catalog: Warehouse
) -> None:
    of_catalog.ensure_topic("orders")
    spark.sql("CREATE VIEW spark_catalog.tables_of_a_test.topic_view AS SELECT 1 AS one")
    spark.sql("CREATE TABLE spark_catalog.tables_of_a_test.topic_parquet (one int) USING parquet")
    assert of_catalog.found_topics() == {"orders"}


def test_tables_are_made_at_a_uri_of_this_machine(spark: SparkSession, tmp_path: Path) -> None:
    """Delta takes no location that it writes in another way, and it writes `file:/lake`."""
    given = config.from_mapping({"warehouse": f"file://{tmp_path}/lake"})
    Warehouse(spark, cluster.resolved(spark, given).warehouse).create()
    assert deltalake.DeltaTable(f"{tmp_path}/lake/half").version() == 0


@pytest.mark.parametrize(
    ("warehouse", "expected"),
    [("/lake/warehouse", None), ("hdfs://name/lake", None), ("schema:main.lake", None), ("s3a://bucket/lake", "false")],
)
def test_on_an_object_store_no_commit_pays_for_a_checksum_file(
    own: SparkSession, warehouse: str, expected: str | None
) -> None:
    session.apply_settings(own, config.from_mapping({"warehouse": warehouse, "checkpoints": "hdfs://name/checkpoints"}))
    assert own.conf.get("spark.databricks.delta.writeChecksumFile.enabled", None) == expected
