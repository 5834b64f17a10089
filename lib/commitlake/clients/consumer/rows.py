"""Rows of a topic table in memory: the keys that order them, the places that identify them, and single values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from commitlake.clients.consumer.cursor import Keys

ORDER_COLUMNS = ("queue_id", "batch_id", "source", "source_queue", "source_offset", "source_index")
PLACE_COLUMNS = ("source", "source_queue", "source_offset", "source_index")
RECEIPT_COLUMNS = (*("queue_id", "message_id", "transaction_id", "keys", "batch_id"), *PLACE_COLUMNS)
"""Columns of its message that a receipt copies."""
NEEDED = (*RECEIPT_COLUMNS, "tags", "properties", "body", "visible_at")
"""Columns that a topic's table must have to be read."""
Place = tuple[Any, ...]
"""Values of `PLACE_COLUMNS`."""


class Rows:
    """Rows of a topic table; a value becomes a Python object when it is asked for.

    Attributes:
        open: how many of the rows are handed over and not finished.
        of_receipts: `RECEIPT_COLUMNS` of the rows, which a receipt can keep in memory without the bodies.
    """

    def __init__(self, rows: pa.Table) -> None:
        self.table = rows.combine_chunks()
        self.keys = keys_of(self.table)
        self.of_receipts = self.table.select(RECEIPT_COLUMNS)
        self.open = 0
        self._columns: dict[str, pa.ChunkedArray] = {}
        self.bytes_a_row = self.table.nbytes // max(1, self.table.num_rows)

    def value(self, column: str, row: int) -> Any:
        """The value of a column in a row; None if the table has no such column."""
        values = self._columns.get(column)
        if values is None and column in self.table.column_names:
            values = self._columns[column] = self.table[column]
        return None if values is None else values[row].as_py()


class Chosen(NamedTuple):
    """The rows at `indexes` of a table."""

    rows: Rows
    indexes: Sequence[int]


def keys_of(rows: pa.Table | pa.RecordBatch) -> Keys:
    """The keys that order the rows."""
    sources = pc.cast(pc.equal(rows["source"], "messages"), pa.int8())  # a file may have millions of rows
    columns = (pc.fill_null(rows["batch_id"], -1), sources, *(rows[name] for name in PLACE_COLUMNS[1:]))
    return Keys(*map(np.asarray, columns))


def position_of(place: Place) -> str:
    """`<source>-<queue>-<offset>-<index>`, the text of a place."""
    return "-".join(map(str, place))


def place_texts(rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.str_]:
    """`position_of` each row."""
    parts = [pc.cast(rows[name], pa.string()) for name in PLACE_COLUMNS]
    return np.asarray(pc.binary_join_element_wise(*parts, "-").to_pylist(), str)


def place_of(row: Mapping[str, Any]) -> Place:
    """The values of `PLACE_COLUMNS` in a row or a receipt, which identify a message for ever."""
    return tuple(row[name] for name in PLACE_COLUMNS)
