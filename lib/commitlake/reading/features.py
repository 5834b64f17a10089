"""Table features of Delta's protocol that change how the files of a table are read; others are rejected by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from commitlake.errors import WarehouseError

Numbers = npt.NDArray[np.integer[Any]]
_READ = ("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck")
_VECTORS, _WITHOUT_VECTORS = "deletionVectors", ("typeWidening", "vacuumProtocolCheck")
"""deltalake returns no deletion vectors of a table that has one of the latter."""
_PHYSICAL = b"delta.columnMapping.physicalName"


def refuse_unknown(table: DeltaTable, place: str) -> None:
    """Reject a table with a feature for readers that is not known here.

    Raises:
        WarehouseError: the table has one; the error names the features.
    """
    named = {name.removesuffix("-preview") for name in _named(table)}
    unknown = sorted(named - {*_READ})
    unknown += [f"{name} beside {_VECTORS}" for name in _WITHOUT_VECTORS if {name, _VECTORS} <= named]
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    unknown += ["columnMapping with delta.columnMapping.mode = id"] if mode == "id" else []
    if unknown:
        msg = (
            f"the table at {place} has a table feature that is not read here: {', '.join(unknown)}; read are "
            f"{', '.join(_READ)}; drop the feature (ALTER TABLE ... DROP FEATURE), or read the table with Spark"
        )
        raise WarehouseError(msg)


def columns(table: DeltaTable, place: str) -> tuple[pa.Schema, dict[str, str]]:
    """The columns of a table; and the names in its files, by name, of columns that have another one there.

    Raises:
        WarehouseError: a field inside a column has another name in the files.
    """
    fields = list(pa.schema(table.schema().to_arrow()))
    schema = pa.schema([field.remove_metadata() for field in fields])
    if table.metadata().configuration.get("delta.columnMapping.mode") != "name":
        return schema, {}
    inner = [field.name for field in fields if any(_inside(field.type))]
    if inner:
        msg = (
            f"the table at {place} has other names inside of the column {inner[0]} than its files (columnMapping), "
            "which are not read here; make that column again, or read the table with Spark"
        )
        raise WarehouseError(msg)
    return schema, dict(filter(None, map(_renamed, fields)))


def refuse_columns(place: str, names: Iterable[str], needed: Iterable[str]) -> None:
    """Reject a topic that lacks columns.

    Raises:
        WarehouseError: its owner has renamed or dropped one.
    """
    gone = sorted({*needed} - {*names})
    if gone:
        msg = (
            f"the table at {place} lacks the columns {', '.join(gone)}; nobody may rename or drop columns of a topic: "
            "rename them back, or restore the version before"
        )
        raise WarehouseError(msg)


def refuse_clone(paths: pa.ChunkedArray, place: str) -> None:
    """Reject a table whose log names files of another one.

    Raises:
        WarehouseError: the table is such a shallow clone.
    """
    if pc.any(pc.match_substring_regex(paths, "^[A-Za-z][A-Za-z0-9+.-]*:/")).as_py():
        msg = (
            f"the table at {place} is a shallow clone, with files elsewhere, which is not read here; make a deep clone"
        )
        raise WarehouseError(msg)


def by_logical_names(files: pa.Table, physical: Mapping[str, str]) -> pa.Table:
    """`files` with the table's column names; before, statistics have the names that columns have in the files."""
    logical = {name: column for column, name in physical.items()}
    parts = [name.partition(".") for name in files.column_names]
    names = [
        f"{kind}.{logical[rest]}" if rest in logical and kind != "partition" else f"{kind}{dot}{rest}"
        for kind, dot, rest in parts
    ]
    return files.rename_columns(names)


def deleted(table: DeltaTable, paths: Callable[[], Sequence[str]]) -> dict[str, Numbers]:
    """Numbers of the rows that deletion vectors take out of files, by file; `paths` names these as the log does."""
    if _VECTORS not in _named(table):
        return {}
    vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    found: dict[str, Numbers] = {}
    if vectors.num_rows:
        by_name: dict[str, list[str]] = {}
        for path in paths():
            by_name.setdefault(unquote(path).rpartition("/")[2], []).append(path)
        for uri, is_left in zip(vectors["filepath"].to_pylist(), vectors["selection_vector"], strict=True):
            numbers = np.flatnonzero(~is_left.values.to_numpy(zero_copy_only=False).astype(bool))
            place = unquote(uri)  # in a log Spark leaves letters such as é as they are, in a URI they are escaped
            same = by_name[place.rpartition("/")[2]]
            (path,) = same if len(same) == 1 else (each for each in same if place.endswith(unquote(each)))
            found[path] = numbers
    return found


def _named(table: DeltaTable) -> Iterable[str]:
    return table.protocol().reader_features or ()


def _renamed(field: pa.Field) -> tuple[str, str] | None:
    name = (field.metadata or {}).get(_PHYSICAL, field.name.encode()).decode()
    return (field.name, name) if name != field.name else None


def _inside(kind: pa.DataType) -> Iterator[tuple[str, str]]:
    """Fields inside of a type that have other names in the files."""
    for number in range(kind.num_fields):
        field = kind.field(number)
        renamed = _renamed(field)
        if renamed:
            yield renamed
        yield from _inside(field.type)
