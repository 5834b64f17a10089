"""Coordinators, one after the other in one JVM, until one of them is killed; `killing` starts them.

python -m tests.support.coordinator_child CONFIG_JSON

Each line of its input is the plan of one, JSON with the fields of `Plan`. It prints `JVM <process id>`; of each plan
`BEGUN`, `READY` once all queries run, `OPEN <json>`, what the state machine held at a clean end after all that was
there was worked off, `MAINTAINED` with the report, and `ENDED`, with `clean` or the error.
"""

from __future__ import annotations

import faulthandler
import json
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.support import faults
from tests.support.lake import Lake

from commitlake import config
from commitlake.config import Config
from commitlake.coordinator import restarts
from commitlake.coordinator.coordination.input_rows import FIELDS
from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.maintenance.run import Maintenance
from commitlake.coordinator.recovery import fencing, rebuild, snapshot
from commitlake.coordinator.recovery.snapshot import BEGINNING
from commitlake.errors import CommitLakeError, root_reason
from commitlake.protocol.statemachine.rows import ABSENT, unpack
from commitlake.protocol.states import Kind
from commitlake.spark import process, session
from commitlake.tables import Warehouse, small_files


@dataclass(frozen=True)
class Plan:
    """What a run does.

    Attributes:
        serves: whether it goes on until SIGTERM, instead of working off what is there.
        maintains: whether the tables are maintained after that.
        most: records that a landing takes; None for as many as it is used to.
        most_few: rows whose files the driver writes; None for as many as it is used to.
        writes: faults of writes, each with the fields of `faults.WriteFault`.
        clock: by how many ms Python's clock is ahead, from when on (s), and for how long (s); empty: it is right.
        elsewhere: whether it takes the warehouse for one that is not on a local disk, where there is no lock.
        vacuums: whether a start looks for files to delete in all tables.
        pauses: how many s pass each time before all queries begin again; none: the first failure ends it.
        changes: of the configuration, for this run only.
    """

    serves: bool = False
    maintains: bool = False
    most: int | None = None
    most_few: int | None = None
    writes: Sequence[Mapping[str, Any]] = ()
    clock: Sequence[float] = ()
    elsewhere: bool = False
    vacuums: bool = True
    pauses: Sequence[float] = (0.5,) * 6
    changes: Mapping[str, Any] = field(default_factory=dict)

    def arm(self, patch: pytest.MonkeyPatch, jvm: int, scratch: str) -> None:
        """Lets all that happen in this process that is to go wrong."""
        if self.most:
            faults.land_at_most(patch, self.most)
        if self.most_few is not None:
            patch.setattr(small_files, "MOST_ROWS", self.most_few)
        if not self.vacuums:
            faults.vacuum_nothing(patch)
        patch.setattr(restarts, "PAUSES_S", tuple(self.pauses))
        if self.elsewhere:
            patch.setattr(fencing, "is_local", lambda _: False)
        if self.clock:
            ahead_ms, begin_s, seconds = self.clock
            faults.shift_clock(patch, int(ahead_ms), begin_s, seconds)
        faults.WriteFaults((faults.WriteFault(**each) for each in self.writes), jvm, scratch).arm(patch)


def run(arguments: Sequence[str]) -> None:
    faulthandler.register(signal.SIGUSR1)  # a run that does not end is asked where it hangs
    given = json.loads(arguments[0])
    spark = session.build(config.from_mapping(given), master="local[2]", short_lived=True)
    gateway: Any = SparkContext._gateway
    jvm = int(gateway.proc.pid)
    tell(f"JVM {jvm}")
    for line in sys.stdin:
        plan = Plan(**json.loads(line))
        tell(f"ENDED {coordinate(spark, config.from_mapping({**given, **plan.changes}), plan, jvm)}")


def coordinate(spark: SparkSession, settings: Config, plan: Plan, jvm: int) -> str:
    """Runs one coordinator; returns how it ended."""
    tell("BEGUN")
    with pytest.MonkeyPatch.context() as patch:
        plan.arm(patch, jvm, settings.checkpoints)
        try:
            serve(spark, settings) if plan.serves else work_off(spark, settings)
            if plan.maintains:
                maintain(spark, settings)
        except (CommitLakeError, PySparkException, OSError) as error:
            return f"error: {type(error).__name__}: {root_reason(error)}".replace("\n", " ")
        except Exception:  # a defect: a test shows how a run ended, and nothing else of its output
            return f"error: {traceback.format_exc()}".replace("\n", " ")
    return "clean"


def serve(spark: SparkSession, settings: Config) -> None:
    stop = process.stop_on_signals()
    with Coordinator(spark, settings).start() as coordinator:
        tell("READY")
        while not stop.is_set() and not coordinator.await_termination(timeout=0.2):
            pass


def work_off(spark: SparkSession, settings: Config) -> None:
    """All that is there."""
    with Coordinator(spark, settings).start(available_now=True):
        pass
    tell(f"OPEN {json.dumps(held(spark, settings))}")


def maintain(spark: SparkSession, settings: Config) -> None:
    with fencing.lock(settings, spark):
        tell(f"MAINTAINED {Maintenance(Warehouse(spark, settings.warehouse), settings).run()}")


def tell(what: str) -> None:
    """On a line of its own: what the JVM's log wrote before may have ended in the middle of one."""
    print(f"\n{what}", flush=True)


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


if __name__ == "__main__":
    process.main(run)
