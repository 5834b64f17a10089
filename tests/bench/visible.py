"""From a COMMIT's append in Kafka to the visible row, at a steady rate, beside a plain copy of the topics.

    .venv/bin/python -m tests.bench.visible --rate 1000
    .venv/bin/python -m tests.bench.visible --rate 1000 --typed

Both run at the same time; what is appended from `--after` seconds after READY of both on counts, for `--seconds`. Of
the copy it is the time from an op's append to the commit that holds it. `--alone` measures one after the other, each
with a broker of its own and nothing beside it, and a copy with Spark's defaults, too. `--typed` measures no copy, but
the coordinator twice: as it is, and with a schema for the bodies.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.bench import rig
from tests.bench.observer import Commit, Lateness, Sent, TableLog, durations, rounds

_STILL_LOADED_S = 60
_BEHIND_S = 900
_COPIES = {"copy", "untuned"}
_SCHEMA = "a INT, b INT, c INT, d INT, e INT, f INT, g INT, h INT, i INT, text STRING"
_TYPED = {"topics__schemas": json.dumps({"orders": {"format": "json", "schema": _SCHEMA}})}
"""Of the bodies of `load`."""


def main() -> None:
    """Measures and prints; fails when not every committed row is visible in the end."""
    parser = rig.parser(__doc__)
    parser.add_argument("--rate", type=int, default=1_000, help="transactions a second, 90 %% of them committed")
    parser.add_argument("--after", type=float, default=60, help="seconds from READY to what counts")
    parser.add_argument("--seconds", type=float, default=60, help="how long it counts")
    parser.add_argument("--alone", action="store_true", help="one after the other")
    parser.add_argument("--typed", action="store_true", help="the price of a schema")
    given = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    if given.typed:
        compare_typed(given)
        return
    for names in [("copy",), ("untuned",), ("coordinator",)] if given.alone else [("coordinator", "copy")]:
        with rig.Rig(given) as running:
            for name, found in measure(running, given, names).items():
                figures.setdefault(name, {}).update(found)
    ours = figures["coordinator"]
    for name in _COPIES & figures.keys():
        figures[f"ratio to {name}"] = {each: ours[each] / figures[name][each] for each in ("p50_s", "p99_s")}
    rig.report("visible", given, figures)


def compare_typed(given: argparse.Namespace) -> None:
    """Measures and prints the coordinator without and with a schema, one after the other."""
    figures = {}
    for name, settings in {"untyped": {}, "typed": _TYPED}.items():
        with rig.Rig(given) as running:
            figures[name] = measure(running, given, ("coordinator",), **settings)["coordinator"]
    ratios = {each: figures["typed"][each] / figures["untyped"][each] for each in ("cores", "p50_s", "p99_s")}
    rig.report("visible", given, figures | {"ratio": ratios})


def measure(
    running: rig.Rig, given: argparse.Namespace, names: Sequence[str], **settings: Any
) -> dict[str, dict[str, Any]]:
    """The figures of what runs, the load, and the cores that each takes."""
    children: dict[str, rig.Child] = {}
    if "coordinator" in names:
        children["coordinator"] = running.coordinator(**settings)
        children["coordinator"].ready()
    children["load"] = running.load("--rate", given.rate)
    for name in _COPIES.intersection(names):
        children[name] = running.copy(*["--defaults"] * (name == "untuned"))
        children[name].ready()
    begin, end = time.time() + given.after, time.time() + given.after + given.seconds
    time.sleep(given.after)
    cpu = {name: child.cpu_seconds for name, child in children.items()}
    cores = rig.Cores(broker=running.broker_cpu_seconds, **cpu)
    time.sleep(given.seconds)
    figures: dict[str, dict[str, Any]] = {name: {"cores": value} for name, value in cores.figures().items()}
    for name in _COPIES.intersection(names):
        figures[name] |= copied(running.place / "copy" / "op").between(begin, end).figures
    if "coordinator" in names:
        coordinator = children["coordinator"]
        assert isinstance(coordinator, rig.Coordinator)
        shown = all_visible(coordinator, children["load"])
        sent = Sent(running.place / "load.csv")
        figures["coordinator"] |= Lateness.of(shown, sent, "half", "source_queue", "source_offset").between(
            begin, end
        ).figures | {"round_s": np.median(durations(rounds(coordinator.warehouse, begin, end)))}
    else:
        children["load"].stop()
    figures["load"]["tx/s"] = Sent(running.place / "load.csv").rate(begin, end)
    return figures


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
