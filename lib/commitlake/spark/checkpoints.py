"""Spark's checkpoints, which are scratch here: each run of a query has a directory of its own.

Off local disks an older coordinator may still use its directory when the next one starts.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from commitlake.config import Config
from commitlake.config.locations import is_local, local_path

_DAY_S = 86_400.0


def fresh(config: Config, query: str, epoch: int) -> str:
    """A directory for one run of a query; on a local file system the directories of older epochs are deleted."""
    parent = f"{config.scratch}/{query}"
    _delete(parent, lambda found: _epoch(found) < epoch)
    return f"{parent}/{epoch}-{uuid.uuid4().hex[:8]}"


def passing(config: Config, name: str) -> str:
    """A directory that the caller deletes; on a local file system one that a kill has left is deleted a day later."""
    parent, before = f"{config.scratch}/{name}", time.time() - _DAY_S
    _delete(parent, lambda found: found.stat().st_mtime < before)
    return f"{parent}/{uuid.uuid4().hex[:8]}"


def _epoch(found: Path) -> int:
    number = found.name.partition("-")[0]
    return int(number) if number.isdigit() else -1


def _delete(parent: str, is_left: Callable[[Path], bool]) -> None:
    for found in local_path(parent).glob("*") if is_local(parent) else ():
        with suppress(OSError):  # another process deletes it, too
            if is_left(found):
                shutil.rmtree(found, ignore_errors=True)
