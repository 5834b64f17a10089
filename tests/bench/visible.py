"""From a COMMIT's append in Kafka to the visible row, at a steady rate, beside a plain copy of the topics.

    .venv/bin/python -m tests.bench.visible --rate 1000

Both run at the same time; what is appended from `--after` seconds after READY of both on counts, for `--seconds`. Of
the copy it is the time from an op's append to the commit that holds it. `--alone` leaves the copy out.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.bench import rig
from tests.bench.observer import Commit, Lateness, Sent, TableLog, durations, rounds

_STILL_LOADED_S = 60
_BEHIND_S = 900


def main() -> None:
    """Measures and prints; fails when not every committed row is visible in the end."""
    parser = rig.parser(__doc__)
    parser.add_argument("--rate", type=int, default=1_000, help="transactions a second, 90 %% of them committed")
    parser.add_argument("--after", type=float, default=60, help="seconds from READY to what counts")
    parser.add_argument("--seconds", type=float, default=60, help="how long it counts")
    parser.add_argument("--alone", action="store_true", help="without the copy")
    given = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    with rig.Rig(given) as running:
        coordinator = running.coordinator()
        coordinator.ready()
        children = {"coordinator": coordinator, "load": running.load("--rate", given.rate)}
        if not given.alone:
            children["copy"] = running.copy()
            children["copy"].ready()
        begin = time.time() + given.after
        time.sleep(given.after)
        cores = rig.Cores(
            broker=running.broker_cpu_seconds, **{name: child.cpu_seconds for name, child in children.items()}
        )
        time.sleep(given.seconds)
        used = cores.figures()
        shown = all_visible(coordinator, children["load"])
        sent, end = Sent(running.place / "load.csv"), begin + given.seconds
        late = Lateness.of(shown, sent, "half", "source_queue", "source_offset").between(begin, end)
        took = durations(rounds(coordinator.warehouse, begin, end))
        figures["coordinator"] = late.figures | {"round_s": np.median(took)}
        if not given.alone:
            plain = figures["copy"] = copied(running.place / "copy" / "op").between(begin, end).figures
            figures["ratio"] = {name: late.figures[name] / plain[name] for name in ("p50_s", "p99_s")}
        figures["load"] = {"tx/s": sent.rate(begin, end)}
    for name, value in used.items():
        figures.setdefault(name, {})["cores"] = value
    rig.report("visible", given, figures)


def all_visible(coordinator: rig.Coordinator, load: rig.Child) -> list[Commit]:
    """The commits of all rows; the load goes on until those of the time that counts should be there, and ends."""
    log = TableLog(coordinator.warehouse / "topics" / "orders")
    counted, until = load.status["committed"], time.monotonic() + _STILL_LOADED_S
    while log.rows() < counted and time.monotonic() < until:
        time.sleep(1)
    committed = load.stop()["committed"]
    coordinator.until(lambda: log.rows() >= committed, _BEHIND_S, lambda: f"{log.rows()} of {committed} visible")
    assert log.rows() == committed, f"{log.rows()} rows of {committed} committed transactions"
    return log.appends()


def copied(table: Path) -> Lateness:
    """From append to commit, of the rows of a copied topic."""
    parts = []
    for commit in TableLog(table).appends():
        at = commit.column("timestamp").astype("datetime64[us]").astype(np.int64) / 1e6
        parts.append((at, commit.at - at))
    appended, late = zip(*parts, strict=True)
    return Lateness(np.concatenate(appended), np.concatenate(late))


if __name__ == "__main__":
    main()
