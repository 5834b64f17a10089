"""A plan of the next rows of some files of a topic, in order, and the windows in which they are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from commitlake.clients.consumer.cursor import Cursor, Keys
from commitlake.reading.parquet import Numbers, ParquetRows

WINDOW_BYTES = 16 << 20
"""Bytes of one window's rows in memory, decompressed; a single message may have more."""
_FIRST_ROWS = 256
"""Rows of the first window, when the size of a row is unknown; so the first message comes soon."""


@dataclass(frozen=True)
class Window:
    """Rows in the order in which they are handed over.

    Attributes:
        rows: all columns of the topic table.
        ends: cursors behind the last row of each queue.
    """

    rows: pa.Table
    ends: Mapping[int, Cursor]


@dataclass(frozen=True)
class Part:
    """Rows of one file behind a cursor.

    Attributes:
        keys: keys that order the rows.
        numbers: numbers of the rows in the file.
        rows: opens the file for reading; None if `table` has the rows.
        table: all rows of a small file; empty if `rows` reads them.
    """

    keys: Keys
    numbers: Numbers
    rows: Callable[[], ParquetRows] | None
    table: pa.Table

    def take(self, numbers: Numbers, most_bytes: int) -> pa.Table:
        """Rows by their ascending numbers. Those read from the file end at `most_bytes`, but are at least one."""
        return self.table.take(numbers) if self.rows is None else self.rows().take(numbers, most_bytes)


class Plan:
    """Reads the rows window by window.

    Args:
        queues: the queues that are read.
        parts: the rows, by file.
        keys: keys of all parts, one after the other.
        allowed: for each key, whether its row may be handed over.
        finishes: paths of the files that have no rows left when the plan is over.
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
        """Whether the windows so far had all rows."""
        return self._done == len(self._numbers)

    def next(self) -> Window:
        """The next window, of at least one row."""
        table = self._read(self._most_rows)
        if all(part.rows is None for part in self._parts):
            self._parts = []  # this window has all rows, so free them
        else:
            self._most_rows = max(1, WINDOW_BYTES // max(1, table.nbytes // table.num_rows))
        rows = slice(self._done, self._done + table.num_rows)
        self._done += table.num_rows
        return Window(table, self._ends(rows, table["queue_id"].to_numpy()))

    def _read(self, count: int) -> pa.Table:
        """The next rows, at most `count` and `WINDOW_BYTES`; they end before the first row that does not fit."""
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
            return self._read(max(1, count // 4))  # rows before it in its file took all bytes, so ask for fewer rows
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
