"""Files of a few rows, written by the driver: in an append of 1 000 rows a Spark job takes nine tenths of the time.

The files are as Spark would write them: the same types and compression, and the statistics by which Delta skips files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from commitlake.protocol.clock import now_ms
from commitlake.tables.schemas import TableLayout

MOST_ROWS, MOST_BYTES = 20_000, 16 << 20
"""Limits of one landing or batch that the driver writes, which it holds in memory two or three times."""
_LONGEST, _LAST = 32, "\U0010ffff"
"""Characters of a string that statistics keep, as Delta's do, and the character that replaces the rest of a maximum."""
_CODECS = {name: name for name in ("gzip", "brotli", "zstd", "none")} | {"uncompressed": "none", "lz4_raw": "lz4"}
"""pyarrow's names of codecs by Spark's; a codec that only Spark knows becomes snappy, Spark's default."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Adds = list[dict[str, Any]]
"""Delta's `add` actions."""
Values = dict[str, str | None]
"""Values of partition columns, as Delta's log has them."""


def are_few(rows: int, size: int = 0) -> bool:
    """Whether the driver writes `rows` rows of `size` bytes in all; if not, a Spark job does."""
    return rows <= MOST_ROWS and size <= MOST_BYTES


def written(rows: pa.Table, layout: TableLayout, codec: str, write: Callable[[str, bytes], None]) -> Adds:
    """Writes a file for each value of the partition columns; until the caller commits them, no log names them.

    Partition columns have whole numbers. `write` writes a whole file to a path below the table.
    """
    return [_written(part, values, layout, codec, write) for values, part in _parts(rows, layout.partition_by)]


def _parts(rows: pa.Table, by: Sequence[str]) -> Iterator[tuple[Values, pa.Table]]:
    """The values of partition columns, and the rows without them."""
    if not by:
        yield {}, rows
        return
    column = rows[by[0]]
    for value in column.unique():
        own = rows.filter(pc.equal(column, value) if value.is_valid else pc.is_null(column)).drop_columns(by[0])
        text = str(value) if value.is_valid else None
        yield from (({by[0]: text, **values}, part) for values, part in _parts(own, by[1:]))


def _written(
    rows: pa.Table, values: Values, layout: TableLayout, codec: str, write: Callable[[str, bytes], None]
) -> dict[str, Any]:
    folders = [f"{name}={_NULL if value is None else value}" for name, value in values.items()]
    path = "/".join([*folders, f"part-00000-{uuid4()}.parquet"])
    file = pa.BufferOutputStream()
    # Dictionaries help only in large files, which maintenance makes.
    pq.write_table(rows, file, compression=_CODECS.get(codec, "snappy"), use_dictionary=False, store_schema=False)
    content = file.getvalue().to_pybytes()
    write(path, content)
    return {
        "path": path,
        "partitionValues": values,
        "size": len(content),
        "modificationTime": now_ms(),
        "dataChange": True,
        "stats": json.dumps(statistics(rows, layout.stats)),
    }


def statistics(rows: pa.Table, columns: Sequence[str]) -> dict[str, Any]:
    """A file's statistics in Delta's log, by which a query skips it; no row is ever outside of their bounds.

    The columns have numbers, strings, dates or timestamps; a field of a struct is named by its path, `value.id`.
    """
    own = {name: _column(rows, *name.split(".")) for name in columns}
    ends = {name: _ends(column) for name, column in own.items()}
    return {
        "numRecords": rows.num_rows,
        "minValues": _nested({name: low for name, (low, _) in ends.items() if low is not None}),
        "maxValues": _nested({name: high for name, (_, high) in ends.items() if high is not None}),
        "nullCount": _nested({name: column.null_count for name, column in own.items()}),
    }


def _column(rows: pa.Table, name: str, *below: str) -> pa.ChunkedArray:
    return pc.struct_field(rows[name], [*below]) if below else rows[name]


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by path, as objects in objects."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        *above, last = path.split(".")
        reduce(lambda within, name: within.setdefault(name, {}), above, found)[last] = value
    return found


def _ends(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """A lower and an upper bound of the column's values."""
    if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column), min_count=0).as_py():
        return None, None  # JSON has no infinity, and Spark takes NaN for the highest number
    is_time = pa.types.is_timestamp(column.type)
    low, high = pc.min_max(column.cast(pa.int64()) if is_time else column).as_py().values()
    if isinstance(low, str):
        is_cut = len(high) > _LONGEST and high[_LONGEST] != _LAST
        return low[:_LONGEST], high[:_LONGEST] + _LAST if is_cut else high
    if is_time and low is not None:
        return _moment(low // 1_000), _moment(-(-high // 1_000)) or _moment(high // 1_000)
    if isinstance(low, date):
        return low.isoformat(), high.isoformat()
    return (float(low), float(high)) if isinstance(low, Decimal) else (low, high)


def _moment(ms: int) -> str | None:
    """A time as Delta's statistics have it, None beyond the year 9999."""
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return None
