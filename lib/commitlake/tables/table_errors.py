"""The errors of a table that can't be read or written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from commitlake import errors
from commitlake.config.locations import is_local, local_path
from commitlake.reading import damage

_T = TypeVar("_T")
_NOT_THERE = (
    "PATH_NOT_FOUND",
    "DELTA_TABLE_NOT_FOUND",  # at a path without a log
    "TABLE_OR_VIEW_NOT_FOUND",  # in a catalog
    "DELTA_SCHEMA_NOT_SET",  # as a stream of a path
    "DELTA_MISSING_DELTA_TABLE",  # for what changes a table at a path
    "DELTA_PATH_DOES_NOT_EXIST",  # the same in a catalog whose entry is still there
)
"""Spark's names for a table that is not there."""
_DAMAGED = (
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_STATE_RECOVER_ERROR",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE",
    "DELTA_MISSING_PART_FILES",
)
"""Delta's names for a log that lacks files; none of them says of which table."""


@contextmanager
def reading(place: str, topic: str | None) -> Iterator[None]:
    """A context in which Spark opens a table, of a topic or a fixed one.

    Raises:
        NoTableError: the table does not exist.
        WarehouseError: its log is damaged.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:  # Java's IllegalStateException comes as Py4JError
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        wrong = damage.of_log(local_path(place)) if is_local(place) else ""
        if wrong or condition in _DAMAGED:
            raise errors.WarehouseError(damage.told(place, wrong or errors.root_reason(error))) from error
        if condition not in _NOT_THERE:
            raise
        message = f"there is no table at {place}; check `warehouse`, or bring it back from a copy"
        if topic is not None:  # from `forwarded`, too: it counts the versions of the table that is gone
            message += f"; or, without its rows, delete those of {topic!r} from `destinations` and `forwarded`"
        raise errors.NoTableError(message) from None


def explain_failure(place: str, write: Callable[[], _T]) -> _T:
    """Runs a write to a table; returns its result.

    Raises:
        FencedError: a newer coordinator has started.
        SetupError: Java has run out of memory.
        WarehouseError: the write failed; the error names the table.
    """
    try:
        return write()
    except errors.FencedError:
        raise
    except Exception as error:
        reason = errors.root_reason(error)
        if errors.OUT_OF_MEMORY in reason:
            raise errors.SetupError(errors.out_of_memory(reason)) from error
        message = (
            f"cannot write to the table at {place}: {reason}; fix the cause and start again: nothing "
            "is lost, the next start goes on from the tables"
        )
        raise errors.WarehouseError(message) from error
