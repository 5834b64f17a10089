"""Columns of topic tables: values by a schema of Avro, and those that later versions brought to older tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyarrow.parquet import read_metadata
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.typed_rows import (
    ADDRESS,
    DECIMAL,
    FIELDS,
    VALUE,
    appended,
    array,
    body,
    long,
    prepared,
    record,
    text,
    values,
)

import commitlake
from commitlake import config
from commitlake.errors import ConfigError, WarehouseError
from commitlake.reading.questions.tables import opened
from commitlake.tables import TOPIC, Warehouse, topic_table
from commitlake.tables.avro_bodies import _MARK
from commitlake.tables.schemas import APPEND_ONLY, TOPIC_SINCE
from commitlake.tables.typed_topics import prepare
from commitlake.tools.audit.audit import audit


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Callable[[str], Warehouse]:
    """The tables, with a schema of the topic `orders`."""
    return lambda schema: prepared(Warehouse(spark, str(tmp_path)), format="avro", schema=schema)


@pytest.mark.parametrize("few", [True, False])
def test_a_body_becomes_columns_of_sparks_types(tables: Callable[[str], Warehouse], few: bool) -> None:
    found = values(appended(tables(record(*FIELDS)), [body(), body(note=long(0))], few=few))
    assert found == [(VALUE, None), ({**VALUE, "note": None}, None)]


def test_a_body_that_does_not_fit_has_no_value(tables: Callable[[str], Warehouse]) -> None:
    whole = body()
    unfit = [
        *(whole[:length] for length in range(1, len(whole))),  # cut short, anywhere
        *(whole + more for more in (b"\0", _MARK[:1], _MARK[:7], _MARK[-1:], bytes(100))),
        *(b"{}", json.dumps({"id": 17}).encode(), b"\0" + (7).to_bytes(4, "big") + whole),
        *(body(kind=long(2)), body(note=long(2)), body(tags=long(-1)), body(id=b"\xff" * 11)),
        body(at=long(64_060_588_800_000_000)),  # microseconds for milliseconds
    ]
    found = values(appended(tables(record(*FIELDS)), [whole, *unfit, b""]))
    assert found[0] == (VALUE, None)
    assert found[1:-1] == [(None, "UNFIT")] * len(unfit)
    assert found[-1] == (None, "EMPTY")


@pytest.mark.parametrize("length", [16 << 20, 1 << 30, (1 << 31) - 9, 1 << 40])
def test_a_length_that_no_body_has_makes_no_room_for_it(tables: Callable[[str], Warehouse], length: int) -> None:
    """Java would end for want of memory, and end again at each start."""
    schema = record(("s", "string"), ("b", "bytes"), ("a", {"type": "array", "items": "long"}), ("m", DECIMAL))
    made = [b"", *(b"\0" * before for before in range(1, 4))]
    found = values(appended(tables(schema), [before + long(length) + b"abc" for before in made]))
    assert found == [(None, "UNFIT")] * 4


LARGE = {**DECIMAL, "precision": 38}
FIXED = {"type": "fixed", "name": "Cents", "size": 12, "logicalType": "decimal", "precision": 10, "scale": 2}
DECIMALS = record(("m", DECIMAL), ("l", ["null", LARGE]), ("f", FIXED), ("a", {"type": "array", "items": LARGE}))
CENTS = 1250


def decimals(m: bytes = b"\x7f", large: bytes = b"\x01", fixed: int = CENTS, *items: bytes) -> bytes:
    """A body of `DECIMALS`."""
    given = [raw(m), long(1), raw(large), fixed.to_bytes(12, "big", signed=True), array([raw(each) for each in items])]
    return b"".join(given)


def raw(content: bytes) -> bytes:
    return long(len(content)) + content


def signed(number: int, size: int = 9) -> bytes:
    return number.to_bytes(size, "big", signed=True)


@pytest.mark.parametrize("few", [True, False])
def test_a_decimal_of_any_size_is_right_or_does_not_fit(tables: Callable[[str], Warehouse], few: bool) -> None:
    """Spark would take the last eight bytes for a few digits, and write out megabytes for minutes."""
    fits = {
        decimals(signed(CENTS)): "12.50",
        decimals(signed(-CENTS)): "-12.50",
        decimals(signed(-CENTS, 900)): "-12.50",
        decimals(signed(-CENTS, 2), signed(10**38 - 1, 17), -CENTS, signed(1), signed(-1, 100)): "-12.50",
        decimals(signed(10**10 - 1)): "99999999.99",
    }
    wrong = [1 << 63, (1 << 64) + CENTS, -(1 << 63) - 1, -(1 << 64) + CENTS, 10**10]
    unfit = [
        *(decimals(signed(number)) for number in wrong),
        *(decimals(fixed=number) for number in wrong),
        *(decimals(large=signed(10**38, 17)), decimals(large=b"\x7f" * (8 << 20)), decimals(b"\x7f" * (8 << 20))),
        decimals(b"\1", b"\1", CENTS, b"\1", b"\x7f" * (8 << 20)),
        decimals(large=b"\x7f" * (8 << 20))[:-1],
    ]
    begun = time.monotonic()
    found = values(appended(tables(DECIMALS), [*fits, *unfit], few=few))
    assert [(str(value["m"]), error) for value, error in found[: len(fits)] if value] == [
        (text, None) for text in fits.values()
    ]
    assert found[len(fits) :] == [(None, "UNFIT")] * len(unfit)
    assert found[3][0]["a"] == [Decimal("0.01"), Decimal("-0.01")]
    assert time.monotonic() - begun < 60


def test_fields_that_all_are_null_are_a_value(tables: Callable[[str], Warehouse]) -> None:
    schema = record(("a", ["null", "int"]), ("b", ["null", "string"]))
    found = values(appended(tables(schema), [b"\0\0", b"\0", b"\0\0\0", b""]))
    assert found == [({"a": None, "b": None}, None), (None, "UNFIT"), (None, "UNFIT"), (None, "EMPTY")]


def test_fields_come_and_go(tables: Callable[[str], Warehouse]) -> None:
    first, more = ("id", "int"), ("note", "string")
    appended(tables(record(first, ("home", ADDRESS))), [long(1) + text("Bern")])
    wider = {**ADDRESS, "fields": [{"name": "zip", "type": "int"}]}
    appended(tables(record(more, ("home", wider), first)), [text("x") + long(3000) + long(2)])
    place = appended(tables(record(more)), [text("y")])
    found = sorted((value for value, _ in values(place)), key=str)
    assert found == [
        {"id": 1, "home": {"city": "Bern", "zip": None}, "note": None},
        {"id": 2, "home": {"city": None, "zip": 3000}, "note": "x"},
        {"id": None, "home": None, "note": "y"},
    ]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("id INT", "give a record of Avro, as JSON"),
        ('"string"', "it is no record of Avro; give a record"),
        ('{"type": "record", "name": "x", "fields": [{"name": "a", "type": "nothing"}]}', "nothing"),
        (record(("a", "null"), ("b", "int")), "VOID"),
        (record(("a", {"type": "array", "items": "null"}), ("b", "int")), "takes no byte, such as an array of null"),
        (record(("a", {"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}})), "takes no byte"),
        (record(("a", {"type": "array", "items": json.loads(record(("b", "null")))})), "takes no byte"),
        (record(("a", {"type": "long", "logicalType": "local-timestamp-millis"})), "TIMESTAMP_NTZ"),
        (record(("a", "int"), ("A", "int")), "each once in any case"),
        (record(("__end__", "int")), "not allowed"),
        (record(("below", ["null", "shop.Order"])), "recursive"),
    ],
)
def test_a_schema_that_is_none_or_that_readers_refuse_is_refused(spark: SparkSession, schema: str, told: str) -> None:
    given = config.from_mapping({"topics.schemas": {"orders": {"format": "avro", "schema": schema}}})
    with pytest.raises(ConfigError, match=rf"(?is)topics\.schemas: the schema of orders.*{told}"):
        prepare(Warehouse(spark, "/nowhere"), given.topics.schemas)


SCHEMAS = {
    "orders": {"format": "avro", "schema": json.loads(record(*FIELDS))},
    "clicks": {"format": "json", "schema": "id INT"},
}


@pytest.mark.lake({"topics.schemas": SCHEMAS})
def test_topics_of_both_formats_and_of_none_land_together(spark: SparkSession, lake: Lake) -> None:
    sent = {"orders": body(), "clicks": b'{"id": 1}', "plain": b"?"}
    for topic, each in sent.items():
        lake.op("COMMIT", topic, lake.half(topic, topic=topic, body=each))
        lake.op("COMMIT", f"{topic}-bad", lake.half(f"{topic}-bad", topic=topic, body=b"\xff"))
    lake.run(spark)
    found = {
        topic: {row["transaction_id"]: (row.get("value"), row.get("value_error")) for row in lake.topic(topic)}
        for topic in sent
    }
    assert found["orders"] == {"orders": (VALUE, None), "orders-bad": (None, "UNFIT")}
    assert found["clicks"] == {"clicks": ({"id": 1}, None), "clicks-bad": (None, "NO_OBJECT")}
    assert found["plain"].keys() == {"plain", "plain-bad"}


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
