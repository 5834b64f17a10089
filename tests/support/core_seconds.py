"""Core seconds: what a test, and every process that it started, took from the processors.

Unlike seconds of a clock they are the same beside other work. A test of the short run that takes more than its share
fails with its name, so that the run stays short.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

MOST = 20
_QUICK_LOOP_S = 0.021  # what `_slowness` takes on a quick day of the machine that `MOST` is meant for
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


def _slowness() -> float:
    """How much longer this processor takes today for the same work: the same machine differs by 2.5 between days."""
    begun = time.process_time()
    sum(number * number for number in range(400_000))
    return max(1.0, (time.process_time() - begun) / _QUICK_LOOP_S)


class CoreSeconds:
    """Counts them by file, and fails the tests of the short run that take too many."""

    def __init__(self) -> None:
        self.by_file: dict[str, float] = defaultdict(float)

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
        begun = used()
        result = yield
        took, short = used() - begun, item.get_closest_marker("short")
        if short and took > (most := short.kwargs.get("core_seconds", MOST)) and took > most * _slowness():
            pytest.fail(
                f"took {took:.0f} core seconds, and may take {most} in the short run: make it cheaper, leave it to "
                "`tests/run.sh --all`, or say why it is worth more by `@pytest.mark.short(core_seconds=...)`"
            )
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The dearest files first, all that took a second."""
        terminalreporter.section("core seconds by file")
        for file, seconds in sorted(self.by_file.items(), key=lambda each: -each[1]):
            if seconds >= 1:
                terminalreporter.write_line(f"{seconds:7.0f} {file}")
        terminalreporter.write_line(f"{sum(self.by_file.values()):7.0f} in all")
