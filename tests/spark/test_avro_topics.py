"""`topics.schemas` with the format avro: what a body becomes, and what does not fit its schema."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
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

from commitlake import config
from commitlake.errors import ConfigError
from commitlake.tables import Warehouse
from commitlake.tables.avro_bodies import _MARK
from commitlake.tables.typed_topics import prepare

if TYPE_CHECKING:
    from commitlake.kafka.embedded import EmbeddedBroker


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


@pytest.fixture
def lake(broker: EmbeddedBroker, tmp_path: Path, prefix: str) -> Iterator[Lake]:
    schemas = {
        "orders": {"format": "avro", "schema": json.loads(record(*FIELDS))},
        "clicks": {"format": "json", "schema": "id INT"},
    }
    with Lake(broker.bootstrap_servers, prefix, tmp_path, **{"topics.schemas": schemas}) as lake:
        yield lake


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
