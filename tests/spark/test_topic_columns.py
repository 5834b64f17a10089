"""Columns that later versions brought to topic tables: what they say, and tables of before that lack them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from pyarrow.parquet import read_metadata
from pyspark.sql import SparkSession
from tests.support.lake import Lake

import commitlake
from commitlake.errors import WarehouseError
from commitlake.reading.questions.tables import opened
from commitlake.tables import TOPIC, Warehouse, topic_table
from commitlake.tables.schemas import APPEND_ONLY, TOPIC_SINCE
from commitlake.tools.audit.audit import audit

ORDERS = topic_table("orders")
SOON = {"TIMER_DELAY_MS": "1"}


def by_id(lake: Lake, topic: str = "orders") -> dict[str, dict[str, Any]]:
    return {row["message_id"]: row for row in lake.topic(topic)}


def send(lake: Lake, number: int) -> None:
    """A message of each kind."""
    lake.op("COMMIT", f"t{number}", lake.half(f"t{number}", msg_id=f"t{number}"))
    later = lake.half(f"late{number}", msg_id=f"late{number}", delays=SOON)
    lake.op("COMMIT", f"late{number}", later)
    lake.message(f"normal{number}", topic="orders")
    lake.message(f"delayed{number}", topic="orders", delays=SOON)


def make_older(spark: SparkSession, lake: Lake) -> None:
    """The topic's table as an older version has written it, but for the number of its commits."""
    tables = Warehouse(spark, str(lake.warehouse))
    tables.set_property(ORDERS, APPEND_ONLY, "false")
    older = tables.read(ORDERS).drop(*TOPIC_SINCE)
    writer = older.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.partitionBy("queue_id").save(tables.locate(ORDERS))
    tables.set_property(ORDERS, APPEND_ONLY, "true")


def commits(lake: Lake) -> Iterator[list[dict[str, Any]]]:
    """The actions of each commit to the topic, the oldest first."""
    for file in sorted((lake.warehouse / ORDERS / "_delta_log").glob("*.json")):
        yield [json.loads(line) for line in file.read_text().splitlines()]


def operations(lake: Lake) -> list[str]:
    return [action["commitInfo"]["operation"] for actions in commits(lake) for action in actions[:1]]


def newest_writer(lake: Lake) -> str:
    """What wrote the file of the newest append."""
    paths = [action["add"]["path"] for actions in commits(lake) for action in actions if "add" in action]
    return str(read_metadata(lake.warehouse / ORDERS / paths[-1]).created_by).partition(" ")[0]


def test_a_message_with_a_delay_says_when_it_was_due(spark: SparkSession, lake: Lake) -> None:
    send(lake, 1)
    lake.run(spark)
    rows, due = by_id(lake), {row["message_id"]: row["deliver_at"] for row in lake.rows("deliveries")}
    assert due.keys() == {"late1", "delayed1"}
    assert {name: row["due_at"] for name, row in rows.items()} == {"t1": None, "normal1": None, **due}
    with commitlake.consume({"warehouse": str(lake.warehouse)}, "orders", group="g", follow=False) as messages:
        assert {message.message_id: message.due_at for message in messages} == {"t1": None, "normal1": None, **due}


def test_a_batch_that_a_kill_cut_short_is_completed_with_the_same_times(spark: SparkSession, lake: Lake) -> None:
    send(lake, 1)
    lake.run(spark)
    before, tables = by_id(lake), Warehouse(spark, str(lake.warehouse))
    last = max(row["batch_id"] for row in lake.rows("batches"))
    tables.set_property(ORDERS, APPEND_ONLY, "false")
    for name in ("batches", ORDERS):
        tables.table(name).delete(f"batch_id = {last}")
    assert len(by_id(lake)) < len(before)
    lake.run(spark)
    again = by_id(lake)
    assert {name: row["due_at"] for name, row in again.items()} == {name: row["due_at"] for name, row in before.items()}


