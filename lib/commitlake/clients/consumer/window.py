"""Which files of a topic table are read next, and how far their rows may be handed over.

Files overlap: compaction puts rows of many batches into one, and a batch has a file in each queue. So the files of a
window are taken about in the order in which they were written, and rows beyond the first row of any file that is left
wait for a later window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commitlake.clients.consumer.cursor import Cursor, Keys

_UNLIMITED = 1 << 62
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FileStatistics:
    """What the statistics tell of files, one element for each.

    Attributes:
        written: ms since epoch, UTC.
        size: bytes.
        first_batch: lowest batch_id; above all where no row has one, -1 where it is not known.
        last_batch: highest batch_id; above all where it is not known.
        has_normal: whether rows without a batch may be there.
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
    """Whether the statistics of a file alone tell that all its rows are before the cursor."""
    if files.last_batch[index] >= max(cursor.batch[0], 0):
        return False
    if not files.has_normal[index]:
        return True
    queue = int(files.first_queue[index])
    one_queue = files.last_queue[index] == queue
    return bool(one_queue and files.last_offset[index] < cursor.normal.get(queue, (-1, -1))[0])


def taken(files: FileStatistics, budget: int) -> npt.NDArray[np.intp]:
    """Indexes of the files to read next: the first ones written, up to `budget` bytes and at least one."""
    order = np.argsort(files.written, kind="stable")
    fits = np.cumsum(files.size[order]) <= budget
    return order[: max(1, int(fits.sum()))]


def may_be_handed_over(keys: Keys, left: FileStatistics) -> npt.NDArray[np.bool_]:
    """Which rows come before every row of the files that are left."""
    first_batch = int(left.first_batch.min(initial=_UNLIMITED))
    allowed: npt.NDArray[np.bool_] = (keys.batch >= 0) & (keys.batch < first_batch)
    normal = keys.batch < 0
    for queue in np.unique(keys.queue[normal]):
        same = left.has_normal & (left.first_queue <= queue) & (queue <= left.last_queue)
        first_offset = int(left.first_offset[same].min(initial=_UNLIMITED))
        allowed |= normal & (keys.queue == queue) & (keys.offset < first_offset)
    return allowed
