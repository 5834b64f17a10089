"""How long a start takes, and what comes late after it, while a light load is already running.

    .venv/bin/python -m tests.bench.start
    .venv/bin/python -m tests.bench.start --decided 20000000 --open 10000 --starts 3

Without `--decided` each start has an empty warehouse; with it all have one warehouse, with tables of a long history: a
coordinator is killed before the next one starts, and the last one finds no checkpoints. Of delayed messages those count
that are due in the minute from READY on; they are sent 10 s before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time

from tests.bench import rig
from tests.bench.observer import Lateness, Sent, TableLog

_BEHIND_S = 300
_FIRST_S = 60
_COUNTED_S = 60
_DELAY_S = 10


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("--starts", type=int, default=2, help="the first one may find cold caches")
    parser.add_argument("--rate", type=int, default=10, help="transactions a second, and as many delayed messages")
    parser.add_argument("--decided", type=int, default=0, help="transactions with an end in the tables")
    parser.add_argument("--open", type=int, default=0, help="transactions without an end in the tables")
    given = parser.parse_args()
    figures = {}
    with rig.Rig(given) as running:
        if is_filled(given):
            os.environ["COMMITLAKE__TRANSACTION__TIMEOUT"] = "1h"  # else all open ones are checked
            history = ("--decided", given.decided, "--open", given.open)
            running.fill(running.place / "warehouse", rig.PREFIX, *history)
        for number in range(given.starts):
            figures[f"start {number + 1}"] = measure(running, given, number)
    rig.report("start", given, figures)


def is_filled(given: argparse.Namespace) -> bool:
    """Whether all starts have one warehouse, with tables of a long history."""
    return bool(given.decided or given.open)


def measure(running: rig.Rig, given: argparse.Namespace, number: int) -> dict[str, float]:
    """One start, and the minute after it; then the coordinator is killed."""
    prefix, place = rig.PREFIX, running.place
    if not is_filled(given):
        prefix, place = f"start{number}.", running.place / f"start{number}"
        running.create_topics(prefix)
    elif number == given.starts - 1:
        shutil.rmtree(running.place / "checkpoints", ignore_errors=True)
    rates = ("--rate", given.rate, "--delayed-rate", given.rate, "--delay-ms", _DELAY_S * 1_000)
    load = running.load("--prefix", prefix, *rates, name=f"load{number}")
    load.until(lambda: load.status, _FIRST_S)
    coordinator = running.coordinator(place=place, kafka__topic_prefix=prefix)
    ready = coordinator.ready()
    time.sleep(max(0.0, ready + _COUNTED_S - time.time()))
    sent = Sent(running.place / f"load{number}.csv")
    first, late = after_ready(coordinator, sent, ready)
    figures = {"ready_s": ready - coordinator.begun, "first_row_after_ready_s": first - ready}
    figures |= {f"late_{name}": value for name, value in late.figures.items()} | {"peak_mib": coordinator.peak_mib()}
    load.stop()
    coordinator.kill()
    return figures


def after_ready(coordinator: rig.Coordinator, sent: Sent, ready: float) -> tuple[float, Lateness]:
    """The time of the first visible row, and how late all delayed messages are that were due in the first minute."""
    orders, reminders = (TableLog(coordinator.warehouse / "topics" / name) for name in ("orders", "reminders"))
    due = sent.expected("messages", ready, ready + _COUNTED_S)

    def late() -> Lateness:
        found = Lateness.of(reminders.appends(coordinator.begun), sent, "messages", "source_queue", "source_offset")
        return found.between(ready, ready + _COUNTED_S)

    coordinator.until(lambda: len(late()) >= due, _BEHIND_S, lambda: f"{len(late())} of {due} visible")
    return orders.appends(coordinator.begun)[0].at, late()


if __name__ == "__main__":
    main()
