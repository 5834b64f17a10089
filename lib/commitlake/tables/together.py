"""Whether the tables of a warehouse are of one moment; those of a copy made while a coordinator ran may not be.

`positions` is written last in a landing, `batches` in a batch. Their commits name the tables that were written before,
each with its newest landing or batch. A table that ends before that one was copied earlier, and the rows that it lacks
would never land again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from commitlake.errors import WarehouseError
from commitlake.reading.markers import marker_of
from commitlake.spark.files import FileSystem
from commitlake.tables import commits
from commitlake.tables.names import TableName

LAST = {"positions": "landing_id", "batches": "batch_id"}
"""The tables that are written last, each with the field of markers that numbers landings or batches."""
_TABLES = "tables"
COPIED = (
    "this is a copy of a warehouse whose coordinator ran meanwhile; bring back one that was made by commitlake backup, "
    "or while none ran"
)
_MOST = 16
"""Tables that a commit names, those with the newest numbers: a start reads the log of each, in some 50 ms."""
Marker = Mapping[str, Any]


class Written:
    """The newest landing and batch that this run has written to each table."""

    def __init__(self) -> None:
        self._newest: dict[str, dict[str, int]] = {field: {} for field in LAST.values()}

    def note(self, name: str, marker: Marker | None) -> Marker | None:
        """Notes the marker of an append and returns it; for a table of `LAST` with the tables written before it."""
        if marker is None:
            return None
        if name in LAST:
            newest = sorted(list(self._newest[LAST[name]].items()), key=lambda each: -each[1])
            return {**marker, _TABLES: dict(newest[:_MOST])} if newest else marker
        for field, newest_of in self._newest.items():
            newest_of.pop(str(name), None)  # an older number proves nothing now, and a start would search for it long
            if field in marker:
                newest_of[str(name)] = marker[field]
        return marker


def markers(log: FileSystem | None) -> Iterator[tuple[int, Marker]]:
    """Version and marker of a table's commits, the newest first; without those that have none."""
    for version, text in commits.newest_first(log) if log else ():
        if marker := marker_of(text):
            yield version, marker


def check(log_of: Callable[[str], FileSystem | None]) -> None:
    """Rejects tables of different moments.

    Raises:
        WarehouseError: a table lacks what another one says is complete.
    """
    said = {field: _named(log_of(last)) for last, field in LAST.items()}
    for last, field in LAST.items():
        for name, number in said[field].items():
            newest = _newest(log_of(name), field, number)
            if newest is not None and newest < number:
                what = f"the table {name} is older than {last}, which says that {field} {number} is complete there"
                every = {field: numbers[name] for field, numbers in said.items() if name in numbers}
                msg = f"{what}; it ends with {newest}: {_what_to_do(name, every)}"
                raise WarehouseError(msg)


def _named(log: FileSystem | None) -> Mapping[str, int]:
    found: Mapping[str, int] = next((marker.get(_TABLES, {}) for _, marker in markers(log)), {})
    return found


def _newest(log: FileSystem | None, field: str, number: int) -> int | None:
    """The greatest number of a field in a table's markers; the search ends once it reaches `number`.

    A topic's owner may write any number into a marker.
    None if no marker has the field: the commits were cleaned up, or the topic's owner created the table again.
    """
    most = None
    for _, marker in markers(log):
        if isinstance(newest := marker.get(field), int):
            most = newest if most is None else max(most, newest)
            if most >= number:
                break
    return most


def _what_to_do(name: str, said: Mapping[str, int]) -> str:
    """Only a topic's table has an owner, who may want the older one."""
    if TableName(name).topic is None:
        return COPIED
    return (
        f"{COPIED}. Or you have put back an older table yourself, and want to go on without the rows that it lacks: "
        f"set spark.databricks.delta.commitInfo.userMetadata to '{json.dumps(said)}' and make a commit to it, such as "
        "ALTER TABLE ... SET TBLPROPERTIES ('older' = 'true'), and delete the topic's rows from the table forwarded"
    )
