"""What is open, from the inside: a coordinator's state store, and rebuilds from saved rows of any age.

All that the campaign knows of the coordinator's internals is here and in `faults`.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.support.lake import Lake

from commitlake.config import Config
from commitlake.coordinator.coordination.input_rows import FIELDS
from commitlake.coordinator.recovery import rebuild, snapshot
from commitlake.coordinator.recovery.snapshot import BEGINNING
from commitlake.protocol.statemachine.rows import ABSENT, unpack
from commitlake.protocol.states import Kind
from commitlake.spark import session
from commitlake.tables import Warehouse

COMPARED = [
    *("kind", "src", "queue", "offset", "part_queue", "part_offset", "op_queue", "op_offset", "round"),
    *("checks", "repeat", "deliver_at"),
]
"""What must agree. Left out: `since` and `due`, which are worked out when a row is read first."""
_WAITING = (Kind.COMMIT, Kind.ROLLBACK, Kind.RESUME, Kind.RECALL, Kind.LISTED, Kind.REFUSED_PART)
_PARKED = tuple(int(kind) for kind in _WAITING)
_READABLE_S = 50 * 60
"""Less than `delta.deletedFileRetentionDuration` of a table that only the coordinator reads, 1 hour."""
Rows = Counter[tuple[int, ...]]


def held(spark: SparkSession, config: Config) -> list[list[int]]:
    """What the state machine of the newest run holds, as `COMPARED`."""
    found: list[list[int]] = []
    for place in _newest_run(config):
        for row in spark.read.format("statestore").load(place).collect():
            found += _unpacked(row.asDict(recursive=True))
    return found


def _newest_run(config: Config) -> list[str]:
    runs = Path(config.scratch, "coordination").glob("*-*")
    newest = sorted((run for run in runs if (run / "state").exists()), key=lambda run: int(run.name.split("-")[0]))
    return [str(run) for run in newest[-1:]]


def _unpacked(row: dict[str, Any]) -> list[list[int]]:
    packed = row["value"]
    while isinstance(packed, dict):  # the state is wrapped in a struct, beside its timeout
        packed = packed.get("groupState", packed.get("rows"))
    if packed is None:
        return []
    rows = unpack(bytes(packed))
    own = {"src": row["key"]["src"], "queue": row["key"]["queue"]}
    timers = (rows["kind"] == int(Kind.WAITING)) & (rows["part_queue"] == ABSENT)
    rows["part_queue"][timers] = own["queue"]  # of a first half message its segment says it
    return [[int(own[name]) if name in own else int(each[name]) for name in COMPARED] for each in rows]


class AsOf(Warehouse):
    """A warehouse whose rows saved for a start are those of an older version."""

    def __init__(self, spark: SparkSession, root: str, saved: int | None) -> None:
        super().__init__(spark, root)
        self._saved = saved

    def read(self, name: str, version: int | None = None) -> DataFrame:
        return super().read(name, self._saved if name == "open_rows" else version)


class Rebuilds:
    """What starts would find open."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark, self._lake = session.beside(spark, lake.config), lake

    def whole(self) -> Rows:
        """From all of history."""
        return self._rows(None, from_saved=False)

    def versions(self) -> list[int]:
        """The versions of the saved rows that can be read: Delta lets nobody go back further."""
        logs = Path(str(self._lake.tables), "open_rows", "_delta_log").glob("*.json")
        return sorted(int(log.stem) for log in logs if time.time() - log.stat().st_mtime < _READABLE_S)

    def differences(self, chosen: random.Random, older: int) -> tuple[int, list[str]]:
        """Compares rebuilds from the newest saved rows and some older ones with that from all of history.

        Returns how many were compared, and what differs.
        """
        whole, versions = self.whole(), self.versions()
        some = {*versions[-1:], *chosen.sample(versions, min(older, len(versions)))}
        found: list[str] = []
        for version in sorted(some):
            found += different(self._rows(version), whole, f"rebuilt from open_rows {version}", "from the beginning")
        return len(some), found

    def _rows(self, saved: int | None, *, from_saved: bool = True) -> Rows:
        warehouse, timing = AsOf(self._spark, str(self._lake.tables), saved), self._lake.config.transaction
        since = snapshot.newest(warehouse, timing) if from_saved else BEGINNING
        frame = rebuild.open_rows(warehouse, timing, since).select(*COMPARED)
        return Counter(tuple(int(value) for value in row) for row in frame.collect())


def different(some: Rows, others: Rows, name: str, other: str) -> list[str]:
    found = []
    for rows, where in ((some - others, f"only {name}"), (others - some, f"only {other}")):
        found += [f"open {where}: {_text(row)}" for row in list(rows)[:5]]
    return found


def without_parked(rows: Iterable[Sequence[int]]) -> Rows:
    """Without ops and refused parts that wait: a rebuild knows at once which of them change nothing any more."""
    return Counter(tuple(row) for row in rows if row[0] not in _PARKED)


def _text(row: Sequence[int]) -> str:
    assert set(COMPARED) <= set(FIELDS)
    named = dict(zip(COMPARED, row, strict=True))
    return f"{Kind(named['kind']).name} " + " ".join(f"{key}={value}" for key, value in named.items() if value != -1)
