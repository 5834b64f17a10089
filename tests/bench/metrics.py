"""What Prometheus costs the rounds: the same coordinator under a steady load, asked every 15 s and not asked, in turns.

.venv/bin/python -m tests.bench.metrics --rate 1000 --turns 3
"""

from __future__ import annotations

import threading
import time
import urllib.request

import numpy as np
from tests.bench import rig
from tests.bench.observer import durations, rounds
from tests.support.cluster import free_port

_EVERY_S = 15.0


def main() -> None:
    """Measures and prints."""
    parser = rig.parser(__doc__)
    parser.add_argument("--rate", type=int, default=1_000, help="transactions a second")
    parser.add_argument("--after", type=float, default=60, help="seconds from READY to the first turn")
    parser.add_argument("--seconds", type=float, default=60, help="how long a turn is")
    parser.add_argument("--turns", type=int, default=3, help="of each kind")
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {"not asked": [], "asked": []}
    answers: list[float] = []
    with rig.Rig(given) as running:
        port = free_port()
        coordinator = running.coordinator(metrics__port=port)
        coordinator.ready()
        running.load("--rate", given.rate)
        time.sleep(given.after)
        for _ in range(given.turns):
            for kind, measured in found.items():
                begin, cores = time.time(), rig.Cores(coordinator=coordinator.cpu_seconds)
                done = threading.Event()
                scrape = threading.Thread(target=ask, args=(port, done, answers))
                if kind == "asked":
                    scrape.start()
                time.sleep(given.seconds)
                done.set()
                took = durations(rounds(coordinator.warehouse, begin, time.time()))
                measured.append((cores.figures()["coordinator"], float(np.median(took))))
    figures = {
        kind: dict(zip(("cores", "round_s"), np.median(np.array(turns), axis=0).tolist(), strict=True))
        for kind, turns in found.items()
    }
    ratio = {name: figures["asked"][name] / figures["not asked"][name] for name in ("cores", "round_s")}
    rig.report("metrics", given, figures | {"ratio": ratio, "an answer": {"seconds": float(np.median(answers))}})


def ask(port: int, done: threading.Event, answers: list[float]) -> None:
    """Scrape as Prometheus does, until done."""
    while not done.is_set():
        begun = time.monotonic()
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read()
        answers.append(time.monotonic() - begun)
        done.wait(_EVERY_S)


if __name__ == "__main__":
    main()
