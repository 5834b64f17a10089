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
"""Only markers of appends count: an owner's session may go on writing the marker that a start has asked for."""
_MOST = 20
"""Commits to look at: after the newest one of a landing or a batch come those of maintenance and a topic's owner."""


def written_after(log_of: Callable[[str], FileSystem | None], names: Sequence[str], landing_id: int) -> list[str]:
    """The tables to which a later landing may have written.

    Args:
        log_of: returns the log of a table.
        names: the tables.
        landing_id: the landing; with -1, where none is known, all tables are returned.
    """
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
        for _, text in islice(commits.newest_first(log), _MOST):
            marker = marker_of(text) if _APPEND in text else {}
            found = marker.get("landing_id", marker.get(AFTER))
            if isinstance(found, int):
                return found > landing_id
    return True
