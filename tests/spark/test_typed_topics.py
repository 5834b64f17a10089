"""`topics.schemas`: columns for bodies, what does not fit, and how a schema may change."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.support.killing import ROOT
from tests.support.lake import Lake
from tests.support.typed_rows import appended, prepared, values

import commitlake
from commitlake import config
from commitlake.clients.consumer.unfinished import unfinished
from commitlake.errors import ConfigError, ConsumerError
from commitlake.protocol import message_batch
from commitlake.tables import Warehouse, topic_table
from commitlake.tables.schemas import STATISTICS, TOPIC
from commitlake.tools import erase as erasing
from commitlake.tools.audit.audit import audit

SCHEMA = "id BIGINT, amount DECIMAL(10, 2), at TIMESTAMP, who STRUCT<name: STRING, tags: ARRAY<STRING>>"
GOOD = {"id": 17, "amount": "12.50", "at": "2026-11-29T05:00:00Z", "who": {"name": "ann", "tags": ["a", "b"]}}
UNFIT: dict[str, bytes] = {
    "a wrong type": b'{"id": "seventeen"}',
    "a float for a whole number": b'{"id": 17.5}',
    "a wrong type further down": b'{"who": {"name": "ann", "tags": "a"}}',
    "too large a number": b'{"id": 123456789012345678901234567890}',
    "no comma": b'{"id": 17 "amount": "1"}',
    "no UTF-8": b'{"id": \xff}',
    "milliseconds for a time": b'{"at": 1764392400000}',
}
NO_OBJECT = {
    "text behind it": b'{"id": 17} and more',
    "a list": b'[{"id": 17}, {"id": 18}]',
    "a number": b"17",
    "null": b"null",
    "no JSON": b"hello",
}
EMPTY = {"empty": b"", "blank": b" \n\t"}
AT = datetime(2025, 11, 29, 5, tzinfo=UTC)


def schemas(schema: str = SCHEMA, *topics: str) -> dict[str, Any]:
    return {"topics.schemas": {topic: {"format": "json", "schema": schema} for topic in topics or ("orders",)}}


pytestmark = pytest.mark.lake(schemas())


def bodies(lake: Lake, **by_name: bytes) -> None:
    for name, body in by_name.items():
        lake.op("COMMIT", name, lake.half(name, msg_id=name, body=body))


def by_id(lake: Lake, topic: str = "orders") -> dict[str, dict[str, Any]]:
    return {row["message_id"]: row for row in lake.topic(topic)}


def test_each_kind_of_message_has_its_value(spark: SparkSession, lake: Lake) -> None:
    body = json.dumps(GOOD).encode()
    bodies(lake, committed=body)
    lake.message("normal", topic="orders", body=body)
    lake.message("delayed", topic="orders", body=body, delays={"TIMER_DELAY_MS": "1"})
    members = message_batch.pack(message_batch.Member(body, {"UNIQ_KEY": f"member-{n}"}) for n in range(2))
    lake.message("batch", topic="orders", body=members, batch=2)
    lake.run(spark)
    rows = by_id(lake)
    assert rows.keys() >= {"committed", "normal", "delayed", "member-0", "member-1"}
    assert {(row["value"]["id"], row["value_error"]) for row in rows.values()} == {(17, None)}


def test_a_body_that_does_not_fit_has_no_value_and_says_why(spark: SparkSession, lake: Lake) -> None:
    told = {"UNFIT": UNFIT, "NO_OBJECT": NO_OBJECT, "EMPTY": EMPTY}
    names = {f"{kind}-{n}": (kind, body) for kind, each in told.items() for n, body in enumerate(each.values())}
    bodies(lake, good=json.dumps(GOOD).encode(), **{name: body for name, (_, body) in names.items()})
    lake.run(spark)
    rows = by_id(lake)
    assert {name: rows[name]["value_error"] for name in names} == {name: kind for name, (kind, _) in names.items()}
    assert {name for name in names if rows[name]["value"] is not None} == set()
    assert {name: rows[name]["body"] for name in names} == {name: body for name, (_, body) in names.items()}
    assert rows["good"]["value_error"] is None
    assert rows["good"]["value"]["id"] == 17
    assert rows["good"]["value"]["amount"] == Decimal("12.50")
    assert rows["good"]["value"]["who"] == {"name": "ann", "tags": ["a", "b"]}
    assert audit(spark, str(lake.warehouse)).is_well


def test_readers_without_spark_find_the_columns(spark: SparkSession, lake: Lake) -> None:
    bodies(lake, good=json.dumps(GOOD).encode(), bad=b"{?}")
    lake.run(spark)
    files = duckdb.read_parquet(DeltaTable(f"{lake.warehouse}/topics/orders").file_uris())
    found = files.order("message_id").project("value.id, value.who.name, value_error").fetchall()
    assert found == [(None, None, "UNFIT"), (17, "ann", None)]
    with commitlake.consume({"warehouse": str(lake.warehouse)}, "orders", group="g", follow=False) as messages:
        values = {message.message_id: (message.value, message.value_error) for message in messages}
    assert values["bad"] == (None, "UNFIT")
    assert values["good"][0] is not None
    assert values["good"][0]["who"] == {"name": "ann", "tags": ["a", "b"]}


def test_the_page_shows_what_it_says(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/how-to/type-a-topic.md begins with a walk of twelve lines; it and the query run as they stand."""
    page = (ROOT / "docs" / "how-to" / "type-a-topic.md").read_text()
    walk = re.findall(r"```(yaml|bash|python)\n(.*?)```", page.partition("\n## ")[0], re.DOTALL)
    (schema, command, python), (query,) = (code for _, code in walk), re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert len([line for _, code in walk for line in code.splitlines() if line]) <= 12
    lake.settings["topics.schemas"] = yaml.safe_load(schema)["topics"]["schemas"]
    bodies(lake, good=shlex.split(command)[3].encode(), bad=b"tea")
    lake.run(spark)
    monkeypatch.chdir(lake.root)
    exec(python, {})
    printed = capsys.readouterr().out
    value = "{'customer': 'ann', 'amount': Decimal('12.50')}"
    assert sorted(printed.splitlines()[:2]) == ["None NO_OBJECT", f"{value} None"]
    assert re.search(r"ann .* 12\.50", printed)
    files = DeltaTable(f"{lake.warehouse}/topics/orders").file_uris()
    with duckdb.connect() as db:
        db.read_parquet(files, union_by_name=True).create_view("orders")
        assert db.sql(query).fetchall() == [("NO_OBJECT", 1)]
    spark.read.format("delta").load(f"{lake.warehouse}/topics/orders").createOrReplaceTempView("orders")
    assert [tuple(row) for row in spark.sql(query).collect()] == [("NO_OBJECT", 1)]
    spark.catalog.dropTempView("orders")


