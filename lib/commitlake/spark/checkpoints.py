"""Spark's checkpoints, which are scratch here: each run of a query has a directory of its own.

A newer coordinator deletes those of older ones. One that still runs has lost the warehouse by then, and ends.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress

from pyspark.sql import SparkSession

from commitlake.config import Config
from commitlake.config.locations import is_local
from commitlake.spark.files import FileSystem

_DAY_S = 86_400


def fresh(spark: SparkSession, config: Config, query: str, epoch: int) -> str:
    """A directory for one run of a query; the directories of older epochs are deleted."""
    return _made(spark, f"{config.scratch}/{query}", epoch, epoch)


def passing(spark: SparkSession, config: Config, name: str) -> str:
    """A directory that the caller deletes; one that a kill has left is deleted a day or two later."""
    today = int(time.time() // _DAY_S)
    return _made(spark, f"{config.scratch}/{name}", today, today - 1)


def _made(spark: SparkSession, parent: str, number: int, first: int) -> str:
    """A directory with a number, whose parent loses those with numbers below `first`."""
    files = FileSystem(spark, parent)
    left = [name for name in files.directories("") if _number(name) < first]
    if is_local(parent):
        _delete(files, left)
    elif left:  # an object store takes seconds for some thousand files
        threading.Thread(target=_delete, args=[files, left], name="commitlake-tidies", daemon=True).start()
    return f"{parent}/{number}-{uuid.uuid4().hex[:8]}"


def _number(name: str) -> int:
    number = name.partition("-")[0]
    return int(number) if number.isdigit() else -1


def _delete(files: FileSystem, names: list[str]) -> None:
    for name in names:
        with suppress(Exception):  # another process deletes it, too, or the store is away: the next start does it
            files.delete(name)
