"""Which files of a topic table are read next, how far their rows may be handed over, and in which windows.

Files overlap: compaction puts rows of many batches into one file, and a batch has a file in each queue. So files are
taken in the order of their first rows. Rows beyond the first row of any remaining file wait for a later window.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from commitlake.clients.consumer.cursor import Cursor, Keys
from commitlake.reading.parquet import Numbers, ParquetRows

WINDOW_BYTES = 16 << 20
"""Bytes of one window's rows in memory, decompressed; a single message may have more."""
_FIRST_ROWS = 256
"""Rows of the first window, when the size of a row is unknown; so the first message comes soon."""
_UNLIMITED = 1 << 62


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


@dataclass(frozen=True)
class FileStatistics:
    """Statistics of files, one element for each file. An unknown value stands for the widest range.

    Attributes:
        written: modification time, ms since epoch, UTC.
        size: bytes.
        first_batch: lowest batch_id; above all others if no row has one, -1 if unknown.
        last_batch: highest batch_id; -1 if no row has one, above all others if unknown.
        has_normal: whether the file may have rows without a batch.
        first_queue: lowest source_queue.
        last_queue: highest source_queue.
        first_offset: lowest source_offset.
        last_offset: highest source_offset.
    """

    written: Numbers
    size: Numbers
    first_batch: Numbers
    last_batch: Numbers
    has_normal: npt.NDArray[np.bool_]
    first_queue: Numbers
    last_queue: Numbers
    first_offset: Numbers
    last_offset: Numbers

    def where(self, kept: npt.NDArray[Any]) -> FileStatistics:
        """The files of a mask or of indexes."""
        return FileStatistics(**{name: column[kept] for name, column in vars(self).items()})

    def is_finished(self, index: int, cursor: Cursor) -> bool:
        """Whether the statistics of a file alone show that all its rows are before the cursor."""
        if self.last_batch[index] >= max(cursor.batch[0], 0):
            return False
        if not self.has_normal[index]:
            return True
        queue = int(self.first_queue[index])
        one_queue = self.last_queue[index] == queue
        return bool(one_queue and self.last_offset[index] < cursor.normal.get(queue, (-1, -1))[0])

    def is_ahead(self, index: int, cursor: Cursor) -> bool:
        """Whether the statistics of a file alone show that all its rows come after the cursor."""
        if self.last_batch[index] >= 0 and self.first_batch[index] <= cursor.batch[0]:
            return False
        if not self.has_normal[index]:
            return True
        queue = int(self.first_queue[index])
        one_queue = self.last_queue[index] == queue
        return bool(one_queue and self.first_offset[index] > cursor.normal.get(queue, (-1, -1))[0])

    def in_order(self) -> npt.NDArray[np.intp]:
        """Indexes of the files, roughly in the order of writing, but no file after one with later rows.

        So rows with and without a batch both advance. A file that compaction wrote late keeps its early place, so the
        files written in between are not all looked at.
        """
        turn = self.written.copy()
        for mine, first in self._sequences():
            order = mine[np.argsort(first[mine], kind="stable")]
            earliest = np.minimum.accumulate(self.written[order][::-1])[::-1]
            turn[order] = np.minimum(turn[order], earliest)
        return np.lexsort((self.written, self.first_offset, self.first_batch, turn))

    def _sequences(self) -> Iterator[tuple[npt.NDArray[np.intp], Numbers]]:
        """Files of each sequence of rows: all batches, then each source queue. With the values that order them."""
        yield np.flatnonzero(self.last_batch >= 0), self.first_batch
        for queue in np.unique(self.first_queue[self.has_normal]):
            yield np.flatnonzero(self.has_normal & (self.first_queue == queue)), self.first_offset

    def come_after(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """For each row, whether all rows of these files come after it."""
        first_batch = int(self.first_batch.min(initial=_UNLIMITED))
        allowed: npt.NDArray[np.bool_] = (keys.batch >= 0) & (keys.batch < first_batch)
        normal = keys.batch < 0
        for queue in np.unique(keys.queue[normal]):
            same = self.has_normal & (self.first_queue <= queue) & (queue <= self.last_queue)
            first_offset = int(self.first_offset[same].min(initial=_UNLIMITED))
            allowed |= normal & (keys.queue == queue) & (keys.offset < first_offset)
        return allowed
