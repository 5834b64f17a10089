"""Rows of a topic with a schema, appended without landings or batches; and of Avro a schema, a body, its encoding."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F
from tests.support import tables

from commitlake import config
from commitlake.spark.frames import of_rows
from commitlake.tables import Warehouse, topic_table
from commitlake.tables.schemas import TOPIC
from commitlake.tables.typed_topics import prepare


def long(number: int) -> bytes:
    """A whole number; also the length of a text, and the branch of a union."""
    left, found = number << 1 if number >= 0 else (-number << 1) - 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def text(value: str) -> bytes:
    return long(len(value.encode())) + value.encode()


def double(value: float) -> bytes:
    return struct.pack("<d", value)


def array(items: Sequence[bytes]) -> bytes:
    """A list, in one block."""
    return (long(len(items)) + b"".join(items) if items else b"") + b"\0"


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]}
FIELDS: list[tuple[str, Any]] = [
    ("id", "long"),
    ("amount", DECIMAL),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("rate", "double"),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}),
    ("tags", {"type": "array", "items": "string"}),
    ("note", ["null", "string"]),
    ("home", ADDRESS),
]
AT = datetime(2026, 11, 29, 5, tzinfo=UTC)
GOOD = {
    "id": long(17),
    "amount": long(2) + (1250).to_bytes(2, "big"),
    "at": long(int(AT.timestamp()) * 1_000),
    "day": long((date(2026, 11, 29) - date(1970, 1, 1)).days),
    "rate": double(0.5),
    "kind": long(1),
    "tags": array([text("a"), text("b")]),
    "note": long(1) + text("hello"),
    "home": text("Bern"),
}
VALUE = {
    "id": 17,
    "amount": Decimal("12.50"),
    "at": AT,
    "day": date(2026, 11, 29),
    "rate": 0.5,
    "kind": "OLD",
    "tags": ["a", "b"],
    "note": "hello",
    "home": {"city": "Bern"},
}


def record(*fields: tuple[str, Any], name: str = "Order") -> str:
    given = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": given})


def body(**changes: bytes) -> bytes:
    """A body of `FIELDS`."""
    return b"".join({**GOOD, **changes}.values())


def prepared(warehouse: Warehouse, **schema: Any) -> Warehouse:
    """The tables, to which the topic `orders` gets rows with such a schema from now on."""
    warehouse.values = prepare(warehouse, config.from_mapping({"topics.schemas": {"orders": schema}}).topics.schemas)
    return warehouse


def appended(warehouse: Warehouse, *groups: list[bytes], few: bool = True) -> str:
    """A commit for each group of bodies, in one queue; returns where the table is."""
    for group in groups:
        rows = [{"queue_id": 0, "body": body, "source": "half", "source_offset": n} for n, body in enumerate(group)]
        frame = of_rows(warehouse.spark, rows, TOPIC.schema).coalesce(1).withColumn("topic", F.lit("orders"))
        warehouse.append_to_topics(frame, ["orders"], {}, few=few)
    return warehouse.locate(topic_table("orders"))


def values(place: str) -> list[tuple[Any, str | None]]:
    """Value and error of each row, in the order of its commit."""
    found = tables.rows(Path(place).parents[1], f"topics/{Path(place).name}")
    return [(row["value"], row["value_error"]) for row in sorted(found, key=lambda row: int(row["source_offset"]))]
