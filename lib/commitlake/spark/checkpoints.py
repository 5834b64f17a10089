"""Spark's checkpoints, which are scratch here: each run of a query has a directory of its own.

Off local disks an older coordinator may still be using its one when the next starts.
"""

from __future__ import annotations

import shutil
import time
import uuid
from pathlib import Path

from commitlake.config import Config
from commitlake.config.locations import is_local, local_path

_DAY_S = 86_400.0


def fresh(config: Config, query: str, epoch: int) -> str:
    """A directory for one run of a query; on a local file system what older epochs have left is deleted.

    Args:
        config: says where checkpoints are.
        query: the name of the query.
        epoch: number of the coordinator's start.
    """
    parent = f"{config.scratch}/{query}"
    if is_local(parent):
        _delete_older(local_path(parent), epoch)
    return f"{parent}/{epoch}-{uuid.uuid4().hex[:8]}"


def passing(config: Config, name: str) -> str:
    """A directory that who asks for it deletes; what a kill has left on a local file system is deleted a day later.

    Args:
        config: says where checkpoints are.
        name: what it is for.
    """
    parent, before = f"{config.scratch}/{name}", time.time() - _DAY_S
    for left in local_path(parent).glob("*") if is_local(parent) else ():
        if left.stat().st_mtime < before:
            shutil.rmtree(left, ignore_errors=True)
    return f"{parent}/{uuid.uuid4().hex[:8]}"


def _delete_older(parent: Path, epoch: int) -> None:
    for older in parent.iterdir() if parent.exists() else ():
        number = older.name.partition("-")[0]
        if not number.isdigit() or int(number) < epoch:
            shutil.rmtree(older, ignore_errors=True)
