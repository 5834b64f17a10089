"""Whether a stream can begin at a version of a table: later commits, or the files that they added, may be gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession

from commitlake.spark.files import FileSystem
from commitlake.tables.commits import file_name

_MOST = 5_000
"""Commits to look at, each a small file: maintenance compacts a table long before it has so many."""


def are_kept(spark: SparkSession, place: str, since: int, newest: int) -> bool | None:
    """Whether all commits from a version on are in the log, and the files that they added are there.

    Compaction replaces many files by one, and VACUUM deletes the replaced files later, the oldest first. So only the
    files that the first compaction replaced are looked up. If more than `_MOST` commits come before it, nothing is
    known, and the answer is False.

    Args:
        spark: any session of the application.
        place: of the table.
        since: the first version that is needed.
        newest: the newest version.

    Returns:
        None when the log is not below `place`, where a table without a catalog has it.
    """
    files = FileSystem(spark, place)
    if _commit(files, newest) is None:
        return None
    added: set[str] = set()
    for version in range(since, min(newest, since + _MOST) + 1):
        actions = _commit(files, version)
        if actions is None:
            return False
        taken = added & set(_paths(actions, "remove"))
        if taken:
            return all(files.exists(unquote(path)) for path in taken)
        added |= set(_paths(actions, "add"))
    return newest <= since + _MOST


def _commit(files: FileSystem, version: int) -> list[dict[str, Any]] | None:
    text = files.read(f"_delta_log/{file_name(version)}")
    return None if text is None else [json.loads(line) for line in text.split("\n") if line]


def _paths(actions: list[dict[str, Any]], kind: str) -> Iterator[str]:
    return (str(action[kind]["path"]) for action in actions if kind in action)
