"""`commitlake backup`: a copy of a warehouse as of one moment, even while its coordinator runs.

A coordinator that starts on the copy takes it for a warehouse whose last coordinator was killed. So no row may be there
without the rows that were written before it. The logs of tables that are written last are listed first. Commits of
batches after the newest complete one are left out, by their markers.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from commitlake.config.locations import is_local, local_path
from commitlake.errors import WarehouseError
from commitlake.reading import damage
from commitlake.reading.markers import commit_file, marker_of

_FIRST = ("forwarded", "open_rows", "batches", "positions")
"""Listed first: rows that they name in others must be there. A batch's row is written after its landing's position."""
_OTHERS = (
    *("rejected", "reentries", "discarded", "checks", "deliveries", "transactions", "delayed", "half", "op"),
    *("maintenance", "epochs", "destinations"),
)
"""Maintenance deletes from `op` first, and before that writes to `maintenance` which rows may be gone."""
TABLES = (*_FIRST, *_OTHERS)
"""All tables of a warehouse but those of topics."""
_OF_LANDINGS_ONLY = ("half", "op", "delayed")
_BATCH, _LANDING = "batch_id", "landing_id"
_OWNERS = ("_delta_log/_sidecars/*", "**/deletion_vector_*.bin")
"""Further files of a table to which an owner has given v2 checkpoints or deletion vectors."""


class Backup(NamedTuple):
    """The extent of a copy: its newest complete batch and landing (-1: none), number of tables, and bytes."""

    batch_id: int
    landing_id: int
    tables: int
    bytes: int


class _Log:
    """The log of a table as it was when it was listed.

    Attributes:
        place: the table's directory.
        version: of the newest commit that counts.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._versions = sorted((int(file.stem) for file in _commits(place)), reverse=True)
        if not self._versions:
            msg = f"backup: there is no table at {place}; start the coordinator of this version there once"
            raise WarehouseError(msg)
        self.version = self._versions[0]

    def commits(self) -> Iterator[tuple[int, Mapping[str, int]]]:
        """Version and marker of each commit, the newest first."""
        for version in self._versions:
            marker = marker_of((self.place / "_delta_log" / commit_file(version)).read_text())
            yield version, {name: number for name, number in marker.items() if isinstance(number, int)}

    def newest(self, field: str) -> int:
        """The newest number of a field of the markers, -1 where none has it."""
        return next((marker[field] for _, marker in self.commits() if field in marker), -1)

    def end_before(self, field: str, number: float) -> float:
        """Leaves out the first commit whose field is above `number`, and all after it.

        Returns:
            The first landing that is left out with them, infinity where none is.
        """
        later = [*takewhile(lambda commit: commit[1].get(field, math.inf) > number, self.commits())]
        above = [version for version, marker in later if field in marker]
        if not above:
            return math.inf
        self.version = min(above) - 1
        landings = [
            float(marker[_LANDING]) for version, marker in later if version > self.version and _LANDING in marker
        ]
        return min(landings, default=math.inf)


def _commits(place: Path) -> Iterator[Path]:
    """Files of commits, without checkpoints that a topic's owner may have as JSON."""
    return (file for file in (place / "_delta_log").glob("*.json") if file.stem.isdigit())


def backup(warehouse: str, to: Path) -> Backup:
    """Copies all up to the newest complete batch to a directory that does not exist yet.

    Raises:
        WarehouseError: the warehouse is no local directory, or a table is damaged or unreadable; or `to` is there.
    """
    if not is_local(warehouse):
        msg = f"backup: {warehouse} is no local directory; take a snapshot of the storage while no coordinator runs"
        raise WarehouseError(msg)
    if to.exists():
        msg = f"backup: {to} is there already; name a directory that is not"
        raise WarehouseError(msg)
    root, partial = local_path(warehouse), to.with_name(f"{to.name}.partial")
    damage.refuse(root, TABLES)
    logs = {name: _Log(root / name) for name in TABLES}
    topics = _topics(logs["destinations"])
    logs |= {name: _Log(root / name) for name in sorted({*topics.values()})}
    batch, landing = _cut(logs)
    shutil.rmtree(partial, ignore_errors=True)
    size = sum(_copy(log, partial / name) for name, log in logs.items())
    _forget_later(partial / "forwarded", {topic: logs[name].version for topic, name in topics.items()})
    partial.rename(to)
    return Backup(batch, landing, len(logs), size)


def _topics(destinations: _Log) -> dict[str, str]:
    """The table of each topic."""
    table = DeltaTable(destinations.place, version=destinations.version)
    rows = table.to_pyarrow_table(columns=["topic", "table"]).to_pylist()
    return {row["topic"]: row["table"] for row in rows}


def _cut(logs: Mapping[str, _Log]) -> tuple[int, int]:
    """Leaves out commits after the newest complete batch; returns that batch, and the newest landing that is whole.

    The next start finds the records of a landing that is not whole, as after a kill.
    """
    batch = logs["batches"].newest(_BATCH)
    ledger = [log for name, log in logs.items() if name not in (*_FIRST, *_OF_LANDINGS_ONLY)]
    first_left_out = min(log.end_before(_BATCH, batch) for log in ledger)
    positions = logs["positions"]
    positions.end_before(_LANDING, first_left_out - 1)
    return batch, next((marker[_LANDING] for v, marker in positions.commits() if v <= positions.version and marker), -1)


def _forget_later(forwarded: Path, versions: Mapping[str, int]) -> None:
    """Deletes rows by which more of a topic went to Kafka than was copied: other rows will get these versions."""
    table = DeltaTable(forwarded)
    newest = table.to_pyarrow_table().group_by("topic").aggregate([("next_version", "max")])
    for row in newest.to_pylist():
        copied = versions.get(row["topic"], math.inf)
        if row["next_version_max"] > copied + 1:
            table.delete(f"topic = '{row['topic']}' AND next_version > {copied + 1}")


def _copy(log: _Log, to: Path) -> int:
    """Copies the files of a table at its version, and its log up to that version; returns the number of bytes."""
    try:
        found = DeltaTable(log.place, version=log.version).get_add_actions()
        files = [unquote(name) for name in pa.table(found)["path"].to_pylist()]
        known = [*_commits(log.place), *log.place.glob("_delta_log/[0-9]*.checkpoint*")]
        known = [file for file in known if int(file.name[:20]) <= log.version]
        known += [file for kind in _OWNERS for file in log.place.glob(kind)]
        files += [str(file.relative_to(log.place)) for file in known]
        for file in files:
            (to / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(log.place / file, to / file)
    except (DeltaError, OSError) as error:
        reason = damage.reason(error)
        msg = (
            f"backup: {log.place} can't be copied: {reason}; make room, or begin again if a file has just been removed"
        )
        raise WarehouseError(msg) from error
    return sum((to / file).stat().st_size for file in files)
