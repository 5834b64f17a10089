"""What `topics.dedup` costs on a topic with a long history: a start, and rounds, with it and without it.

.venv/bin/python -m tests.bench.once --decided 20000000 --rate 1000
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from tests.bench import rig
from tests.bench.observer import durations, rounds
from tests.bench.synthetic import TOPIC

_KINDS: dict[str, dict[str, Any]] = {
    "without": {},
    "with": {"topics__dedup": f"{{{TOPIC}: {{by: message_id, window: 365d}}}}"},
}


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("--decided", type=int, default=20_000_000, help="transactions in the tables, 8 of 9 visible")
    parser.add_argument("--rate", type=int, default=1_000, help="transactions a second")
    parser.add_argument("--after", type=float, default=60, help="seconds from READY to what is measured")
    parser.add_argument("--seconds", type=float, default=90, help="how long that is")
    given = parser.parse_args()
    figures = {}
    with rig.Rig(given) as running:
        running.fill(running.place / "warehouse", rig.PREFIX, "--decided", given.decided)
        for kind, settings in _KINDS.items():
            coordinator = running.coordinator(**settings)
            ready = coordinator.ready()
            load = running.load("--rate", given.rate, name=f"load-{kind}")
            time.sleep(given.after)
            begin, cores = time.time(), rig.Cores(coordinator=coordinator.cpu_seconds)
            time.sleep(given.seconds)
            took = durations(rounds(coordinator.warehouse, begin, time.time()))
            figures[kind] = {
                "ready_s": ready - coordinator.begun,
                "cores": cores.figures()["coordinator"],
                "round_s": float(np.median(took)),
                "peak_mib": coordinator.peak_mib(),
            }
            load.stop()
            coordinator.stop()
    ratio = {name: figures["with"][name] / figures["without"][name] for name in figures["with"]}
    rig.report("once", given, figures | {"ratio": ratio})


if __name__ == "__main__":
    main()
