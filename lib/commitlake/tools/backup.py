"""`commitlake backup`: a copy of a warehouse as of one moment, also while its coordinator runs.

A coordinator that starts on the copy takes it for a warehouse whose last one was killed. So nothing may be there
without what was written before it: what is written last is looked at first, and what batches after the newest complete
one have written is left out, by the markers of commits.
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
from commitlake.reading.markers import marker_of

_FIRST = ("forwarded", "open_rows", "batches", "positions")
"""What they say is in the other tables must be there; a batch's row comes after the position of its landing."""
_OTHERS = (
    *("rejected", "reentries", "discarded", "checks", "deliveries", "transactions", "delayed", "half", "op"),
    *("maintenance", "epochs", "destinations"),
)
"""Maintenance deletes from `op` first, and says before that what may be gone."""
TABLES = (*_FIRST, *_OTHERS)
"""All that a warehouse has beside those of topics."""
_OF_LANDINGS_ONLY = ("half", "op", "delayed")
_BATCH, _LANDING = "batch_id", "landing_id"
_OWNERS = ("_delta_log/_sidecars/*", "**/deletion_vector_*.bin")
"""What a table has beside its log and its rows where an owner has let it have v2 checkpoints or deletion vectors."""


class Backup(NamedTuple):
    """What was copied: the newest complete batch and landing (-1: none), how many tables, how many bytes."""

    batch_id: int
    landing_id: int
    tables: int
    bytes: int


class _Log:
    """The log of a table as it stood when it was looked at.

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
            marker = marker_of((self.place / "_delta_log" / f"{version:020}.json").read_text())
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
    """Not the checkpoints that a topic's owner may have as JSON."""
    return (file for file in (place / "_delta_log").glob("*.json") if file.stem.isdigit())


def backup(warehouse: str, to: Path) -> Backup:
    """Copies all up to the newest complete batch to a directory that is not there yet.

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
    """Leaves out what came after the newest complete batch; returns that, and the newest landing that is whole.

    Records of a landing that is not whole are found by the next start, as after a kill.
    """
    batch = logs["batches"].newest(_BATCH)
    ledger = [log for name, log in logs.items() if name not in (*_FIRST, *_OF_LANDINGS_ONLY)]
    first_left_out = min(log.end_before(_BATCH, batch) for log in ledger)
    positions = logs["positions"]
    positions.end_before(_LANDING, first_left_out - 1)
    return batch, next((marker[_LANDING] for v, marker in positions.commits() if v <= positions.version and marker), -1)


def _forget_later(forwarded: Path, versions: Mapping[str, int]) -> None:
    """Deletes what says that more of a topic went to Kafka than was copied: other rows will get these versions."""
    table = DeltaTable(forwarded)
    newest = table.to_pyarrow_table().group_by("topic").aggregate([("next_version", "max")])
    for row in newest.to_pylist():
        copied = versions.get(row["topic"], math.inf)
        if row["next_version_max"] > copied + 1:
            table.delete(f"topic = '{row['topic']}' AND next_version > {copied + 1}")


def _copy(log: _Log, to: Path) -> int:
    """Copies the files of a table at its version, and its log up to there; returns how many bytes."""
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