def test_a_consumer_chooses_by_fields_of_the_value(spark: SparkSession, lake: Lake) -> None:
    bodies(lake, good=json.dumps(GOOD).encode(), less=b'{"amount": 1, "who": {"name": "bob"}}', bad=b"{?}")
    lake.run(spark)
    conf, where = {"warehouse": str(lake.warehouse)}, "value.amount > 10 AND value.who.name = 'ann'"
    found = unfinished(config.from_mapping(conf), "orders", "g", where=where)
    assert found["message_id"].to_pylist() == ["good"]
    with commitlake.consume(conf, "orders", group="g", follow=False, where=where) as messages:
        assert [message.message_id for message in messages] == ["good"]
    with pytest.raises(ConsumerError, match=r"where: 'value\.nothing > 1' can't be used"):
        unfinished(config.from_mapping(conf), "orders", "g", where="value.nothing > 1")


NUMBERS = """amount DECIMAL(10, 2), at TIMESTAMP, name STRING,
more ARRAY<STRUCT<`each`: DECIMAL(3, 1), it: MAP<STRING, TIMESTAMP>>>"""
FITS: dict[bytes, dict[str, Any]] = {
    b'{"amount": 1E3, "name": "0e8400-1e99999 1764392400000"}': {
        "amount": Decimal(1000),
        "name": "0e8400-1e99999 1764392400000",
    },
    b'{"amount": "-12.50e-1", "name": "\\u00e9", "at": 1764392400}': {
        "amount": Decimal("-1.25"),
        "name": "\u00e9",
        "at": AT,
    },
    b'{"amount": 0.1000000000000000055511151231257827021181583404541015625}': {"amount": Decimal("0.10")},
    b'{"at": "2025-11-29T05:00:00.000000Z", "amount": null, "name": 1764392400000}': {
        "at": AT,
        "name": "1764392400000",
    },
    b'{"more": [{"each": 1e1, "it": {"1e99999": 1764392400}}, null]}': {
        "more": [{"each": Decimal(10), "it": [("1e99999", AT)]}, None]
    },
}
LONG = (b"1e300000000", b"1\\u0065300000000", b"1" * 200_000, b".1e0000000009999")
TOO_LARGE = [
    *(b'{"amount": %s}' % number for number in (b"1e300000000", b"-1E+300000000", b"1e-300000000")),
    *(b'{"amount": "%s"}' % number for number in LONG),
    b'{"more": [{"each": 1}, {"each": 1e300000000}]}',
    *(b'{"at": %d}' % number for number in (1 << 58, -1 << 58)),  # of ns: times 10^6 it is 0 in 64 bits
    *(b'{"more": [{"it": {"a": 1764392400, "b": %d}}]}' % number for number in (1 << 58, 1_764_392_400_000)),
]
"""On the first ones Spark would work for hours, or Java end; of others it would make 1970, or the year 57 882."""


