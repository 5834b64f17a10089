"""The rows that come next of some files of a topic, in order, and the windows in which they are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from commitlake.clients.consumer.cursor import Cursor, Keys
from commitlake.reading.parquet import Numbers, ParquetRows

WINDOW_BYTES = 16 << 20
"""Bytes of rows in memory, decompressed, for one window; one message may have more."""
_FIRST_ROWS = 256
"""Of a window whose rows' size is not known yet, so that the first message comes soon."""


@dataclass(frozen=True)
class Window:
    """Rows in the order in which they are handed over.

    Attributes:
        rows: all columns of the topic table.
        ends: behind the last of them, for each queue.
    """

    rows: pa.Table
    ends: Mapping[int, Cursor]


@dataclass(frozen=True)
class Part:
    """Rows of one file.

    Attributes:
        keys: what they are ordered by.
        numbers: where they are in the file.
        rows: gives what reads them; None where there is a table.
        table: all rows of the file, where they are few; else none.
    """

    keys: Keys
    numbers: Numbers
    rows: Callable[[], ParquetRows] | None
    table: pa.Table

    def take(self, numbers: Numbers, most_bytes: int) -> pa.Table:
        """Rows by their numbers, which ascend: the first of them up to `most_bytes`, and at least one."""
        return self.table.take(numbers) if self.rows is None else self.rows().take(numbers, most_bytes)


class Plan:
    """Reads the rows window by window.

    Args:
        queues: that are read.
        parts: rows of files.
        keys: of all parts, one after the other.
        allowed: which of them may be handed over.
        finishes: paths of the files of which nothing is left once all that was read.
    """

    def __init__(
        self,
        queues: Collection[int],
        parts: list[Part],
        keys: Keys,
        allowed: npt.NDArray[np.bool_],
        finishes: Sequence[str] = (),
    ) -> None:
        self.queues, self.finishes = set(queues), finishes
        chosen = np.flatnonzero(allowed)
        order = chosen[keys.where(chosen).order()] if len(chosen) < len(keys.batch) else keys.order()
        is_sorted = bool((np.diff(order) == 1).all())
        part_of = np.repeat(np.arange(len(parts)), [len(part.numbers) for part in parts])
        self._parts, self._keys = parts, keys if len(order) == len(keys.batch) and is_sorted else keys.where(order)
        self._part_of = part_of[order]
        self._numbers = np.concatenate([part.numbers for part in parts])[order]
        self._done = 0
        self._most_rows = len(order) if all(part.rows is None for part in parts) else _FIRST_ROWS

    def is_over(self) -> bool:
        """Whether all rows were in a window."""
        return self._done == len(self._numbers)

    def next(self) -> Window:
        """The next rows."""
        table = self._read(self._most_rows)
        if all(part.rows is None for part in self._parts):
            self._parts = []  # they are all in this window
        else:
            self._most_rows = max(1, WINDOW_BYTES // max(1, table.nbytes // table.num_rows))
        rows = slice(self._done, self._done + table.num_rows)
        self._done += table.num_rows
        return Window(table, self._ends(rows, table["queue_id"].to_numpy()))

    def _read(self, count: int) -> pa.Table:
        """The next rows, up to `count` and to the bytes of a window: all up to the first one that did not fit."""
        part_of, numbers = (each[self._done : self._done + count] for each in (self._part_of, self._numbers))
        found, places, chosen = [], [], np.unique(part_of).tolist()
        for part in chosen:
            mine = np.flatnonzero(part_of == part)
            mine = mine[np.argsort(numbers[mine], kind="stable")]
            found.append(self._parts[part].take(numbers[mine], WINDOW_BYTES // len(chosen)))
            places.append(mine[: found[-1].num_rows])
        order = np.argsort(np.concatenate(places), kind="stable")
        there = np.concatenate(places)[order]
        whole = int(np.argmin(np.append(there == np.arange(len(there)), False)))
        if whole == 0:
            return self._read(max(1, count // 4))  # the first row stands far behind others in its file
        table = pa.concat_tables(found)
        if whole == table.num_rows and np.array_equal(order, np.arange(whole)):
            return table
        return table.take(order[:whole])

    def _ends(self, rows: slice, queues: Numbers) -> dict[int, Cursor]:
        keys, ends = self._keys.where(np.arange(rows.start, rows.stop)), {}
        for queue in np.unique(queues).tolist():
            ends[queue] = Cursor()
            ends[queue].advance_to_end(keys.where(queues == queue))
        return ends
