"""Committed messages, read by `consume`, by `read_topic` with Spark, and by snippets of how-to/read-topics.md."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.support.killing import ROOT
from tests.support.lake import Lake
from tests.support.polling import wait_for
from tests.support.topic_table import message, write

import commitlake
from commitlake import config
from commitlake.clients.consumer import unfinished
from commitlake.clients.consumer.spark import LAST_COMPLETE
from commitlake.coordinator.coordinator import Coordinator
from commitlake.errors import ConsumerError, NoTableError, WarehouseError
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.reading.questions.tables import opened
from commitlake.tables import Warehouse


@pytest.fixture(scope="module")
def conf(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, object]]:
    """Two committed transactions in a batch each, one rolled back, one open, and three normal messages.

    In a directory with a comma, which separates paths to Hadoop.
    """
    with Lake(broker.bootstrap_servers, "read-topic.", tmp_path_factory.mktemp("read,topic")) as lake:
        lake.op("COMMIT", "t0", lake.half("t0", tags="tag0", msg_id="t0"))
        lake.run(spark)
        lake.op("COMMIT", "t1", lake.half("t1", tags="tag1", msg_id="t1"))
        lake.op("ROLLBACK", "no", lake.half("no"))
        lake.half("open")
        for number in (1, 2):
            lake.message(f"b{number}", topic="orders")
        lake.message("normal", topic="orders", tags="tag1")
        lake.run(spark)
        yield {"warehouse": str(lake.warehouse)}


def ids(rows: DataFrame) -> list[str]:
    return sorted(row["message_id"] for row in rows.select("message_id").collect())


NOW = ".trigger(availableNow=True).start()"
ALL = ["b1", "b2", "normal", "t0", "t1"]


def test_a_consumer_gets_what_is_committed_and_nothing_else(conf: dict[str, object]) -> None:
    with commitlake.consume(conf, "orders", group="points", follow=False) as messages:
        found = []
        for message in messages:
            found.append(message.message_id)
            message.done()
    assert sorted(found) == ALL
    assert found.index("t0") < found.index("t1")
    assert found.index("b1") + 1 == found.index("b2")


def test_a_topic_is_read_as_a_batch_up_to_a_point_by_tags_and_from_a_time(
    spark: SparkSession, conf: dict[str, object]
) -> None:
    plain = spark.read.format("delta").load(f"{conf['warehouse']}/topics/orders")
    whole = commitlake.read_topic(spark, conf, "orders")
    # Spark sorts by no map, and chispa sorts by all columns.
    assert_df_equality(whole.drop("properties"), plain.drop("properties"), ignore_row_order=True)
    first = plain.where("message_id = 't0'").first()
    assert first is not None
    last = Warehouse(spark, str(conf["warehouse"])).newest_batch()
    assert ids(commitlake.read_topic(spark, conf, "orders", up_to=first["batch_id"])) == ["t0"]
    assert ids(commitlake.read_topic(spark, conf, "orders", up_to=str(last))) == ALL
    assert ids(commitlake.read_topic(spark, conf, "orders", up_to=LAST_COMPLETE)) == ALL
    assert ids(commitlake.read_topic(spark, conf, "orders", tags="tag1 || other")) == ["normal", "t1"]
    assert ids(commitlake.read_topic(spark, conf, "orders", from_time=datetime(2100, 1, 1, tzinfo=UTC))) == []
    with pytest.raises(ConsumerError, match="is not allowed with stream=True"):
        commitlake.read_topic(spark, conf, "orders", up_to=LAST_COMPLETE, stream=True)
    with pytest.raises(ConsumerError, match="'last' is not allowed; give a batch_id, or 'last complete batch'"):
        commitlake.read_topic(spark, conf, "orders", up_to="last")


def at(spark: SparkSession, lake: Lake, point: int | str) -> tuple[list[str], list[str]]:
    """What two topics have up to a point."""
    orders, clicks = (commitlake.read_topic(spark, {"warehouse": lake.warehouse}, topic, up_to=point) for topic in BOTH)
    return ids(orders), ids(clicks)


BOTH = ("orders", "clicks")


def send_both(lake: Lake, number: int) -> None:
    """A transaction over two topics, and a normal message to each of them."""
    first = lake.half(f"t{number}", msg_id=f"t{number}")
    part = lake.half(f"t{number}", 1, first=first, topic="clicks", msg_id=f"t{number}")
    lake.op("COMMIT", f"t{number}", first, part)
    for topic in BOTH:
        lake.message(f"n{number}", topic=topic)


def test_a_point_of_two_topics_stays_as_it_is_while_normal_messages_land(spark: SparkSession, lake: Lake) -> None:
    send_both(lake, 1)
    point = lake.run(spark)
    assert at(spark, lake, point) == (["n1", "t1"], ["n1", "t1"])
    for topic in BOTH:
        lake.message("n2", topic=topic)
    assert lake.run(spark) == point, "normal messages make no batch"
    assert at(spark, lake, point) == (["n1", "t1"], ["n1", "t1"])
    assert at(spark, lake, LAST_COMPLETE) == (["n1", "n2", "t1"], ["n1", "n2", "t1"])
    send_both(lake, 3)
    assert lake.run(spark) > point
    assert at(spark, lake, point) == (["n1", "t1"], ["n1", "t1"])
    assert at(spark, lake, LAST_COMPLETE)[1] == ["n1", "n2", "n3", "t1", "t3"]
    sql = re.findall(
        r"SELECT \* FROM orders WHERE (.*?)```", (ROOT / "docs/reference/tables.md").read_text(), re.DOTALL
    )[0]
    for name in (*BOTH, "batches"):
        place = lake.warehouse / ("batches" if name == "batches" else f"topics/{name}")
        spark.read.format("delta").load(str(place)).createOrReplaceTempView(name)
    condition = re.sub(r"\bN\b", str(point), sql)
    for topic in BOTH:
        assert ids(spark.sql(f"SELECT * FROM {topic} WHERE {condition}")) == ["n1", "t1"]


@pytest.mark.parametrize("is_live", [True, False], ids=["it decides before it lands", "it lands and decides together"])
def test_a_landing_that_was_cut_short_changes_no_point_when_a_start_completes_it(
    spark: SparkSession, lake: Lake, is_live: bool
) -> None:
    send_both(lake, 1)
    first = lake.run(spark)
    send_both(lake, 2)
    second, tables = lake.run(spark), Warehouse(spark, str(lake.warehouse))
    (cut,) = (row["landing_id"] for row in lake.topic("orders") if row["message_id"] == "n2")
    for topic in BOTH:
        tables.set_property(f"topics/{topic}", "delta.appendOnly", "false")
    gone = {name: f"batch_id = {second}" for name in ("batches", "transactions", "topics/orders", "topics/clicks")}
    for name, condition in {**gone, "positions": f"landing_id >= {cut}"}.items():
        tables.table(name).delete(condition)
    tables.table("topics/clicks").delete("message_id = 'n2'")
    before = at(spark, lake, first)
    assert before == (["n1", "t1"], ["n1", "t1"])
    if is_live:
        with Coordinator(spark, lake.configured()).start():
            wait_for(lambda: len(lake.topic("clicks")) == len(lake.topic("orders")) == 4)
            wait_for(lambda: max(row["batch_id"] for row in lake.rows("batches")) == second)
    else:
        lake.run(spark)
    assert at(spark, lake, first) == before
    found = {row["batch_id"]: row["landing_id"] for row in lake.rows("batches")}
    landed = {row["landing_id"] for topic in BOTH for row in lake.topic(topic) if row["message_id"] == "n2"}
    assert landed == {cut}, "it went on under its number"
    assert found == {first: cut - 1, second: cut - 1 if is_live else cut}
    shown = ["n1", *([] if is_live else ["n2"]), "t1", "t2"]
    assert at(spark, lake, second) == (shown, shown)


@pytest.mark.parametrize("stream", [False, True])
def test_a_misspelt_topic_is_an_error_of_the_package_that_names_those_that_are_there(
    spark: SparkSession, conf: dict[str, object], stream: bool
) -> None:
    with pytest.raises(NoTableError, match=r"topics/ordrs; check the name.*; topics that are there: orders$"):
        commitlake.read_topic(spark, conf, "ordrs", stream=stream)
    Path(f"{conf['warehouse']}/topics/cut_short").mkdir(exist_ok=True)
    with pytest.raises(NoTableError, match=r"topics/cut_short; check the name.*; topics that are there: orders$"):
        commitlake.read_topic(spark, conf, "cut_short", stream=stream)
    catalog = {"warehouse": "schema:spark_catalog.default"}
    with pytest.raises(NoTableError, match=r"schema:spark_catalog.default/topics/ordrs; .* its commit$"):
        commitlake.read_topic(spark, catalog, "ordrs", stream=stream)


def test_a_stream_leaves_receipts_beside_those_of_consumers_without_spark(
    spark: SparkSession, conf: dict[str, object], tmp_path: Path
) -> None:
    receipts = commitlake.receipts(conf, "orders", group="spark")

    def book(messages: DataFrame, _: int) -> None:
        receipts.done(messages.where("tags IS NOT NULL"))
        receipts.dead(messages.where("tags IS NULL"), remark="no tag")

    stream = commitlake.read_topic(spark, conf, "orders", stream=True).writeStream.foreachBatch(book)
    stream.option("checkpointLocation", str(tmp_path / "seen")).trigger(availableNow=True).start().awaitTermination()
    with commitlake.consume(conf, "orders", group="plain", tags="tag0", follow=False) as messages:
        for message in messages:
            message.done()
    settings = config.of(conf)
    left = unfinished.unfinished(settings, "orders", "spark")
    assert sorted(zip(left["message_id"].to_pylist(), left["state"].to_pylist(), strict=True)) == [
        ("b1", "DEAD"),
        ("b2", "DEAD"),
    ]
    assert unfinished.unfinished(settings, "orders", "plain").num_rows == 0, (
        "what it passed and did not want is not its"
    )


def test_the_stream_of_the_how_to_books_each_message_and_leaves_receipts(
    spark: SparkSession, conf: dict[str, object], tmp_path: Path
) -> None:
    text = (ROOT / "docs" / "how-to" / "consume.md").read_text()
    snippet = next(text for text in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "read_topic" in text)
    for here, there in {"paid": "tag1", "s3a:/": str(tmp_path), '"points"': '"docs"', ".start()": NOW}.items():
        assert here in snippet
        snippet = snippet.replace(here, there)
    names: dict[str, Any] = {"commitlake": commitlake, "spark": spark, "conf": conf}
    exec(snippet, names)
    names["query"].awaitTermination()
    assert spark.read.format("delta").load(f"{tmp_path}/lake/points").count() == 2
    left = unfinished.unfinished(config.of(conf), "orders", "docs")
    assert sorted(left["message_id"].to_pylist()) == ["b1", "b2", "t0"]


def test_a_stream_goes_on_past_a_row_that_the_owner_deletes(
    spark: SparkSession, conf: dict[str, object], tmp_path: Path
) -> None:
    """It ended in DELTA_SOURCE_TABLE_IGNORE_CHANGES, and each time that it was started again."""
    shutil.copytree(str(conf["warehouse"]), tmp_path / "copy")
    copied = {**conf, "warehouse": str(tmp_path / "copy")}
    seen: list[int] = []

    def run() -> None:
        stream = commitlake.read_topic(spark, copied, "orders", stream=True).writeStream
        stream = stream.foreachBatch(lambda rows, _: seen.append(rows.count())).trigger(availableNow=True)
        stream.option("checkpointLocation", str(tmp_path / "seen")).start().awaitTermination()

    run()
    warehouse = Warehouse(spark, str(tmp_path / "copy"))
    warehouse.set_property("topics/orders", "delta.appendOnly", "false")
    warehouse.table("topics/orders").delete("message_id = 'normal'")
    run()
    assert sum(seen) == len(ALL)


SWITCH = "'delta.enableDeletionVectors' = true, 'delta.appendOnly' = false"
MAPPED = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = true)"


@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_rows_that_spark_deletes_by_vectors_are_seen_by_nobody(
    spark: SparkSession, tmp_path: Path, policy: str
) -> None:
    for batch in range(2):
        write(tmp_path, "orders", [message(10 * batch + n, batch=batch, queue=n % 2) for n in range(10)])
    table = f"delta.`{tmp_path}/topics/orders`"
    checkpoints = f"'delta.checkpointPolicy' = '{policy}', 'delta.checkpointInterval' = 1"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({SWITCH}, {checkpoints})")
    spark.sql(f"DELETE FROM {table} WHERE source_offset % 4 = 1")
    spark.sql(f"DELETE FROM {table} WHERE source_offset = 3")
    left = [f"m{number}" for number in range(20) if number % 4 != 1 and number != 3]
    assert spark.read.format("delta").load(f"{tmp_path}/topics/orders").count() == len(left)
    log = tmp_path / "topics/orders/_delta_log"
    named = {len(each.name.split(".")) for each in log.glob("[0-9]*.checkpoint.*")}
    assert named == {4 if policy == "v2" else 3}, "with a UUID: deltalake writes no such checkpoint"
    for commit in sorted(log.glob(f"{'[0-9]' * 20}.json"))[:-1]:
        commit.unlink()  # as cleaned up in time: a checkpoint stands for them
    with commitlake.consume({"warehouse": str(tmp_path)}, "orders", group="g", follow=False) as messages:
        assert [each.message_id for each in messages] == left
    with opened(str(tmp_path)) as tables:
        found = tables.rows(f"SELECT message_id FROM {tables.topic('orders')} ORDER BY batch_id, source_offset")
    assert found["message_id"].to_pylist() == left


def test_a_mapped_table_with_odd_partitions_is_read_by_its_own_names(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "business"
    spark.sql(f"CREATE TABLE delta.`{place}` (id STRING, `the state` STRING, day STRING) USING delta "
              f"PARTITIONED BY (day) {MAPPED}")  # fmt: skip
    spark.sql(f"INSERT INTO delta.`{place}` VALUES ('1', 'PAID', 'a b%'), ('2', 'NEW', 'a b%'), ('3', 'PAID', 'c=/d')")
    spark.sql(f"DELETE FROM delta.`{place}` WHERE id = '2'")
    spark.sql(f"ALTER TABLE delta.`{place}` RENAME COLUMN `the state` TO state")
    with opened(str(tmp_path)) as tables:
        view = tables.outside(str(place), {"ID", "state", "day"})
        assert tables.rows(f"SELECT id, state, day FROM {view} ORDER BY id").to_pylist() == [
            {"id": "1", "state": "PAID", "day": "a b%"},
            {"id": "3", "state": "PAID", "day": "c=/d"},
        ]
        spark.sql(f"ALTER TABLE delta.`{place}` ADD COLUMNS (more STRUCT<amount: DOUBLE>)")
        with pytest.raises(WarehouseError, match=r"other names inside of the column more .*columnMapping"):
            tables.outside(str(place))


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-topics.md"
ORDERS = [
    *(("o-1", "ann", 12, "paid"), ("o-2", "bob", 5, "paid"), ("o-1", "ann", 20, "paid"), ("o-3", "ann", 1, "new")),
    (None, "eve", 2, "new"),
]


def snippets() -> dict[str, str]:
    """The snippets by the heading above each; several below one heading follow each other."""
    found: dict[str, str] = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        if code:
            found[section.splitlines()[0]] = "\n".join(code)
    return found


@pytest.fixture(scope="module")
def page_lake(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Lake(broker.bootstrap_servers, "page.", tmp_path_factory.mktemp("page")) as page_lake:
        for number, (keys, customer, amount, tags) in enumerate(ORDERS):
            body = json.dumps({"customer": customer, "amount": amount}).encode()
            page_lake.op("COMMIT", f"t{number}", page_lake.half(f"t{number}", keys=keys, tags=tags, body=body))
        page_lake.run(spark)
        yield page_lake


@pytest.fixture
def names(spark: SparkSession, page_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(page_lake.root)
    return {"spark": spark}


def test_sums_without_spark(names: dict[str, Any]) -> None:
    exec(snippets()["With SQL, without Spark"], names)
    assert dict(names["paid"].fetchall()) == {"ann": 32, "bob": 5}
    assert len(names["frame"]) == 2


def test_sums_and_newest_rows_with_spark(names: dict[str, Any], page_lake: Lake) -> None:
    local = snippets()["With Spark"].replace('"warehouse/', f'"{page_lake.warehouse}/')
    exec(local, names)
    assert {(row[0], row[1]) for row in names["paid"].collect()} == {("ann", 32), ("bob", 5)}
    latest = {row["keys"]: row["value"]["amount"] for row in names["latest"].collect()}
    assert latest == {"o-1": 20, "o-2": 5, "o-3": 1, None: 2}


def test_a_table_of_ones_own_is_kept_up_to_date(names: dict[str, Any], page_lake: Lake, spark: SparkSession) -> None:
    own = f"{page_lake.root}/lake/orders"
    code = snippets()["Keep a table of your own up to date"]
    for place in ("warehouse", "lake", "checkpoints"):
        code = code.replace(f'"{place}/', f'"{page_lake.root}/{place}/')
    names["F"] = F  # of the snippet before
    for _ in range(2):  # the second run finds nothing new
        exec(code, names)
        rows = spark.read.format("delta").load(own).collect()
        assert {(row["keys"], row["customer"], row["amount"]) for row in rows} == {
            ("o-1", "ann", 20),
            ("o-2", "bob", 5),
            ("o-3", "ann", 1),
        }


def test_from_point_to_point_each_row_comes_once(spark: SparkSession, page_lake: Lake) -> None:
    """Of transactions, and of normal messages, which have no batch."""
    (sql,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    points, found = [-1], list[str]()
    for number in range(3):
        page_lake.message(f"n{number}", topic="points")
        page_lake.op("COMMIT", f"p{number}", page_lake.half(f"p{number}", topic="points"))
        page_lake.run(spark)
        batches, orders = (pa.Table.from_pylist(page_lake.rows(name)) for name in ("batches", "topics/points"))
        points.append(max(batches["batch_id"].to_pylist()))
        rows = duckdb.execute(sql, {"last": points[-2], "now": points[-1]}).fetchall()
        assert {row[-1] for row in rows} == {points[-1]}
        found += [row[orders.column_names.index("message_id")] for row in rows]
    assert sorted(found) == sorted(orders["message_id"].to_pylist())
    assert len(found) == 6
