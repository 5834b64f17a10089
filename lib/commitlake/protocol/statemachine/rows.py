"""The fixed-width rows that a segment reads, keeps and reports. All numpy: 16 384 offsets take a few array operations.

The rows that are still open *are* the state. Input from Delta, the state store, and a rebuild from the tables use the
same layout. Strings are 64-bit hashes, times are ms since epoch, UTC, and -1 means absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from commitlake.protocol.encoding import OFFSET_BITS

Rows = npt.NDArray[Any]
"""A structured array of `ROW` or `EVENT`."""
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SEGMENT_SIZE = 16_384
"""Consecutive offsets that share a state: enough to call Python rarely, and few enough (1.7 MB) to rewrite it fast."""

ROW = np.dtype(
    [
        ("kind", "i1"),
        ("admin", "i1"),
        ("from_check", "i1"),
        ("listed", "i2"),  # how many further half messages an op lists
        ("part_queue", "i4"),
        ("op_queue", "i4"),
        ("immunity", "i4"),  # s
        ("checks", "i4"),  # asked in this round; of an UNKNOWN the check that it answers
        ("repeat", "i4"),  # how often the check that is out was repeated; absent: none is out
        ("round", "i4"),
        ("offset", "i8"),  # of the first half message, or of the delayed message
        ("part_offset", "i8"),
        ("op_offset", "i8"),
        ("tid", "i8"),  # hash of the transaction id; of the message id where src is messages
        ("grp", "i8"),  # hash of the producer group; of the topic where src is messages
        ("stored", "i8"),
        ("delay", "i8"),
        ("deliver_at", "i8"),
        ("since", "i8"),  # start of the round of a half message
        ("due", "i8"),  # next deadline of a half message; op, part: 0 once it was unmatched
    ]
)

EVENT = np.dtype(
    [
        ("event", "i4"),
        ("queue", "i4"),
        ("offset", "i8"),
        ("first_offset", "i8"),  # of the first half message; its queue is the segment's
        ("op_queue", "i4"),
        ("op_offset", "i8"),
        ("op_stored", "i8"),  # of the op that decided
        ("admin", "i4"),
        ("state", "i4"),
        ("reason", "i4"),
        ("checks", "i4"),
        ("repeat", "i4"),
        ("round", "i4"),
        ("deliver_at", "i8"),
        ("kind", "i4"),  # of the unmatched op
        ("last", "i4"),  # 1: what the unmatched op or part waits for is missing if it has not landed
    ]
)

ABSENT = -1


def empty(dtype: np.dtype[Any] = ROW) -> Rows:
    """No rows."""
    return np.empty(0, dtype=dtype)


def make(dtype: np.dtype[Any], n: int, **columns: Any) -> Rows:
    """New rows.

    Args:
        dtype: `ROW` or `EVENT`.
        n: how many.
        columns: values by column name, one for all rows or `n`; a column that is not given is absent (-1).
    """
    rows = np.empty(n, dtype=dtype)
    for name in dtype.names or ():
        rows[name] = columns.get(name, ABSENT)
    return rows


def concat(parts: Sequence[Rows], dtype: np.dtype[Any] = ROW) -> Rows:
    """All rows of `parts`, in order."""
    kept = [part for part in parts if len(part)]
    return np.concatenate(kept) if kept else empty(dtype)


def pack(rows: Rows) -> bytes:
    """One or more `ROW`s as bytes. A column with the same value in all rows, as in most columns, is kept once.

    A delayed message takes 40 bytes of 105, an open half message 48.
    """
    names = ROW.names or ()
    same = [bool((rows[name] == rows[name][0]).all()) for name in names]
    columns = [rows[name][:1] if one else rows[name] for name, one in zip(names, same, strict=True)]
    return b"".join([len(rows).to_bytes(8), bytes(same), *[column.tobytes() for column in columns]])


def unpack(data: bytes) -> Rows:
    """The rows that `pack` made `data` of."""
    names = ROW.names or ()
    rows, at = np.empty(int.from_bytes(data[:8]), dtype=ROW), 8 + len(names)
    for name, one in zip(names, data[8:at], strict=True):
        column = np.frombuffer(data, ROW[name], 1 if one else len(rows), at)
        rows[name] = column
        at += column.nbytes
    return rows


def coordinate(queue: npt.ArrayLike, offset: npt.ArrayLike) -> Longs:
    """One sortable number for (queue, offset), as `tables.columns.coordinate_sql` makes it in Spark."""
    return (np.asarray(queue, dtype=np.int64) << OFFSET_BITS) | np.asarray(offset, dtype=np.int64)


def find(sorted_values: Longs, wanted: Longs) -> npt.NDArray[np.intp]:
    """Index of each `wanted` value in the unique `sorted_values`, -1 where it is missing."""
    if not len(sorted_values):
        return np.full(len(wanted), -1, dtype=np.intp)
    at = np.minimum(np.searchsorted(sorted_values, wanted), len(sorted_values) - 1)
    return np.where(sorted_values[at] == wanted, at, -1)
