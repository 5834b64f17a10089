"""Whether a landing may have written to a table after another one, by the newest commits of its log alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

from py4j.protocol import Py4JJavaError

from commitlake.reading.markers import marker_of
from commitlake.spark.files import FileSystem
from commitlake.tables import commits

AFTER = "after"
"""In the marker of a batch's commit to a topic: the newest landing that may have written to the table before."""
_APPEND = '"operation":"WRITE"'
"""A marker of another commit says nothing: an owner's session may still have the one that a start has asked for."""
_MOST = 20
"""Commits to look at: above the newest of a landing or a batch are those of maintenance and of a topic's owner."""


def written_after(log_of: Callable[[str], FileSystem | None], names: Sequence[str], landing_id: int) -> list[str]:
    """Those tables to which a later landing may have written.

    Args:
        log_of: the log of a table.
        names: the tables.
        landing_id: the landing; -1 where none is known, then all are.
    """
    if landing_id < 0:
        return list(names)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda name: landed_after(log_of(name), landing_id), names)
        return [name for name, is_later in zip(names, found, strict=True) if is_later]


def landed_after(log: FileSystem | None, landing_id: int) -> bool:
    """Whether a table's log may have a commit of a later landing; also where that is not known."""
    if log is None:
        return True
    with suppress(ValueError, Py4JJavaError):  # a damaged file, which Delta may do without
        for _, text in islice(commits.newest_first(log), _MOST):
            marker = marker_of(text) if _APPEND in text else {}
            found = marker.get("landing_id", marker.get(AFTER))
            if isinstance(found, int):
                return found > landing_id
    return True
