"""Delayed messages: how late they come, how long a burst takes, and what it costs that others wait.

    .venv/bin/python -m tests.bench.delays error --rate 1000 --seconds 60
    .venv/bin/python -m tests.bench.delays burst --messages 1000000
    .venv/bin/python -m tests.bench.delays waiting --messages 10000000

`waiting` compares rounds, from one commit of `batches` to the next, while few messages wait for a month and while many
do; meanwhile some come that are due after a second.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from tests.bench import rig
from tests.bench.observer import Lateness, Sent, TableLog, durations, rounds

_BEHIND_S = 300
_FEW = 10_000

Figures = dict[str, dict[str, float]]


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("what", choices=["error", "burst", "waiting"])
    parser.add_argument("--rate", type=int, default=1_000, help="error, waiting: messages due a second")
    parser.add_argument("--after", type=float, default=60, help="error, waiting: seconds from READY to what counts")
    parser.add_argument("--seconds", type=float, default=60, help="error, waiting: how long it counts")
    parser.add_argument("--messages", type=int, default=1_000_000, help="burst: due in one second; waiting: as many")
    parser.add_argument("--lead", type=int, default=120, help="burst: seconds from READY to the due second")
    given = parser.parse_args()
    with rig.Rig(given) as running:
        figures = {"error": error, "burst": burst, "waiting": waiting}[given.what](running, given)
    rig.report("delays", given, figures)


def error(running: rig.Rig, given: argparse.Namespace) -> Figures:
    """Messages come and are due at a steady rate."""
    coordinator = running.coordinator()
    begin = coordinator.ready() + given.after
    load = running.load("--delayed-rate", given.rate)
    time.sleep(given.after + given.seconds)
    late = lateness(running, coordinator, load.stop()["delayed"])
    return {"late": late.between(begin, begin + given.seconds).figures}


def burst(running: rig.Rig, given: argparse.Namespace) -> Figures:
    """All are due in one second, for which a running coordinator waits."""
    coordinator = running.coordinator()
    due = int(coordinator.ready()) + given.lead
    running.load("--fill-delayed", given.messages, "--due-ms", due * 1_000).wait(given.lead)
    landed = TableLog(coordinator.warehouse / "delayed")
    coordinator.until(lambda: landed.rows() >= given.messages, due - time.time(), lambda: f"{landed.rows()} landed")
    early = due - time.time()
    late = lateness(running, coordinator, given.messages)
    return {"late": late.figures | {"landed_before_due_s": early}}


def waiting(running: rig.Rig, given: argparse.Namespace) -> Figures:
    """Rounds while few and while many wait, each in a warehouse of its own."""
    counts = {"few": _FEW, "many": given.messages}
    figures = {name: while_waiting(running, given, name, count) for name, count in counts.items()}
    return figures | {"ratio": {"p50_s": figures["many"]["p50_s"] / figures["few"]["p50_s"]}}


def while_waiting(running: rig.Rig, given: argparse.Namespace, name: str, count: int) -> dict[str, float]:
    """Rounds while `count` messages wait for a month."""
    place, prefix = running.place / name, f"{name}."
    running.create_topics(prefix)
    running.fill(place / "warehouse", prefix, "--waiting", count)
    coordinator = running.coordinator(place=place, kafka__topic_prefix=prefix)
    begin = coordinator.ready() + given.after
    load = running.load("--prefix", prefix, "--delayed-rate", given.rate, "--delay-ms", 1_000, name=name)
    time.sleep(given.after + given.seconds)
    took = durations(rounds(coordinator.warehouse, begin))
    figures = {"ready_s": begin - given.after - coordinator.begun, "p50_s": np.median(took), "max_s": took.max()}
    figures |= {"rounds": len(took), "rss_mib": coordinator.rss_mib()}
    load.stop()
    coordinator.kill()
    return figures


def lateness(running: rig.Rig, coordinator: rig.Coordinator, count: int) -> Lateness:
    """From the due time to the commit, of `count` rows: each there once, and none before its time."""
    shown = TableLog(coordinator.warehouse / "topics" / "reminders")
    coordinator.until(lambda: shown.rows() >= count, _BEHIND_S, lambda: f"{shown.rows()} of {count} visible")
    places = [np.stack([commit.column("source_queue"), commit.column("source_offset")]) for commit in shown.appends()]
    distinct = np.unique(np.concatenate(places, axis=1), axis=1).shape[1]
    assert shown.rows() == distinct == count, f"{shown.rows()} rows of {distinct} messages, {count} were sent"
    late = Lateness.of(shown.appends(), Sent(running.place / "load.csv"), "messages", "source_queue", "source_offset")
    assert late.late.min() >= 0, f"a row is visible {-late.late.min():.3f} s before its time"
    return late


if __name__ == "__main__":
    main()
