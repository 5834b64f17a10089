"""Chooses the files of a topic table that are read next, and how far their rows may be handed over.

Files overlap: compaction puts rows of many batches into one file, and a batch has a file in each queue. So files are
taken in the order of their first rows. Rows beyond the first row of any remaining file wait for a later window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commitlake.clients.consumer.cursor import Cursor, Keys

_UNLIMITED = 1 << 62
Numbers = npt.NDArray[np.int64]


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


def is_finished(files: FileStatistics, index: int, cursor: Cursor) -> bool:
    """Whether the statistics of a file alone show that all its rows are before the cursor."""
    if files.last_batch[index] >= max(cursor.batch[0], 0):
        return False
    if not files.has_normal[index]:
        return True
    queue = int(files.first_queue[index])
    one_queue = files.last_queue[index] == queue
    return bool(one_queue and files.last_offset[index] < cursor.normal.get(queue, (-1, -1))[0])


def is_ahead(files: FileStatistics, index: int, cursor: Cursor) -> bool:
    """Whether the statistics of a file alone show that all its rows come after the cursor."""
    if files.last_batch[index] >= 0 and files.first_batch[index] <= cursor.batch[0]:
        return False
    if not files.has_normal[index]:
        return True
    queue = int(files.first_queue[index])
    one_queue = files.last_queue[index] == queue
    return bool(one_queue and files.first_offset[index] > cursor.normal.get(queue, (-1, -1))[0])


def in_order(files: FileStatistics) -> npt.NDArray[np.intp]:
    """Indexes of the files, roughly in the order of writing, but no file after one with later rows.

    So rows with and without a batch both advance. A file that compaction wrote late keeps its early place, so the files
    written in between are not all looked at.
    """
    turn = files.written.copy()
    for mine, first in _sequences(files):
        order = mine[np.argsort(first[mine], kind="stable")]
        earliest = np.minimum.accumulate(files.written[order][::-1])[::-1]
        turn[order] = np.minimum(turn[order], earliest)
    return np.lexsort((files.written, files.first_offset, files.first_batch, turn))


def _sequences(files: FileStatistics) -> Iterator[tuple[npt.NDArray[np.intp], Numbers]]:
    """Files of each sequence of rows (all batches, then each source queue), and the values that order first rows."""
    yield np.flatnonzero(files.last_batch >= 0), files.first_batch
    for queue in np.unique(files.first_queue[files.has_normal]):
        yield np.flatnonzero(files.has_normal & (files.first_queue == queue)), files.first_offset


def fitting(sizes: Numbers, budget: int) -> int:
    """How many of the first files have at most `budget` bytes together; at least one."""
    return max(1, int((np.cumsum(sizes) <= budget).sum()))


def may_be_handed_over(keys: Keys, left: FileStatistics) -> npt.NDArray[np.bool_]:
    """For each row, whether it comes before all rows of the remaining files `left`."""
    first_batch = int(left.first_batch.min(initial=_UNLIMITED))
    allowed: npt.NDArray[np.bool_] = (keys.batch >= 0) & (keys.batch < first_batch)
    normal = keys.batch < 0
    for queue in np.unique(keys.queue[normal]):
        same = left.has_normal & (left.first_queue <= queue) & (queue <= left.last_queue)
        first_offset = int(left.first_offset[same].min(initial=_UNLIMITED))
        allowed |= normal & (keys.queue == queue) & (keys.offset < first_offset)
    return allowed
