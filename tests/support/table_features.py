"""What an owner may do to a Delta table by Spark, written into its log by Delta's protocol; the tests need no Spark."""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
