"""Core seconds: what a test, and every process that it started, took from the processors.

A test of the short run that takes more than its share there fails with its name, so that the run stays short: `-m`
begins with `short`. Elsewhere it may be the first in a cold JVM. The same work takes up to 2.5 times as many on a slow
day: a share grows by what a sample of fixed work took while the test ran. What is killed together with its parent
counts for nobody.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

MOST = 20
_QUIET_S = 0.0045  # what a sample takes on a quick day, with nothing beside it, where `MOST` was measured
_SAMPLE_EVERY_S = 1.0
_CHANCE = random.Random(0)
_SCATTERED = [_CHANCE.random() for _ in range(40_000)]  # to sort them reads 1 MB of objects in random order
_TICKS = os.sysconf("SC_CLK_TCK")


def used() -> float:
    """Core seconds of this process, of its descendants that live, and of those that have been waited for."""
    return sum(_of(pid) for pid in [os.getpid(), *_descendants(os.getpid())])


def _of(pid: int) -> float:
    """Its own and those of its dead children; 0.0 where it has just ended, or no /proc tells."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / _TICKS


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in listed.read_text().split()]
        except OSError:
            continue  # the thread has just ended
    return [*found, *(deeper for child in found for deeper in _descendants(child))]


class Slowness:
    """How much more of the processors the same work takes than at best: a sample each second, in a thread."""

    def __init__(self) -> None:
        self._samples: list[float] = []
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while True:
            begun = time.thread_time()
            sorted(_SCATTERED)
            self._samples.append(time.thread_time() - begun)
            time.sleep(_SAMPLE_EVERY_S)

    @property
    def count(self) -> int:
        return len(self._samples)

    def since(self, count: int) -> float:
        """The median of all that followed the first `count`, never below 1."""
        return max(1.0, statistics.median(self._samples[count:] or [0.0]) / _QUIET_S)


class CoreSeconds:
    """Counts them by file, and fails the tests of the short run that take too many."""

    def __init__(self) -> None:
        self.by_file: dict[str, float] = defaultdict(float)
        self._slowness = Slowness()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """All of a test, with the fixtures that begin or end with it."""
        begun = used()
        result = yield
        self.by_file[item.nodeid.split("::")[0]] += used() - begun
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """What others share, as Spark's start, counts for nobody."""
        begun, samples = used(), self._slowness.count
        result = yield
        took, slower = used() - begun, self._slowness.since(samples)
        is_short_run = str(item.config.option.markexpr).startswith("short")
        short = item.get_closest_marker("short") if is_short_run else None
        if short and took > slower * (most := short.kwargs.get("core_seconds", MOST)):
            pytest.fail(
                f"took {took:.0f} core seconds, and may take {most * slower:.0f} in the short run ({most} on a quiet, "
                f"quick machine; this one takes {slower:.2f} times as many): make it cheaper, leave it to "
                "`tests/run.sh --all`, or say why it is worth more by `@pytest.mark.short(core_seconds=...)`"
            )
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The dearest files first, all that took a second."""
        terminalreporter.section("core seconds by file")
        for file, seconds in sorted(self.by_file.items(), key=lambda each: -each[1]):
            if seconds >= 1:
                terminalreporter.write_line(f"{seconds:7.0f} {file}")
        slower = self._slowness.since(0)
        terminalreporter.write_line(f"{sum(self.by_file.values()):7.0f} in all, at {slower:.2f} times a quiet day's")
