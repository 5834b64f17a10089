"""Rows of one Parquet file in little memory, however large the file and its row groups are.

pyarrow's datasets hold a row group at a time, and a compacted file of 67 MB may have one of 2.4 GB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_BATCH_ROWS, _BATCH_BYTES = 1_024, 2 << 20
"""Of what is decoded at once; the bytes by the mean size of the file's rows."""
_KEY_BATCH_ROWS = 65_536
_BUFFER = 256 << 10
Numbers = npt.NDArray[np.integer[Any]]


class ParquetRows:
    """Reads rows of a file by their numbers. Reading on where the last call ended is cheap, going back is not.

    Args:
        source: the file.
        schema: of the table; a column that the file lacks is null.
        constants: values of the columns by which the table is partitioned.
        large: a binary column whose values may be large; repeated ones stay in memory once.
    """

    def __init__(self, source: pa.NativeFile, schema: pa.Schema, constants: Mapping[str, Any], large: str) -> None:
        metadata = pq.read_metadata(source)
        repeated = [large] if _has_dictionary(metadata, large) else []
        self._file = pq.ParquetFile(
            source, metadata=metadata, buffer_size=_BUFFER, pre_buffer=False,
            read_dictionary=repeated, coerce_int96_timestamp_unit="us",
        )  # fmt: skip
        self._schema, self._constants, self._large = schema, constants, large
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        self._batch_rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * metadata.num_rows // max(1, size)))
        self._begins = np.cumsum([0, *counts])
        self._group, self._at = -1, 0
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: pa.RecordBatch | None = None

    @property
    def count(self) -> int:
        """How many rows the file has."""
        return int(self._begins[-1])

    def columns(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows of some small columns, batch by batch."""
        given = [name for name in names if name in self._file.schema_arrow.names]
        batches = self._file.iter_batches(_KEY_BATCH_ROWS, columns=given)
        schema = pa.schema([self._schema.field(name) for name in names])
        return (self._conformed(batch, schema) for batch in batches)

    def take(self, numbers: Numbers, most_bytes: int) -> pa.Table:
        """Rows by their numbers, which ascend: the first of them up to `most_bytes`, and at least one."""
        found: list[pa.RecordBatch] = []
        left, taken = most_bytes, 0
        while taken < len(numbers) and left > 0:
            batch, begin = self._batch_of(int(numbers[taken]))
            until = int(np.searchsorted(numbers, begin + batch.num_rows))
            rows = _chosen(batch, numbers[taken:until] - begin)
            ends = np.cumsum(_sizes(rows, self._large))
            fits = int(np.searchsorted(ends, left, "right"))
            fits = max(fits, 0 if found else 1)
            if fits:
                found.append(self._conformed(rows.slice(0, fits), self._schema))
            taken += fits
            left = left - int(ends[fits - 1]) if fits == len(ends) else 0
        return pa.Table.from_batches(found, self._schema)

    def _batch_of(self, number: int) -> tuple[pa.RecordBatch, int]:
        """The batch that has a row, and the number of its first row."""
        group = int(np.searchsorted(self._begins, number, "right")) - 1
        if group != self._group or number < self._at:
            self._group, self._at, self._batch = group, int(self._begins[group]), None
            self._batches = self._file.iter_batches(self._batch_rows, row_groups=[group])
        try:
            while self._batch is None or number >= self._at + self._batch.num_rows:
                self._at += self._batch.num_rows if self._batch is not None else 0
                self._batch = next(self._batches)
        except BaseException:
            self._group = -1  # an iterator that has failed is over, and `_at` is not that of the batch any more
            raise
        return self._batch, self._at

    def _conformed(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        columns = []
        for field in schema:
            if field.name in self._constants:
                columns.append(pa.repeat(pa.scalar(self._constants[field.name], field.type), batch.num_rows))
            elif field.name in batch.schema.names:
                column = batch[field.name]
                columns.append(column if column.type == field.type else pc.cast(column, field.type))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _chosen(batch: pa.RecordBatch, indexes: Numbers) -> pa.RecordBatch:
    if indexes[-1] - indexes[0] + 1 == len(indexes):
        return batch.slice(indexes[0], len(indexes))  # copies nothing
    return batch.take(pa.array(indexes))


def _has_dictionary(metadata: pq.FileMetaData, column: str) -> bool:
    """Whether values of a column may stand once for many rows, so that decoded ones take any multiple of the file."""
    for group in range(metadata.num_row_groups):
        chunks = metadata.row_group(group)
        for number in range(chunks.num_columns):
            chunk = chunks.column(number)
            if chunk.path_in_schema == column and chunk.has_dictionary_page:
                return True
    return False


def _sizes(rows: pa.RecordBatch, large: str) -> Numbers:
    """Bytes of each row: of its large value, and its share of the rest."""
    if large not in rows.schema.names or not rows.num_rows:
        return np.full(rows.num_rows, rows.nbytes // max(1, rows.num_rows), np.int64)
    values = rows[large]
    rest = rows.drop_columns([large]).nbytes // rows.num_rows + 8
    is_repeated = pa.types.is_dictionary(values.type)
    lengths = pc.binary_length(values.dictionary).take(values.indices) if is_repeated else pc.binary_length(values)
    sizes: Numbers = np.asarray(pc.fill_null(lengths, 0), np.int64) + rest
    return sizes
