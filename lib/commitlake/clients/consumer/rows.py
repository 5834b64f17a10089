"""Rows of a topic table in memory: what orders them, what identifies them, and their values one by one."""

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
"""What a receipt takes over of its message."""
NEEDED = (*RECEIPT_COLUMNS, "tags", "properties", "body", "visible_at")
"""Without one of these nobody reads a topic."""
Place = tuple[Any, ...]
"""Values of `PLACE_COLUMNS`."""


class Rows:
    """Rows of a topic table; a value becomes a Python object when somebody asks for it.

    Attributes:
        open: how many of them are handed over and not finished.
        of_receipts: `RECEIPT_COLUMNS` of all of them, which a receipt may keep without the bodies.
        is_moved: whether they were copied out of their windows.
    """

    def __init__(self, rows: pa.Table, *, is_moved: bool = False) -> None:
        self.is_moved = is_moved
        self.table = rows.combine_chunks()
        self.keys = keys_of(self.table)
        self.of_receipts = self.table.select(RECEIPT_COLUMNS)
        self.open = 0
        self._columns: dict[str, pa.ChunkedArray] = {}
        self.bytes_a_row = self.table.nbytes // max(1, self.table.num_rows)

    def value(self, column: str, row: int) -> Any:
        """One value."""
        values = self._columns.get(column)
        if values is None:
            values = self._columns[column] = self.table[column]
        return values[row].as_py()


class Chosen(NamedTuple):
    """Some rows of a table."""

    rows: Rows
    indexes: Sequence[int]


def keys_of(rows: pa.Table | pa.RecordBatch) -> Keys:
    """What the rows are ordered by."""
    sources = pc.cast(pc.equal(rows["source"], "messages"), pa.int8())  # a file may have millions of rows
    columns = (pc.fill_null(rows["batch_id"], -1), sources, *(rows[name] for name in PLACE_COLUMNS[1:]))
    return Keys(*map(np.asarray, columns))


def place_texts(rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.str_]:
    """`<source>-<queue>-<offset>-<index>` of each row: what identifies a message for ever."""
    parts = [pc.cast(rows[name], pa.string()) for name in PLACE_COLUMNS]
    return np.asarray(pc.binary_join_element_wise(*parts, "-").to_pylist(), str)


def place_of(row: Mapping[str, Any]) -> Place:
    """What identifies a message for ever, of a row or a receipt."""
    return tuple(row[name] for name in PLACE_COLUMNS)
