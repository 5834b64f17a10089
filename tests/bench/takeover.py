"""How long nothing becomes visible when a coordinator is gone and a standby takes over, under a light load.

    .venv/bin/python -m tests.bench.takeover
    .venv/bin/python -m tests.bench.takeover --times 10 --signal TERM

A warm standby waits beside the coordinator, which then gets the signal: KILL, with all its processes, or TERM, as at an
upgrade. What counts is the time until the first commit to a topic by the standby, which is the next coordinator.
"""

from __future__ import annotations

import time

import numpy as np
from tests.bench import rig
from tests.bench.observer import TableLog

_LOAD_S, _WARM_S, _ROW_S = 60, 600, 300
_RUNS_S = 5
"""How long a coordinator runs before its turn to go comes."""


def main() -> None:
    """Takes over again and again, and prints how long each gap was."""
    parser = rig.parser(__doc__)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--rate", type=int, default=20, help="transactions a second")
    parser.add_argument("--cold", action="store_true", help="take over while the standby begins to rehearse")
    parser.add_argument("--signal", choices=("KILL", "TERM"), default="KILL")
    given = parser.parse_args()
    gaps = []
    with rig.Rig(given) as running:
        active = running.coordinator()
        active.ready()
        load = running.load("--rate", given.rate)
        load.until(lambda: load.status, _LOAD_S)
        for _ in range(given.times):
            active, gap = take_over(running, active, given.signal, "standing by" if given.cold else "warm")
            gaps.append(gap)
        load.stop()
    p50, p99 = np.percentile(gaps, [50, 99])
    rig.report("takeover", given, {"gap": {"p50_s": p50, "p99_s": p99, "least_s": min(gaps), "times": len(gaps)}})


def take_over(running: rig.Rig, active: rig.Coordinator, signal: str, said: str) -> tuple[rig.Coordinator, float]:
    """The next coordinator, and the seconds from the signal, after it has `said` something, to its first commit."""
    standby = running.coordinator("--standby")
    standby.until(lambda: said in standby.output, _WARM_S)
    time.sleep(_RUNS_S)
    orders = TableLog(active.warehouse / "topics" / "orders")
    begun = time.time()
    if signal == "KILL":
        active.kill()
    else:
        active.stop()
    ended = time.time()
    standby.until(lambda: orders.appends(ended), _ROW_S)
    first = orders.appends(ended)[0].at
    print(f"{signal}: gone after {ended - begun:.2f} s, first row after {first - begun:.2f} s", flush=True)
    return standby, first - begun


if __name__ == "__main__":
    main()