@pytest.mark.parametrize("few", [True, False])
def test_a_number_that_spark_would_take_wrong_or_work_on_for_hours_does_not_fit(
    spark: SparkSession, tmp_path: Path, few: bool
) -> None:
    tables = prepared(Warehouse(spark, str(tmp_path)), format="json", schema=NUMBERS)
    found = values(appended(tables, [*FITS, *TOO_LARGE], few=few))
    nothing = dict.fromkeys(("amount", "at", "name", "more"))
    assert found[: len(FITS)] == [({**nothing, **value}, None) for value in FITS.values()]
    assert found[len(FITS) :] == [(None, "UNFIT")] * len(TOO_LARGE)


def test_a_field_may_be_written_in_other_letters_later(spark: SparkSession, tmp_path: Path) -> None:
    """JSON's names count by letter: with customerid nothing was found."""
    tables, body = Warehouse(spark, str(tmp_path)), b'{"customerId": "ann", "in": {"lineNo": 1}}'
    appended(prepared(tables, format="json", schema="customerid STRING, `in` STRUCT<lineno: INT>"), [body])
    place = appended(prepared(tables, format="json", schema="customerId STRING, `in` STRUCT<lineNo: INT>"), [body])
    found = [value for value, _ in values(place)]
    assert {"customerid": None, "in": {"lineno": None}} in found
    assert {"customerid": "ann", "in": {"lineno": 1}} in found


def test_a_field_that_the_schema_has_lost_may_have_any_type(spark: SparkSession, tmp_path: Path) -> None:
    tables = Warehouse(spark, str(tmp_path))
    appended(prepared(tables, format="json", schema="id INT, amount INT"), [b'{"id": 1, "amount": 2}'])
    place = appended(prepared(tables, format="json", schema="id INT, cents INT"), [b'{"id": 3, "amount": "4 EUR"}'])
    assert sorted(values(place), key=str) == [
        ({"id": 1, "amount": 2, "cents": None}, None),
        ({"id": 3, "amount": None, "cents": None}, None),
    ]


def test_a_topic_without_a_schema_has_no_more_columns(spark: SparkSession, lake: Lake) -> None:
    lake.op("COMMIT", "c", lake.half("c", topic="clicks"))
    lake.run(spark)
    (row,) = lake.topic("clicks")
    assert "value" not in row
    with (
        commitlake.consume({"warehouse": str(lake.warehouse)}, "clicks", group="g", follow=False) as messages,
        pytest.raises(ConsumerError, match="the topic clicks has no column value"),
    ):
        next(iter(messages)).value  # noqa: B018 - it raises


@pytest.mark.parametrize("most_rows", [20_000, 0])
def test_many_topics_land_together_whichever_of_them_have_a_schema(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, most_rows: int
) -> None:
    """Written by the driver, and by Spark's jobs, which write more than four topics into one scratch table."""
    monkeypatch.setattr("commitlake.tables.small_files.MOST_ROWS", most_rows)
    topics = [f"t{n}" for n in range(8)]
    for topic in topics:
        for name in (f"{topic}-good", f"{topic}-bad"):
            body = b'{"id": 1}' if name.endswith("good") else b"?"
            lake.op("COMMIT", name, lake.half(name, topic=topic, msg_id=name, body=body))
    lake.settings |= schemas("id INT", "t0", "t1", "t7")
    lake.run(spark)
    for topic in topics:
        rows = by_id(lake, topic)
        assert rows.keys() == {f"{topic}-good", f"{topic}-bad"}
        if topic in ("t0", "t1", "t7"):
            assert rows[f"{topic}-good"]["value"] == {"id": 1}
            assert rows[f"{topic}-bad"]["value_error"] == "NO_OBJECT"
        else:
            assert "value" not in rows[f"{topic}-good"]
    assert audit(spark, str(lake.warehouse)).is_well


