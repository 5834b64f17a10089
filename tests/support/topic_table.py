"""Topic tables for tests of consumers, written by deltalake as a coordinator lays them out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from commitlake.tables import TOPIC

_KINDS = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
_KINDS |= {"timestamp": pa.timestamp("us", "UTC"), "map<string,string>": pa.map_(pa.string(), pa.string())}
SCHEMA = pa.schema([(field.name, _KINDS[field.dataType.simpleString()]) for field in TOPIC.schema])


def message(number: int, *, batch: int | None = None, queue: int = 0, **more: Any) -> dict[str, Any]:
    """One row: of a transaction where `batch` is given, else a normal message."""
    source = "messages" if batch is None else "half"
    at = 1_767_225_600_000_000 + number * 1_000
    return {
        "queue_id": queue,
        "message_id": f"m{number}",
        "transaction_id": None if batch is None else f"m{number}",
        "keys": f"k{number}",
        "properties": {},
        "body": str(number).encode(),
        "source": source,
        "source_queue": 0,
        "source_offset": number,
        "source_index": 0,
        "stored_at": at,
        "visible_at": at,
        "batch_id": batch,
        **more,
    }


def write(warehouse: Path, topic: str, rows: Iterable[dict[str, Any]]) -> None:
    """Append rows to a topic's table in one commit, as one batch does."""
    place = str(warehouse / "topics" / topic)
    if not DeltaTable.is_deltatable(place):
        stats = {"delta.dataSkippingStatsColumns": ",".join(TOPIC.stats), "delta.appendOnly": "true"}
        DeltaTable.create(place, SCHEMA, partition_by=list(TOPIC.partition_by), configuration=stats)
    write_deltalake(place, table(rows), mode="append")


def table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Rows as the table has them."""
    columns = [{**dict.fromkeys(SCHEMA.names), **row, "properties": list(row["properties"].items())} for row in rows]
    return pa.Table.from_pylist(columns, SCHEMA)


def compact(warehouse: Path, topic: str) -> None:
    """Make few files of many, as maintenance does."""
    DeltaTable(str(warehouse / "topics" / topic)).optimize.compact()
