"""What a fork takes along, and what it does not: threads, those of deltalake included."""

from __future__ import annotations

import tempfile

from deltalake import DeltaTable

from commitlake.errors import WarehouseError

SPAWN = (
    "start such processes by `spawn` (multiprocessing.get_context('spawn')), or before the first message, or table, is "
    "asked for"
)


def refuse_fork() -> None:
    """Refuse a process that was forked from one that used deltalake, whose threads are missing here.

    Raises:
        WarehouseError: it was.
    """
    try:
        DeltaTable.is_deltatable(tempfile.gettempdir())  # it looks for its threads first; 16 us
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # which is no Exception, and can't be imported
            raise
        msg = f"this process was forked from one that used deltalake, which does not work in both; {SPAWN}"
        raise WarehouseError(msg) from error