def test_a_table_of_an_older_version_gets_the_columns_once_before_its_next_rows(
    spark: SparkSession, lake: Lake
) -> None:
    send(lake, 1)
    lake.run(spark)
    make_older(spark, lake)
    lake.run(spark)
    assert "ADD COLUMNS" not in operations(lake), "a start reads no topic that it has nothing for"
    for number in (2, 3):
        send(lake, number)
        lake.run(spark)
    assert operations(lake).count("ADD COLUMNS") == 1
    assert Warehouse(spark, str(lake.warehouse)).read(ORDERS).columns == TOPIC.columns
    rows = by_id(lake)
    assert (rows["late1"]["due_at"], rows["t2"]["due_at"]) == (None, None)
    assert {name for name, row in rows.items() if row["landing_id"] is not None} == {"normal2", "normal3"}
    point = {"warehouse": lake.warehouse}, "orders"
    first = min(row["batch_id"] for row in rows.values() if row["batch_id"] is not None)
    shown = commitlake.read_topic(spark, *point, up_to=first).select("message_id").collect()
    assert "normal1" in {row["message_id"] for row in shown}, "what a version before has landed is before each point"
    assert "normal2" not in {row["message_id"] for row in shown}
    assert all(rows[name]["due_at"] is not None for name in ("late2", "delayed2", "late3", "delayed3"))
    assert newest_writer(lake) == "parquet-cpp-arrow", "the driver's own appends go on"
    assert audit(spark, str(lake.warehouse)).is_well


def test_columns_of_a_schema_and_of_the_owner_stay_where_they_are(spark: SparkSession, lake: Lake) -> None:
    schemas = {"topics_schemas": {"orders": {"format": "json", "schema": "id INT"}}}
    send(lake, 1)
    lake.run(spark, **schemas)
    make_older(spark, lake)
    spark.sql(f"ALTER TABLE delta.`{lake.warehouse}/{ORDERS}` ADD COLUMNS (team STRING FIRST, note STRING)")
    send(lake, 2)
    lake.run(spark, **schemas)
    found = Warehouse(spark, str(lake.warehouse)).read(ORDERS).columns
    assert found == ["team", *TOPIC.columns, "value", "value_error", "note"]
    rows = by_id(lake)
    assert rows["late2"]["due_at"] is not None
    assert (rows["t1"]["value_error"], rows["t2"]["value_error"]) == ("NO_OBJECT", "NO_OBJECT")
    assert audit(spark, str(lake.warehouse)).is_well


def test_readers_of_a_table_of_an_older_version_miss_nothing(spark: SparkSession, lake: Lake) -> None:
    send(lake, 1)
    lake.run(spark)
    make_older(spark, lake)
    conf = {"warehouse": str(lake.warehouse)}
    with commitlake.consume(conf, "orders", group="g") as messages:
        found = {message.message_id: message.due_at for message in islice(messages, 4)}
        assert found == dict.fromkeys(("t1", "late1", "normal1", "delayed1"))
        send(lake, 2)
        lake.run(spark)
        more = [message.message_id for message in islice(messages, 4)]
    assert sorted(more) == ["delayed2", "late2", "normal2", "t2"], "it goes on, though the table has more columns now"
    with opened(str(lake.warehouse)) as tables:
        count = tables.rows(f"SELECT count(due_at) AS n FROM {tables.topic('orders')}").to_pylist()
    assert count == [{"n": 2}]


def test_a_column_of_the_owner_with_such_a_name_is_told(spark: SparkSession, lake: Lake) -> None:
    send(lake, 1)
    lake.run(spark)
    make_older(spark, lake)
    spark.sql(f"ALTER TABLE delta.`{lake.warehouse}/{ORDERS}` ADD COLUMNS (due_at STRING)")
    with pytest.raises(WarehouseError, match="topics/orders: the column due_at is string, and timestamp in a topic"):
        Warehouse(spark, str(lake.warehouse)).ensure_topic("orders")