def test_a_topic_gets_a_schema_later_and_the_schema_more_fields(spark: SparkSession, lake: Lake) -> None:
    lake.settings |= {"topics.schemas": {}}
    bodies(lake, first=b'{"id": 1, "name": "a", "in": {"x": 1, "y": 2}}')
    lake.run(spark)
    lake.settings |= schemas("id INT, `in` STRUCT<x: INT>")
    bodies(lake, second=b'{"id": 2, "name": "b", "in": {"x": 1, "y": 2}}')
    lake.run(spark)
    lake.settings |= schemas("name STRING, `in` STRUCT<y: INT, x: INT>, id INT")
    bodies(lake, third=b'{"id": 3, "name": "c", "in": {"x": 1, "y": 2}}')
    lake.run(spark)
    lake.settings |= schemas("name STRING")
    bodies(lake, fourth=b'{"id": 4, "name": "d", "in": {"x": 1, "y": 2}}')
    lake.run(spark)
    rows = by_id(lake)
    assert rows["first"]["value"] is None
    assert rows["second"]["value"] == {"id": 2, "in": {"x": 1, "y": None}, "name": None}
    assert rows["third"]["value"] == {"id": 3, "in": {"x": 1, "y": 2}, "name": "c"}
    assert rows["fourth"]["value"] == {"id": None, "in": None, "name": "d"}
    lake.settings |= {"topics.schemas": {}}
    bodies(lake, fifth=b'{"id": 5}')
    lake.run(spark)
    assert by_id(lake)["fifth"]["value"] is None


WIDE = """id BIGINT, amount DECIMAL(10, 2), large DECIMAL(30, 0), paid BOOLEAN, at TIMESTAMP, day DATE, tags ARRAY<INT>,
`in` STRUCT<x: DOUBLE, deep: STRUCT<name: STRING, small: TINYINT>>, part FLOAT, ninth INT"""
FIRST = ["id", "amount", "at", "day", "in.x", "in.deep.name", "in.deep.small", "part"]
WIDE_BODIES = [
    b"""{"id": 3, "amount": 0.10, "large": 7, "at": "2026-11-29T05:00:00.123Z", "day": "2026-11-29", "part": 0.5,
    "in": {"x": 1e300, "deep": {"name": "ann", "small": -1}}}""",
    b"""{"id": -9007199254740993, "amount": -12345678.90, "at": "1969-12-31T23:59:59.999Z", "day": "0001-01-01",
    "part": 2, "in": {"x": -0.1, "deep": {"name": "\xc3\xa9", "small": 7}}, "ninth": 9}""",
    b'{"in": {"deep": {}}}',
    b"?",
]


def commits(place: str) -> list[dict[str, Any]]:
    """The statistics of the first file of each commit, the oldest first; Delta's writer has objects without a value."""
    found = []
    for file in sorted(Path(place, "_delta_log").glob("*.json")):
        adds = [add for line in file.read_text().splitlines() if (add := json.loads(line).get("add"))]
        found += [filled(json.loads(add["stats"])) for add in adds[:1]]
    return found


def filled(stats: dict[str, Any]) -> dict[str, Any]:
    inner = {name: filled(value) if isinstance(value, dict) else value for name, value in stats.items()}
    return {name: value for name, value in inner.items() if value != {}}


