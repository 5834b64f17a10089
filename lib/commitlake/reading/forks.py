"""Forked processes: a fork does not copy threads, those of deltalake included."""

from __future__ import annotations

import tempfile

from deltalake import DeltaTable

from commitlake.errors import WarehouseError

SPAWN = (
    "start such processes by `spawn` (multiprocessing.get_context('spawn')), or before the first message, or table, is "
    "asked for"
)


def refuse_fork() -> None:
    """Reject a process that was forked from one that used deltalake, whose threads are missing here.

    Raises:
        WarehouseError: this is such a process.
    """
    try:
        DeltaTable.is_deltatable(tempfile.gettempdir())  # deltalake looks for its threads first; 16 us
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # which is no Exception, and can't be imported
            raise
        msg = f"this process was forked from one that used deltalake, which does not work in both; {SPAWN}"
        raise WarehouseError(msg) from error
