"""What a fork takes along, and what it does not: threads, those of deltalake included."""

from __future__ import annotations

import tempfile

from deltalake import DeltaTable

from commitlake.errors import ConsumerError

_SPAWN = (
    "start such processes by `spawn` (multiprocessing.get_context('spawn')), or before the first message is asked for"
)
FORKED = (
    "this consumer has begun in another process, from which this one was forked; its messages come, and are finished, "
    f"only there; {_SPAWN}, and make a consumer in each"
)


def refuse_fork() -> None:
    """Refuse a process that was forked from one that used deltalake, whose threads are missing here.

    Raises:
        ConsumerError: it was.
    """
    try:
        DeltaTable.is_deltatable(tempfile.gettempdir())  # it looks for its threads first
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # which is no Exception, and can't be imported
            raise
        msg = f"this process was forked from one that used deltalake, which does not work in both; {_SPAWN}"
        raise ConsumerError(msg) from error
