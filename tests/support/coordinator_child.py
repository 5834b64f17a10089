"""Coordinators, one after the other in one JVM, until one of them is killed; `killing` starts them.

python -m tests.support.coordinator_child CONFIG_JSON

Each line of its input is the plan of one, JSON with the fields of `Plan`. It prints `JVM <process id>`; of each plan
`BEGUN`, `READY` once all queries run, `OPEN <json>`, what the state machine held at a clean end after all that was
there was worked off, `MAINTAINED` with the report, and `ENDED`, with `clean` or the error.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.support import faults
from tests.support.live_state import held

from commitlake import config
from commitlake.config import Config
from commitlake.coordinator import restarts
from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.maintenance.run import Maintenance
from commitlake.coordinator.recovery import fencing
from commitlake.errors import CommitLakeError, root_reason
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


if __name__ == "__main__":
    process.main(run)
