"""How long a round takes while 1, 100 and 1 000 destination topics are in use, one after the other in one coordinator.

    .venv/bin/python -m tests.bench.topics --rate 1000 --topics 1 100 1000
    .venv/bin/python -m tests.bench.topics --rate 1000 --topics 100 --seconds 3600

A round is the time from one commit of `batches` to the next; a row is visible from its COMMIT's append in Kafka to the
commit that holds it. What counts begins `--after` seconds after each topic has
a table, and ends after `--seconds` and not before `--rounds`. When a row was visible is read of every nth commit where
there are many.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from tests.bench import rig
from tests.bench.observer import Lateness, Sent, durations, rounds, tables

_LIMIT_S = 3_600
_READ_COMMITS = 20_000


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("--rate", type=int, default=1_000, help="transactions a second")
    parser.add_argument("--topics", type=int, nargs="+", default=[1, 100, 1_000], help="destination topics in use")
    parser.add_argument("--after", type=float, default=60, help="seconds before it counts")
    parser.add_argument("--seconds", type=float, default=60, help="how long it counts at least")
    parser.add_argument("--rounds", type=int, default=10, help="how many rounds count at least")
    given = parser.parse_args()
    figures = {}
    with rig.Rig(given) as running:
        coordinator = running.coordinator(topics__max=sum(given.topics))
        coordinator.ready()
        for topics in given.topics:
            figures[f"{topics:,} topics"] = measure(running, coordinator, given, topics)
    rig.report("topics", given, figures)


def measure(running: rig.Rig, coordinator: rig.Coordinator, given: argparse.Namespace, topics: int) -> dict[str, float]:
    """The rounds with one number of topics; ends when all rows are visible."""
    begun, warehouse = time.time(), coordinator.warehouse
    names = ("--topic", f"of{topics}n", "--topics", topics, "--first", topics * 100_000_000)
    load = running.load("--rate", given.rate, *names, name=f"load{topics}")
    coordinator.until(lambda: len(list(warehouse.glob(f"topics/of{topics}n*"))) >= topics, _LIMIT_S)
    created = time.time() - begun
    time.sleep(given.after)
    begin = time.time()
    time.sleep(given.seconds)
    coordinator.until(lambda: len(rounds(warehouse, begin)) >= given.rounds, _LIMIT_S)
    spans = rounds(warehouse, begin)
    committed = load.stop()["committed"]
    own = [log for log in tables(warehouse) if log.name.startswith(f"topics/of{topics}n")]
    coordinator.until(lambda: sum(log.rows() for log in own) >= committed, _LIMIT_S)
    took, end = durations(spans), spans[-1][1]
    p50, p99 = np.percentile(took, [50, 99])
    sent = Sent(running.place / f"load{topics}.csv")
    commits = [commit for log in own for commit in log.appends(begin)]
    commits = commits[:: len(commits) // _READ_COMMITS + 1]  # an hour of 100 topics has half a million files
    shown = Lateness.of(commits, sent, "half", "source_queue", "source_offset").between(begin, end).figures
    return {
        "round_p50_s": p50,
        "round_p99_s": p99,
        "round_max_s": took.max(),
        "rounds": len(took),
        "visible_p50_s": shown["p50_s"],
        "visible_p99_s": shown["p99_s"],
        "tables_after_s": created,
        "tx/s": sent.rate(begin, end),
    }


if __name__ == "__main__":
    main()
