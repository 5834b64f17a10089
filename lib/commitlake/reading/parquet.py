"""Rows of one Parquet file in little memory, however large the file and its row groups are.

pyarrow's datasets hold a row group at a time, and a compacted file of 67 MB may have one of 2.4 GB.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_BATCH_ROWS, _BATCH_BYTES = 1_024, 2 << 20
"""Limits of the rows that are decoded at once; their bytes are estimated by the mean size of the file's rows."""
_KEY_BATCH_ROWS = 65_536
_BUFFER = 256 << 10
Numbers = npt.NDArray[np.integer[Any]]


class ParquetRows:
    """Reads rows of a file by their numbers. To continue where the last call ended is cheap, to go back is not.

    Args:
        source: the file.
        schema: of the table; a column that the file lacks is null.
        constants: values of the columns by which the table is partitioned.
        large: a binary column whose values may be large; repeated ones stay in memory once.
        deleted: numbers of rows of the file that the table no longer has; the rows that are left count from 0.
        physical: names in the file, by name, of columns that have another one there.
    """

    def __init__(
        self,
        source: pa.NativeFile,
        schema: pa.Schema,
        constants: Mapping[str, Any],
        large: str,
        deleted: Numbers | None = None,
        physical: Mapping[str, str] = types.MappingProxyType({}),
    ) -> None:
        metadata = pq.read_metadata(source)
        self._physical = physical
        repeated = [name for name in [self._named(large)] if _has_dictionary(metadata, name)]
        self._file = pq.ParquetFile(
            source, metadata=metadata, buffer_size=_BUFFER, pre_buffer=False,
            read_dictionary=repeated, coerce_int96_timestamp_unit="us",
        )  # fmt: skip
        self._schema, self._constants, self._large = schema, constants, large
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        self._batch_rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * metadata.num_rows // max(1, size)))
        self._begins = np.cumsum([0, *counts])
        self._left = None if deleted is None else np.delete(np.arange(self._begins[-1]), deleted)
        self._group, self._at = -1, 0
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: pa.RecordBatch | None = None

    @property
    def count(self) -> int:
        """How many rows the file has."""
        return int(self._begins[-1]) if self._left is None else len(self._left)

    def columns(self, names: Sequence[str], *, are_small: bool = True) -> Iterator[pa.RecordBatch]:
        """All rows of some columns, batch by batch; of small columns, batches have many rows."""
        given = [name for name in map(self._named, names) if name in self._file.schema_arrow.names]
        batches = self._file.iter_batches(_KEY_BATCH_ROWS if are_small else self._batch_rows, columns=given)
        schema, begin = pa.schema([self._schema.field(name) for name in names]), 0
        for batch in batches:
            rows = self._conformed(batch, schema)
            yield rows if self._left is None else rows.take(pa.array(_between(self._left, begin, len(batch))))
            begin += len(batch)

    def take(self, numbers: Numbers, most_bytes: int) -> pa.Table:
        """Rows by their numbers, which ascend: the first of them up to `most_bytes`, and at least one."""
        found: list[pa.RecordBatch] = []
        numbers = numbers if self._left is None else self._left[numbers]
        left, taken = most_bytes, 0
        while taken < len(numbers) and left > 0:
            batch, begin = self._batch_of(int(numbers[taken]))
            until = int(np.searchsorted(numbers, begin + batch.num_rows))
            rows = _chosen(batch, numbers[taken:until] - begin)
            ends = np.cumsum(_sizes(rows, self._large))
            fits = int(np.searchsorted(ends, left, "right"))
            fits = max(fits, 0 if found else 1)
            if fits:
                found.append(_decoded(rows.slice(0, fits), self._schema))
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
                self._batch = self._conformed(next(self._batches), self._schema)
        except BaseException:
            self._group = -1  # an iterator that has failed is exhausted, and `_at` no longer fits the batch
            raise
        return self._batch, self._at

    def _named(self, column: str) -> str:
        """The column's name in the file."""
        return self._physical.get(column, column)

    def _conformed(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """The batch with the schema's columns and types; dictionaries stay, so repeated values are in memory once.

        Types change before rows are taken: Arrow can't take rows of some types, such as a writer's `string_view`.
        """
        columns = {}
        for field in schema:
            if field.name in self._constants:
                column = pa.repeat(pa.scalar(self._constants[field.name], field.type), batch.num_rows)
            elif self._named(field.name) in batch.schema.names:
                column = batch[self._named(field.name)]
            else:
                column = pa.nulls(batch.num_rows, field.type)
            is_fit = column.type == field.type or pa.types.is_dictionary(column.type)
            columns[field.name] = column if is_fit else pc.cast(column, field.type)
        return pa.RecordBatch.from_pydict(columns)


def _decoded(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        column if column.type == field.type else pc.cast(column, field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _between(numbers: Numbers, begin: int, count: int) -> Numbers:
    """The numbers among the `count` rows from `begin` on, counted from `begin`; the numbers ascend."""
    first, last = np.searchsorted(numbers, (begin, begin + count))
    return numbers[first:last] - begin


def _chosen(batch: pa.RecordBatch, indexes: Numbers) -> pa.RecordBatch:
    if indexes[-1] - indexes[0] + 1 == len(indexes):
        return batch.slice(indexes[0], len(indexes))  # copies nothing
    return batch.take(pa.array(indexes))


def _has_dictionary(metadata: pq.FileMetaData, column: str) -> bool:
    """Whether a column's values may be stored once for many rows: decoded, they may take any multiple of the file."""
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
