"""Tables for tests without Spark, written by deltalake: those of topics as a coordinator lays them out, and its own."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.pandas.types import to_arrow_schema

import commitlake
from commitlake.tables import TABLES, TOPIC

AT = 1_767_225_600_000_000
"""The begin of 2026, us since epoch."""
SCHEMA = to_arrow_schema(TOPIC.schema, timestamp_utc=True)


def message(number: int, *, batch: int | None = None, queue: int = 0, **more: Any) -> dict[str, Any]:
    """One row: of a transaction where `batch` is given, else a normal message."""
    source = "messages" if batch is None else "half"
    at = AT + number * 1_000
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
    columns = [{**dict.fromkeys(SCHEMA.names), **row, "properties": list(row["properties"].items())} for row in rows]
    return pa.Table.from_pylist(columns, SCHEMA)


def compact(warehouse: Path, topic: str) -> None:
    """Make few files of many, as maintenance does."""
    DeltaTable(str(warehouse / "topics" / topic)).optimize.compact()


def written(warehouse: Path, name: str, *rows: dict[str, Any]) -> None:
    """Append rows to one of the coordinator's own tables; what a row does not name is NULL."""
    schema = to_arrow_schema(TABLES[name].schema, timestamp_utc=True)
    table = pa.Table.from_pylist([{**dict.fromkeys(schema.names), **row} for row in rows], schema)
    write_deltalake(str(warehouse / name), table, mode="append")


def half(offset: int, keys: str, **more: Any) -> dict[str, Any]:
    """A row of `half`, of a transaction with one half message."""
    return {
        **{"queue": 0, "queue_offset": offset, "first_queue": 0, "first_offset": offset, "topic": "orders"},
        **{"transaction_id": f"t{offset}", "message_id": f"m{offset}", "producer_group": "shop", "keys": keys},
        **{"stored_at": AT + offset, **more},
    }


def consumer(warehouse: Path, topic: Any = "orders", **arguments: Any) -> Any:
    given = {"group": "points", "poll": "50ms", "lease": "3s", **arguments}
    return commitlake.consume({"warehouse": str(warehouse)}, topic, **given)


def rest(warehouse: Path, most: int = 1_000, **arguments: Any) -> list[str]:
    """What a group has not done, and does now."""
    with consumer(warehouse, follow=False, **arguments) as messages:
        return [each.message_id for each in islice(messages, most) if each.done() is None]


def put_off(warehouse: Path, *names: str, after: str = "1h", most: int = 16) -> None:
    """Does what a group has not done, but for these messages: they come again, or are dead letters with `most=1`."""
    with consumer(warehouse, follow=False) as messages:
        for each in messages:
            each.retry(after, most) if each.message_id in names else each.done()


@contextmanager
def running(messages: Any, handle: Any) -> Iterator[None]:
    """A consumer in a thread of its own."""

    def read() -> None:
        with messages:
            for each in messages:
                handle(each)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        messages.stop()
        thread.join(30)
        assert not thread.is_alive()
