"""Tables for tests without Spark, written by deltalake: those of topics as a coordinator lays them out, and its own."""

from __future__ import annotations

import json
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


Action = dict[str, Any]
_READER_ONLY = {"minReaderVersion": 3, "minWriterVersion": 7}


def require(place: Path, *names: str, configuration: Mapping[str, str] | None = None) -> None:
    """Let a table have table features."""
    meta = _newest(place, "metaData")
    meta["configuration"].update(configuration or {})
    _commit(place, {"protocol": {**_READER_ONLY, "readerFeatures": names, "writerFeatures": names}}, {"metaData": meta})


def delete(place: Path, numbers: Sequence[int]) -> None:
    """Delete rows of the file that was written last, by a deletion vector."""
    require(place, "deletionVectors", configuration={"delta.enableDeletionVectors": "true"})
    add, now = _newest(place, "add"), int(time.time() * 1_000)
    (place / "vector.bin").write_bytes(_file(_bitmap(numbers)))
    vector = {"storageType": "p", "pathOrInlineDv": (place / "vector.bin").as_uri(), "offset": 1}
    vector |= {"sizeInBytes": len(_bitmap(numbers)), "cardinality": len(numbers)}
    removed = {"path": add["path"], "partitionValues": add["partitionValues"], "size": add["size"]}
    removed |= {"deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}
    _commit(place, {"remove": removed}, {"add": {**add, "deletionVector": vector}})


def clone(place: Path, to: Path) -> None:
    """Make a shallow clone, as Spark does: a log of its own, which names the files of the other table."""
    (to / "_delta_log").mkdir(parents=True)
    (to / "_delta_log" / f"{0:020}.json").write_text((place / "_delta_log" / f"{0:020}.json").read_text())
    add = _newest(place, "add")
    _commit(to, {"add": {**add, "path": f"{place.as_uri()}/{add['path']}"}})


def rename(place: Path, column: str, to: str) -> None:
    """Give a column another name, which its files do not have."""
    meta = _newest(place, "metaData")
    schema = json.loads(meta["schemaString"])
    for number, field in enumerate(schema["fields"]):
        known = field["metadata"].get("delta.columnMapping.physicalName", field["name"])
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": known}
        field["name"] = to if field["name"] == column else field["name"]
    mapped = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(len(schema["fields"]))}
    meta["configuration"].update(mapped)
    meta["schemaString"] = json.dumps(schema)
    meta["partitionColumns"] = [to if name == column else name for name in meta["partitionColumns"]]
    _commit(place, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": meta})


def add_field(place: Path, column: str, name: str) -> None:
    """Give a struct a text as its last field, as SQL does."""
    meta = _newest(place, "metaData")
    schema = json.loads(meta["schemaString"])
    (struct_type,) = (field["type"] for field in schema["fields"] if field["name"] == column)
    struct_type["fields"].append({"name": name, "type": "string", "nullable": True, "metadata": {}})
    _commit(place, {"metaData": {**meta, "schemaString": json.dumps(schema)}})


def _bitmap(numbers: Sequence[int]) -> bytes:
    """Numbers below 65 536 as Delta's array of one Roaring bitmap, of one array container."""
    values = sorted(numbers)
    roaring = struct.pack(f"<IIHHI{len(values)}H", 12_346, 1, 0, len(values) - 1, 16, *values)
    return struct.pack("<iqi", 1_681_511_377, 1, 0) + roaring


def _file(vector: bytes) -> bytes:
    return b"\x01" + struct.pack(">i", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))


def _newest(place: Path, kind: str) -> Action:
    commits = (file.read_text().splitlines() for file in sorted((place / "_delta_log").glob("*.json")))
    found: Action = [action for lines in commits for action in map(json.loads, lines) if kind in action][-1][kind]
    return found


def _commit(place: Path, *actions: Action) -> None:
    log = place / "_delta_log"
    version = max(int(file.stem) for file in log.glob("*.json")) + 1
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, ({"commitInfo": {}}, *actions))) + "\n")
