"""A coordinator of the campaign: its JVM comes up, then it waits for its plan, JSON with the fields of `Plan`.

python -m tests.support.campaign_child CONFIG_JSON < PLAN

It prints `JVM <process id>`, `READY` once all queries run, and `OPEN <json>`: what its state machine held at a clean
end after all that was there was worked off.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from tests.support import faults
from tests.support.live_state import held

from commitlake import config
from commitlake.coordinator import Coordinator
from commitlake.spark import process, session


@dataclass(frozen=True)
class Plan:
    """What a run does.

    Attributes:
        serves: whether it goes on until SIGTERM, instead of working off what is there.
        most: records that a landing takes.
        writes: faults of writes, each with the fields of `faults.WriteFault`.
        clock: by how many ms Python's clock is ahead, from when on (s), and for how long (s); empty: it is right.
    """

    serves: bool = False
    most: int = 50
    writes: Sequence[Mapping[str, Any]] = ()
    clock: Sequence[float] = ()


def run(arguments: Sequence[str]) -> None:
    faulthandler.register(signal.SIGUSR1)  # the campaign asks a run that does not end where it hangs
    settings = config.from_mapping(json.loads(arguments[0]))
    spark = session.build(settings, master="local[2]", short_lived=True)
    gateway: Any = SparkContext._gateway
    jvm = int(gateway.proc.pid)
    print(f"JVM {jvm}", flush=True)
    plan = Plan(**json.loads(sys.stdin.read()))
    _arm(plan, jvm)
    with Coordinator(spark, settings).start(available_now=not plan.serves) as coordinator:
        if plan.serves:
            stop = process.stop_on_signals()
            print("READY", flush=True)
            while not stop.is_set() and not coordinator.await_termination(timeout=0.2):
                pass
    if not plan.serves:
        print(f"OPEN {json.dumps(held(spark, settings))}", flush=True)


def _arm(plan: Plan, jvm: int) -> None:
    faults.land_at_most(plan.most)
    faults.WriteFaults((faults.WriteFault(**each) for each in plan.writes), faults.killer(jvm)).arm()
    if plan.clock:
        ahead_ms, begin_s, seconds = plan.clock
        faults.shift_clock(int(ahead_ms), begin_s, seconds)
    print(f"BEGUN {time.time():.3f}", flush=True)


if __name__ == "__main__":
    process.main(run)
