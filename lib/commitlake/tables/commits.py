"""The commits of a table's Delta log: reading them, and the deletion of old ones; without a listing of the log.

A listing takes 0.1 ms a file, of up to 280 000 files. Delta also reads a table's whole state before a scan, in 0.3 s: a
start that scanned 1 000 topics took 5 minutes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, islice
from typing import Any
from urllib.parse import unquote

from delta.tables import DeltaTable
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from commitlake.reading.markers import commit_file, marker_of
from commitlake.spark.files import FileSystem
from commitlake.spark.jvm import scala, some_long

log = logging.getLogger(__name__)

_GRANULARITY = "org.apache.spark.sql.delta.TruncationGranularity$"
LAST_CHECKPOINT = "_last_checkpoint"
AFTER = "after"
"""In the marker of a batch's commit to a topic: the newest landing that may have written to the table before."""
_APPEND = '"operation":"WRITE"'
"""Only markers of appends count: an owner's session may go on writing the marker that a start has asked for."""
_MOST_LATER = 20
"""Commits to look at: after the newest one of a landing or a batch come those of maintenance and a topic's owner."""
_MOST_KEPT = 5_000
"""Commits to look at, each a small file: maintenance compacts a table long before it has so many."""


def newest_first(log: FileSystem) -> Iterator[tuple[int, str]]:
    """Version and text of a table's commits, down to the oldest one that the log still holds."""
    for version in count(newest(log), -1):
        text = log.read(commit_file(version)) if version >= 0 else None
        if text is None:
            return
        yield version, text


def newest(log: FileSystem) -> int:
    """The version of a table's newest commit, -1 without one.

    The search begins at the checkpoint, since older commits may be gone, with steps that double and then halve.
    """
    version, step = _begin(log), 1
    while log.exists(commit_file(version + step)):
        version, step = version + step, 2 * step
    while step > 1:
        step //= 2
        version += step if log.exists(commit_file(version + step)) else 0
    return version


def _begin(log: FileSystem) -> int:
    version = checkpoint_version(log.read(LAST_CHECKPOINT), otherwise=0)
    if log.exists(commit_file(version)):
        return version
    names = [name.removesuffix(".json") for name in log.names("")]
    return max((int(name) for name in names if name.isdigit()), default=-1)


def checkpoint_version(note: str | bytes | None, otherwise: int) -> int:
    """The version in the text of `_last_checkpoint`; `otherwise` where there is none, or it is damaged."""
    try:
        return int(json.loads(note or "null")["version"])
    except (LookupError, TypeError, ValueError, OverflowError):  # Delta works without that file
        return otherwise


def written_after(log_of: Callable[[str], FileSystem | None], names: Sequence[str], landing_id: int) -> list[str]:
    """The tables to which a later landing may have written; all of them where none is known (-1)."""
    if landing_id < 0:
        return list(names)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda name: landed_after(log_of(name), landing_id), names)
        return [name for name, is_later in zip(names, found, strict=True) if is_later]


def landed_after(log: FileSystem | None, landing_id: int) -> bool:
    """Whether a table's log may have a commit of a later landing; True, too, where that is not known."""
    if log is None:
        return True
    with suppress(ValueError, Py4JJavaError):  # a damaged file, which Delta may do without
        for _, text in islice(newest_first(log), _MOST_LATER):
            marker = marker_of(text) if _APPEND in text else {}
            found = marker.get("landing_id", marker.get(AFTER))
            if isinstance(found, int):
                return found > landing_id
    return True


def are_kept(spark: SparkSession, place: str, since: int, newest: int) -> bool | None:
    """Whether a stream can begin at a version: all later commits are in the log, and the files that they added there.

    Compaction replaces many files by one, and VACUUM deletes the replaced files later, the oldest first. So only the
    files that the first compaction replaced are looked up. If more than `_MOST_KEPT` commits come before it, nothing is
    known, and the answer is False.

    Returns:
        None when the log is not below `place`, where a table without a catalog has it.
    """
    files = FileSystem(spark, place)
    if actions_of(files, newest) is None:
        return None
    added: set[str] = set()
    for version in range(since, min(newest, since + _MOST_KEPT) + 1):
        actions = actions_of(files, version)
        if actions is None:
            return False
        taken = added & set(_paths(actions, "remove"))
        if taken:
            return all(files.exists(unquote(path)) for path in taken)
        added |= set(_paths(actions, "add"))
    return newest <= since + _MOST_KEPT


def actions_of(files: FileSystem, version: int) -> list[dict[str, Any]] | None:
    """The actions of a commit of the table whose directory `files` is; None where the log lacks it."""
    text = files.read(f"_delta_log/{commit_file(version)}")
    return None if text is None else [json.loads(line) for line in text.split("\n") if line]


def _paths(actions: list[dict[str, Any]], kind: str) -> Iterator[str]:
    return (str(action[kind]["path"]) for action in actions if kind in action)


def forget(table: DeltaTable, keep_ms: int) -> None:
    """Deletes commits older than `keep_ms` from the log, as far as a checkpoint covers them.

    Delta itself does so only at midnight, and in the middle of a commit. Each poll of a stream, and each append of
    Delta's writer, lists the whole log: 1.5 s for the 43 000 commits of a day, one every 2 s, and 0.1 s for those of an
    hour. Another vendor's Delta may lack this method; there the log stays as it is.
    """
    spark = table.toDF().sparkSession
    try:
        none, minute = (scala(spark, name) for name in ("scala.None$", _GRANULARITY))
        found = table._jdt.deltaLog()
        found.cleanUpExpiredLogs(found.update(False, none, none), none, some_long(spark, keep_ms), minute.MINUTE())
    except (Py4JError, TypeError) as error:
        log.debug("the log is left to Delta: %s", error)