def test_statistics_of_the_first_fields_are_those_of_delta(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (Warehouse(spark, str(tmp_path / name)) for name in ("ours", "theirs"))
    for each in (ours, theirs):
        prepared(each, format="json", schema=WIDE)
    monkeypatch.setattr(theirs, "_direct", lambda: None)
    groups = (WIDE_BODIES, [b"{}"], [b'{"in": {"x": "NaN"}, "part": "Infinity", "id": 1}'])
    own, other = (appended(each, *groups) for each in (ours, theirs))
    files = [pq.read_metadata(file) for file in Path(own).rglob("*.parquet")]
    assert {file.created_by.split()[0] for file in files} == {"parquet-cpp-arrow"}
    named = ours.property(topic_table("orders"), STATISTICS)
    assert named == ",".join([*TOPIC.stats, *(f"value.{name}" for name in FIRST)])
    stats = commits(own)
    assert stats[:2] == commits(other)[:2]
    assert stats[0]["minValues"]["value"]["in"] == {"x": -0.1, "deep": {"name": "ann", "small": -1}}
    assert stats[0]["nullCount"]["value"]["in"]["deep"] == {"name": 2, "small": 2}
    assert "value" not in stats[1]["maxValues"]
    assert stats[2]["maxValues"]["value"] == {"id": 1}, "NaN is above all numbers, and no number of JSON"


@pytest.mark.parametrize("few", [True, False])
def test_spark_skips_files_by_fields_of_the_value(spark: SparkSession, tmp_path: Path, few: bool) -> None:
    """Files of the driver, and of Spark's jobs."""
    tables = prepared(Warehouse(spark, str(tmp_path)), format="json", schema=WIDE)
    body = '{"id": %d, "amount": %d.5, "at": "2026-11-0%dT00:00:00Z", "day": "2026-11-0%d"}'
    place = appended(tables, *([(body % (n, n, n, n)).encode()] for n in range(1, 6)), few=few)
    read = spark.read.format("delta").load(place)
    for condition in (
        *("value.id = 3", "value.amount = 3.5", "value.day = '2026-11-03'"),
        "value.at BETWEEN '2026-11-03' AND '2026-11-03 12:00'",
    ):
        found = read.where(condition)
        assert (len(found.inputFiles()), [row["id"] for row in found.select("value.id").collect()]) == (1, [3])


def test_a_start_brings_a_table_to_the_statistics_of_its_schema(spark: SparkSession, lake: Lake) -> None:
    """Else each of its appends would be a Spark job. What the owner has chosen stays."""
    lake.settings |= {"topics.schemas": {}}
    bodies(lake, first=b"{}")
    lake.run(spark)
    tables, orders, own = Warehouse(spark, str(lake.warehouse)), topic_table("orders"), ",".join(TOPIC.stats)
    steps: dict[str, tuple[str, dict[str, Any]]] = {
        "id INT, x STRUCT<a: INT>": ("value.id,value.x.a", {"id": 1}),
        "x STRUCT<b: INT>": ("value.id,value.x.a,value.x.b", {"x": {"b": 2}}),
    }
    for number, (schema, (fields, least)) in enumerate(steps.items()):
        lake.settings |= schemas(schema)
        bodies(lake, **{f"m{number}": b'{"id": 1, "x": {"b": 2}}'})
        lake.run(spark)
        assert tables.property(orders, STATISTICS) == f"{own},{fields}"
        assert commits(tables.locate(orders))[-1]["minValues"]["value"] == least
    tables.set_property(orders, STATISTICS, "source_offset")
    lake.run(spark)
    assert tables.property(orders, STATISTICS) == "source_offset"


def test_an_erased_message_has_no_value(spark: SparkSession, lake: Lake) -> None:
    lake.op("COMMIT", "good", lake.half("good", msg_id="good", body=json.dumps(GOOD).encode(), keys="ann"))
    lake.run(spark)
    tables = Warehouse(spark, str(lake.warehouse))
    assert erasing.erase(tables, f"{lake.root}/none", erasing.ToErase("orders", "ann", None), 0, "asked")["half"] == 1
    (row,) = lake.topic("orders")
    assert (row["value"], row["value_error"], row["body"]) == (None, None, None)


def test_a_column_of_the_owner_is_not_taken_for_the_value(spark: SparkSession, lake: Lake) -> None:
    lake.settings |= {"topics.schemas": {}}
    bodies(lake, first=b"{}")
    lake.run(spark)
    spark.sql(f"ALTER TABLE delta.`{lake.warehouse}/topics/orders` ADD COLUMNS (value INT)")
    with pytest.raises(ConfigError, match="has a column value or value_error of its own"):
        lake.run(spark, topics_schemas=schemas("id INT")["topics.schemas"])


def test_a_field_keeps_its_type(spark: SparkSession, lake: Lake) -> None:
    bodies(lake, good=json.dumps(GOOD).encode())
    lake.run(spark)
    with pytest.raises(ConfigError, match=r"value\.id of orders is string, and bigint in its table"):
        lake.run(spark, topics_schemas=schemas("id STRING")["topics.schemas"])


@pytest.mark.parametrize(
    "schema",
    [
        *("id WHATEVER", "id", "INT", "v VARIANT", "at TIMESTAMP_NTZ", "`order id` INT", "`a.b` INT", "id INT, ID INT"),
        *("s STRUCT<a: ARRAY<STRUCT<`b-c`: INT>>>", "__unfit__ STRING"),
    ],
)
def test_a_schema_that_is_none_or_that_readers_refuse_is_refused_at_the_start(
    spark: SparkSession, lake: Lake, schema: str
) -> None:
    with pytest.raises(ConfigError, match=r"topics\.schemas: the schema of orders"):
        lake.run(spark, topics_schemas=schemas(schema)["topics.schemas"])
