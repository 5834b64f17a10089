"""What goes wrong inside a coordinator of the campaign: at its writes, with its clock, with how much it lands at once.

A fault of a write is a mapping with the fields of `WriteFault`; it comes with the plan of a run (`campaign_child`).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from delta.tables import DeltaTable

from commitlake.coordinator.landing import query
from commitlake.protocol import clock
from commitlake.tables import TableName, Warehouse

TABLES = ("positions", "batches", "transactions", "deliveries", "topic", "open_rows", "reentries", "half", "op")
OTHERS = ("delayed", "discarded", "rejected", "checks")


@dataclass(frozen=True)
class WriteFault:
    """What happens at a write to a table.

    Attributes:
        table: its name; `topic` stands for every topic's, `any` for all tables.
        moment: `before` or `after` the write.
        effect: `kill python`, `kill jvm`, `kill both`, `fail`, `full disk` or `delay`.
        nth: which of the writes it is.
        seconds: how long a delay is, or how long writes fail.
    """

    table: str
    moment: str = "before"
    effect: str = "fail"
    nth: int = 1
    seconds: float = 0

    def __str__(self) -> str:
        return f"{self.effect} {self.moment} {self.table} {self.nth}"


class WriteFaults:
    """Counts the writes and lets the faults happen."""

    def __init__(self, faults: Iterable[WriteFault], kill: Callable[[str], None]) -> None:
        self._faults, self._kill = list(faults), kill
        self._seen: dict[WriteFault, int] = dict.fromkeys(self._faults, 0)
        self._until: dict[WriteFault, float] = {}
        self._lock = threading.Lock()

    def around(self, table: str, write: Callable[[], None]) -> None:
        """Writes, with what happens before and after."""
        due = self._due(table)
        for fault in due:
            if fault.moment == "before":
                self._happen(fault)
        write()
        for fault in due:
            if fault.moment == "after":
                self._happen(fault)

    def _due(self, table: str) -> list[WriteFault]:
        with self._lock:
            return [fault for fault in self._faults if fault.table in (table, "any") and self._is_due(fault)]

    def _is_due(self, fault: WriteFault) -> bool:
        self._seen[fault] += 1
        now = time.monotonic()
        if self._seen[fault] == fault.nth:
            self._until[fault] = now + (fault.seconds if fault.effect == "full disk" else 0)
            return True
        return now < self._until.get(fault, now)

    def _happen(self, fault: WriteFault) -> None:
        print(f"FAULT {fault}", flush=True)
        if fault.effect.startswith("kill"):
            self._kill(fault.effect.split()[1])
        if fault.effect == "delay":
            time.sleep(fault.seconds)
        if fault.effect == "fail":
            raise OSError(errno.EIO, f"injected: {fault}")
        if fault.effect == "full disk":
            raise OSError(errno.ENOSPC, "No space left on device")

    def arm(self, patch: pytest.MonkeyPatch) -> None:
        """From now on all writes of this process go through `around`."""
        append, replace = Warehouse.append, Warehouse.replace

        def appending(own: Warehouse, df: Any, name: str, marker: Mapping[str, Any] | None = None) -> None:
            self.around(_called(name), lambda: append(own, df, name, marker))

        def replacing(own: Warehouse, df: Any, name: str) -> None:
            self.around(_called(name), lambda: replace(own, df, name))

        patch.setattr(Warehouse, "append", appending)
        patch.setattr(Warehouse, "replace", replacing)


def _called(name: str) -> str:
    return "topic" if TableName(name).topic else str(name)


def killer(jvm: int) -> Callable[[str], None]:
    """What kills Python, its JVM with the process id `jvm`, or both."""

    def kill(target: str) -> None:
        if target == "both":
            os.killpg(0, signal.SIGKILL)
        os.kill(jvm if target == "jvm" else os.getpid(), signal.SIGKILL)

    return kill


def land_at_most(patch: pytest.MonkeyPatch, records: int) -> None:
    """A landing takes no more than so many records."""
    patch.setattr(query, "MAX_RECORDS", records)


def vacuum_nothing(patch: pytest.MonkeyPatch) -> None:
    """Each start would look through the directories of all tables, for which a round has no time; no file is old."""
    patch.setattr(DeltaTable, "vacuum", lambda *_: None)


def shift_clock(patch: pytest.MonkeyPatch, ahead_ms: int, begin_s: float, seconds: float) -> None:
    """Python's clock in all of CommitLake is wrong for a while; the JVM's stays right.

    Args:
        patch: ends it.
        ahead_ms: by how much; below 0 it is behind.
        begin_s: when that begins, from now on.
        seconds: how long it lasts.
    """
    right, begin = clock.now_ms, time.monotonic() + begin_s

    def now_ms() -> int:
        is_wrong = begin <= time.monotonic() < begin + seconds
        return right() + (ahead_ms if is_wrong else 0)

    for name, module in list(sys.modules.items()):
        if name.startswith("commitlake") and getattr(module, "now_ms", None) is right:
            patch.setattr(module, "now_ms", now_ms)
