"""How much longer rounds get while maintenance compacts the tables.

    .venv/bin/python -m tests.bench.compaction --rate 1000 --interval 60 --seconds 300

A round is the time from one commit of `batches` to the next. A run of maintenance lasts from its first to its last
commit, of OPTIMIZE and VACUUM: where two are half an interval apart, another run begins.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from tests.bench import rig
from tests.bench.observer import durations, rounds, tables

_MAINTENANCE = ("OPTIMIZE", "VACUUM START", "VACUUM END")


def main() -> None:
    """Measures and prints."""
    parser = rig.parser(__doc__)
    parser.add_argument("--rate", type=int, default=1_000, help="transactions a second")
    parser.add_argument("--interval", type=int, default=60, help="maintenance.interval in seconds")
    parser.add_argument("--after", type=float, default=60, help="seconds from READY to what counts")
    parser.add_argument("--seconds", type=float, default=300, help="how long it counts")
    given = parser.parse_args()
    with rig.Rig(given) as running:
        coordinator = running.coordinator(maintenance__interval=f"{given.interval}s")
        begin = coordinator.ready() + given.after
        load = running.load("--rate", given.rate)
        time.sleep(given.after + given.seconds)
        load.stop()
        spans = rounds(coordinator.warehouse, begin)
        commits = [commit for log in tables(coordinator.warehouse) for commit in log.read()]
    maintained = sorted(commit.at for commit in commits if commit.operation in _MAINTENANCE and commit.at >= begin)
    runs, took = bursts(maintained, given.interval / 2), durations(spans)
    touched = np.array([any(first < end and begin < last for first, last in runs) for begin, end in spans], bool)
    figures = {"without": row(took[~touched]), "during maintenance": row(took[touched]) | {"runs": len(runs)}}
    figures["longest / median"] = {"max_s": took.max() / np.median(took)}
    rig.report("compaction", given, figures)


def bursts(times: Sequence[float], gap_s: float) -> list[tuple[float, float]]:
    """The first and the last of the times (s) that follow each other within `gap_s`."""
    found: list[tuple[float, float]] = []
    for at in times:
        is_next = found and at - found[-1][1] < gap_s
        found = [*found[:-1], (found[-1][0], at)] if is_next else [*found, (at, at)]
    return found


def row(took: np.ndarray) -> dict[str, float]:
    """The figures of some rounds."""
    return {"p50_s": np.median(took), "max_s": took.max(), "rounds": len(took)} if len(took) else {"rounds": 0}


if __name__ == "__main__":
    main()
