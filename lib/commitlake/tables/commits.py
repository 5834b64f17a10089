"""The newest commits of a table's Delta log, without a listing: that takes 0.1 ms a file, of up to 280 000 files.

Delta also reads a table's whole state before a scan, in 0.3 s: a start that scanned 1 000 topics took 5 minutes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

from commitlake.spark.files import FileSystem


def file_name(version: int) -> str:
    """Name of a commit's file in the table's log."""
    return f"{version:020}.json"


def newest_first(log: FileSystem) -> Iterator[tuple[int, str]]:
    """Version and text of a table's commits, down to the oldest one that the log still holds."""
    for version in count(newest(log), -1):
        text = log.read(file_name(version)) if version >= 0 else None
        if text is None:
            return
        yield version, text


def newest(log: FileSystem) -> int:
    """The version of a table's newest commit, -1 without one.

    The search begins at the checkpoint, since older commits may be gone, with steps that double and then halve.
    """
    version, step = _begin(log), 1
    while log.exists(file_name(version + step)):
        version, step = version + step, 2 * step
    while step > 1:
        step //= 2
        version += step if log.exists(file_name(version + step)) else 0
    return version


def _begin(log: FileSystem) -> int:
    try:
        version = int(json.loads(log.read("_last_checkpoint") or "null")["version"])
    except (LookupError, TypeError, ValueError, OverflowError):  # there is none, or it is damaged
        version = 0
    if log.exists(file_name(version)):
        return version
    return max((int(name) for name in _names(log) if name.isdigit()), default=-1)


def _names(log: FileSystem) -> list[str]:
    return [name.removesuffix(".json") for name in log.names("")]
