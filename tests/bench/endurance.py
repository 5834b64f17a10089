"""A long steady load on a coordinator as users start it: does anything grow with history?

    .venv/bin/python -m tests.bench.endurance --rate 2000 --seconds 3600 --plot docs/endurance.svg

Prints a line every 30 s: the rows visible so far, the highest age of a half message when a commit made it visible, the
seconds from batch to batch, memory and CPU of the coordinator, and files. Ends with an audit of the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tests.bench.producers import Load, mostly_decided
from tests.support.killing import ROOT
from tests.support.polling import wait_for
from tests.support.running import Coordinator, coordinator

from commitlake.kafka.embedded import EmbeddedBroker

_SAMPLE_S = 30
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


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
        """One line of the report."""
        return " ".join(f"{name}={value:,.1f}".removesuffix(".0") for name, value in asdict(self).items())


class Watch:
    """Reads the tables' logs from outside, as they grow."""

    def __init__(self, running: Coordinator) -> None:
        self.running, self.begun = running, time.monotonic()
        self._seen: dict[str, int] = {}
        self._visible, self._cpu, self._at = 0, self._cpu_seconds(), time.monotonic()

    def sample(self, sent: int) -> Sample:
        """The figures since the last call."""
        now = time.monotonic()
        shown = self._commits("topics/orders")
        added = [json.loads(add["stats"]) | {"at": at} for at, adds in shown for add in adds]
        self._visible += sum(stats["numRecords"] for stats in added)
        ages = [stats["at"] - _epoch(stats["minValues"]["stored_at"]) for stats in added]
        cpu, wall = self._cpu_seconds(), now - self._at
        tables = [path.parent for path in self.running.warehouse.glob("**/_delta_log") if "_kafka" not in path.parts]
        sample = Sample(
            seconds=now - self.begun,
            sent=sent,
            visible=self._visible,
            oldest_age=max(ages, default=float("nan")),
            landing_batch=wall / max(1, len(self._commits("op"))),
            coordination_batch=wall / max(1, len(self._commits("batches"))),
            rss=self._rss(),
            cores=(cpu - self._cpu) / wall,
            live_files=_live_files(self.running.warehouse / "half"),
            all_files=sum(1 for table in tables for _ in table.glob("**/*.parquet")),
            log_files=sum(1 for table in tables for _ in (table / "_delta_log").iterdir()),
        )
        self._cpu, self._at = cpu, now
        return sample

    def _commits(self, table: str) -> list[tuple[float, list[dict[str, str]]]]:
        """The appends since the last call: their time and what they added."""
        found, last = [], self._seen.get(table, -1)
        for path in sorted((self.running.warehouse / table / "_delta_log").glob("*.json")):
            if int(path.stem) > last:
                self._seen[table] = int(path.stem)
                adds = [json.loads(line)["add"] for line in path.read_text().splitlines() if line.startswith('{"add"')]
                if adds and adds[0]["dataChange"]:
                    found.append((path.stat().st_mtime, adds))
        return found

    def _cpu_seconds(self) -> float:
        return sum(int(field) for stat in self._stats() for field in stat[11:15]) / _TICKS

    def _rss(self) -> float:
        return sum(int(stat[21]) for stat in self._stats()) * _PAGE / (1 << 20)

    def _stats(self) -> list[list[str]]:
        """Fields after the command's name of /proc/PID/stat, of all processes of the coordinator's session."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.running.process.pid:
                found.append(fields)
        return found


def _epoch(text: str) -> float:
    return float(np.datetime64(text.removesuffix("Z").split("+")[0], "us").astype("int64")) / 1e6


def _live_files(table: Path) -> int:
    from deltalake import DeltaTable

    return len(DeltaTable(str(table)).file_uris())


def main() -> None:
    """Runs it and prints; fails when a transaction is missing or the audit finds something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=3_600)
    parser.add_argument("--sample", type=float, default=_SAMPLE_S)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="commitlake-bench-") as place,
        EmbeddedBroker(Path(place, "kafka")) as kafka,
    ):
        settings = {"kafka__bootstrap_servers": kafka.bootstrap_servers}
        with coordinator(Path(place), heap="2g", **settings) as running:
            running.ready()
            samples = load(running, kafka.bootstrap_servers, given.rate, given.seconds, given.sample)
            running.process.terminate()
            assert running.end() == 0, running.said
        audited = subprocess.run(
            [ROOT / "spark-submit.sh", "audit", "--set", f"warehouse={place}/warehouse"], check=False
        )
    if given.plot:
        plot(samples, given.plot)
    sys.exit(audited.returncode)


def load(running: Coordinator, servers: str, rate: int, seconds: float, every: float) -> list[Sample]:
    """Loads for `seconds`, then waits until all that was sent has ended."""
    samples = []
    with Load(servers, "commitlake.", rate, mostly_decided) as producers:
        watch = Watch(running)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(min(every, max(0.1, until - time.monotonic())))
            samples.append(watch.sample(producers.sent))
            print(samples[-1], flush=True)
            assert running.process.poll() is None, running.said
        producers.stop_sending()
        due = sum(mostly_decided(number) != "ROLLBACK" for number in range(producers.sent))
        wait_for(lambda: watch.sample(producers.sent).visible >= due, 240, lambda: f"{watch._visible} of {due} visible")
        print(f"{producers.sent} transactions, {due} committed and visible, {producers.answered} checks answered")
    return samples


def plot(samples: list[Sample], path: Path) -> None:
    """Draws every figure over time."""
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
