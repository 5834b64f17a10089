"""A long steady load on a coordinator as users start it: does anything grow with history?

    .venv/bin/python -m tests.bench.endurance --rate 2000 --seconds 3600 --plot docs/endurance.svg

Prints a line every 30 s: the rows visible so far, the highest age of a half message when a commit made it visible, the
seconds from batch to batch, memory and CPU of the coordinator, and files. Ends with an audit of the tables.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from deltalake import DeltaTable
from tests.bench import rig
from tests.bench.observer import TableLog, tables

_SILENT = ("--commit", 890, "--rollback", 100)  # of 1 000; the others are silent until a check asks
_BEHIND_S = 240
_AUDIT_S = 3_600


@dataclass
class Sample:
    """The figures of one interval; ages and batch times in seconds, memory in MiB."""

    seconds: float
    sent: int
    visible: int
    oldest_age: float
    landing_batch: float
    coordination_batch: float
    rss: float
    cores: float
    live_files: int
    all_files: int
    log_files: int

    def __str__(self) -> str:
        return " ".join(f"{name}={value:,.1f}".removesuffix(".0") for name, value in asdict(self).items())


class Watch:
    """Reads the tables' logs as they grow."""

    def __init__(self, coordinator: rig.Coordinator) -> None:
        self.coordinator, self.begun = coordinator, time.time()
        self._tables = {name: TableLog(coordinator.warehouse / name) for name in ("topics/orders", "op", "batches")}
        self._cpu, self._at = coordinator.cpu_seconds(), self.begun

    @property
    def visible(self) -> int:
        """How many rows are visible by now."""
        return self._tables["topics/orders"].rows()

    def sample(self, sent: int) -> Sample:
        now, cpu = time.time(), self.coordinator.cpu_seconds()
        wall, warehouse = now - self._at, self.coordinator.warehouse
        new = {name: log.appends(self._at, now) for name, log in self._tables.items()}
        places = [log.path for log in tables(warehouse)]
        sample = Sample(
            seconds=now - self.begun,
            sent=sent,
            visible=self.visible,
            oldest_age=max((commit.oldest_age for commit in new["topics/orders"]), default=float("nan")),
            landing_batch=wall / max(1, len(new["op"])),
            coordination_batch=wall / max(1, len(new["batches"])),
            rss=self.coordinator.rss_mib(),
            cores=(cpu - self._cpu) / wall,
            live_files=len(DeltaTable(warehouse / "half").file_uris()),
            all_files=sum(1 for place in places for _ in place.glob("**/*.parquet")),
            log_files=sum(1 for place in places for _ in (place / "_delta_log").iterdir()),
        )
        self._cpu, self._at = cpu, now
        return sample


def main() -> None:
    """Runs it and prints; fails when a transaction is missing or the audit finds something."""
    parser = rig.parser(__doc__)
    parser.add_argument("--rate", type=int, default=2_000, help="transactions a second")
    parser.add_argument("--seconds", type=float, default=3_600)
    parser.add_argument("--sample", type=float, default=30, help="seconds from line to line")
    parser.add_argument("--plot", type=Path, help="a file for the figures over time")
    given = parser.parse_args()
    with rig.Rig(given) as running:
        coordinator = running.coordinator()
        coordinator.ready()
        samples = load(running, coordinator, given)
        coordinator.stop()
        audit = rig.command("audit", "--set", f"warehouse={coordinator.warehouse}")
        audited = rig.Child(audit, running.place / "audit.log")
        audited.wait(_AUDIT_S)
        print(audited.output, end="", flush=True)
    if given.plot:
        plot(samples, given.plot)
    half = len(samples) // 2
    rig.report("endurance", given, {"first half": medians(samples[:half]), "second half": medians(samples[half:])})


def medians(samples: list[Sample]) -> dict[str, float]:
    """Of each figure that must not grow with history."""
    counts = ("seconds", "sent", "visible")
    names = [field.name for field in fields(Sample) if field.name not in counts]
    return {name: float(np.median([getattr(sample, name) for sample in samples])) for name in names if samples}


def load(running: rig.Rig, coordinator: rig.Coordinator, given: argparse.Namespace) -> list[Sample]:
    """Loads for a time, then waits until all that was sent has ended."""
    samples, sender, answers = [], running.load("--rate", given.rate, *_SILENT), running.answers()
    watch = Watch(coordinator)
    until = time.monotonic() + given.seconds
    while time.monotonic() < until:
        time.sleep(min(given.sample, max(0.1, until - time.monotonic())))
        samples.append(watch.sample(sender.status.get("sent", 0)))
        print(samples[-1], flush=True)
        assert coordinator.is_running, coordinator.output[-4_000:]
    ended = sender.stop()
    sent, due = ended["sent"], ended["sent"] - ended["rolled_back"]
    coordinator.until(lambda: watch.visible >= due, _BEHIND_S, lambda: f"{watch.visible} of {due} visible")
    answered = answers.stop()["answered"]
    print(f"{sent} transactions, {due} committed and visible, {answered} checks answered")
    return samples


def plot(samples: list[Sample], path: Path) -> None:
    from matplotlib import pyplot

    units = {"oldest_age": "s", "landing_batch": "s", "coordination_batch": "s", "rss": "MiB", "cores": "cores"}
    units |= {"live_files": "files of half", "all_files": "files", "log_files": "files"}
    figure, axes = pyplot.subplots(4, 2, figsize=(10, 10), sharex=True, layout="constrained")
    minutes = [sample.seconds / 60 for sample in samples]
    for axis, (name, unit) in zip(axes.flat, units.items(), strict=True):
        axis.plot(minutes, [getattr(sample, name) for sample in samples], linewidth=1)
        axis.set_ylim(bottom=0)
        axis.set_title(name.replace("_", " "), fontsize=9, loc="left")
        axis.set_ylabel(unit)
    for axis in axes[-1]:
        axis.set_xlabel("minutes")
    figure.savefig(path)


if __name__ == "__main__":
    main()
