"""What goes wrong inside a coordinator: at its writes, with its clock, with how much it lands at once.

A fault of a write is a mapping with the fields of `WriteFault`; it comes with the plan of a run (`coordinator_child`).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.coordinator.coordination import check_requests
from commitlake.coordinator.landing import parts, query
from commitlake.protocol import clock
from commitlake.tables import TableName, Warehouse, small_files
from commitlake.tables.direct_append import StagedAppend

TABLES = ("positions", "batches", "transactions", "deliveries", "topic", "open_rows", "reentries", "half", "op")
OTHERS = ("delayed", "discarded", "rejected", "checks", "files", "kafka")


@dataclass(frozen=True)
class WriteFault:
    """What happens at a write.

    Attributes:
        step: `landing:half` for a landing's append to a table, `coordination:transactions` for one of coordination's,
            `half` for both; `topic` is every topic's table, `files` what the driver writes of a few rows before their
            commit, `staged` the commit of one of several topics with many rows, `kafka` the check requests, `any` all
            appends.
        moment: `before` or `after` the write, or `within` it: rows are being written, nothing is committed.
        effect: `kill python`, `kill jvm`, `kill both`, `hold up`, `fail`, `full disk` or `delay`; within a write only
            `kill both` and `hold up`.
        nth: which of the writes it is.
        seconds: how long a delay is, or how long writes fail.
    """

    step: str
    moment: str = "before"
    effect: str = "kill both"
    nth: int = 1
    seconds: float = 0

    def __str__(self) -> str:
        return f"{self.effect} {self.moment} {self.step} {self.nth}"

    def concerns(self, step: str) -> bool:
        """Whether a write is one of those it counts."""
        table = step.rpartition(":")[2]
        return self.step in (step, table) or (self.step == "any" and table not in ("files", "staged", "kafka"))


class WriteFaults:
    """Counts the writes and lets the faults happen.

    Args:
        faults: what happens.
        jvm: the process id of this Python's JVM.
        scratch: a directory.
    """

    def __init__(self, faults: Iterable[WriteFault], jvm: int, scratch: str) -> None:
        self._faults, self._jvm, self._scratch = list(faults), jvm, Path(scratch)
        self._seen: dict[WriteFault, int] = dict.fromkeys(self._faults, 0)
        self._until: dict[WriteFault, float] = {}
        self._lock = threading.Lock()

    def around(self, step: str, rows: Any, write: Callable[[Any], object]) -> None:
        """Writes, with what happens before, within and after."""
        due = self._due(step)
        for fault in due:
            if fault.moment == "before":
                self._happen(fault)
        write(self._signalling(rows, due[0].effect) if due and due[0].moment == "within" else rows)
        for fault in due:
            if fault.moment == "after":
                self._happen(fault)

    def _due(self, step: str) -> list[WriteFault]:
        with self._lock:
            return [fault for fault in self._faults if fault.concerns(step) and self._is_due(fault)]

    def _is_due(self, fault: WriteFault) -> bool:
        self._seen[fault] += 1
        now = time.monotonic()
        if self._seen[fault] == fault.nth:
            self._until[fault] = now + (fault.seconds if fault.effect == "full disk" else 0)
            return True
        return now < self._until.get(fault, now)

    def _signalling(self, rows: Any, effect: str) -> Any:
        """The same rows; the first that is written sends the signal. That of rows that the driver has comes at once."""
        group, number, sent = os.getpgid(0), _signal_of(effect), self._scratch / f"sent-{uuid.uuid4()}"
        if not isinstance(rows, DataFrame):
            os.killpg(group, number)
            return rows

        @F.udf("boolean")
        def passes(_: object) -> bool:
            if not sent.exists():
                sent.touch()
                os.killpg(group, number)  # Spark's Python workers have a group of their own
            return True

        return rows.where(passes(F.col(rows.columns[0]).cast("string")))

    def _happen(self, fault: WriteFault) -> None:
        print(f"FAULT {fault}", flush=True)
        if fault.effect in ("kill both", "hold up"):
            os.killpg(0, _signal_of(fault.effect))
        elif fault.effect.startswith("kill"):
            os.kill(self._jvm if fault.effect == "kill jvm" else os.getpid(), signal.SIGKILL)
        elif fault.effect == "delay":
            time.sleep(fault.seconds)
        elif fault.effect == "fail":
            raise OSError(errno.EIO, f"injected: {fault}")
        elif fault.effect == "full disk":
            raise OSError(errno.ENOSPC, "No space left on device")

    def arm(self, patch: pytest.MonkeyPatch) -> None:
        """From now on all writes of this process go through `around`."""
        append, replace, send, commit = Warehouse.append, Warehouse.replace, check_requests.send, StagedAppend._commit
        written = small_files.written

        def appending(
            own: Warehouse, df: Any, name: str, marker: Mapping[str, Any] | None = None, *, few: bool = False
        ) -> None:
            self.around(_step(name, marker), df, lambda rows: append(own, rows, name, marker, few=few))

        def replacing(own: Warehouse, df: Any, name: str) -> None:
            self.around(_step(name, None), df, lambda rows: replace(own, rows, name))

        def sending(settings: Any, checked: DataFrame, *more: Any) -> None:
            self.around("coordination:kafka", checked, lambda rows: send(settings, rows, *more))

        def committing(own: StagedAppend, step: Any, *more: Any) -> None:
            self.around(_step("staged", step.marker), None, lambda _: commit(own, step, *more))

        def writing(rows: Any, *more: Any) -> small_files.Adds:
            adds: list[small_files.Adds] = []
            self.around("files", rows, lambda own: adds.append(written(own, *more)))
            return adds[0]

        patch.setattr(small_files, "written", writing)
        patch.setattr(Warehouse, "append", appending)
        patch.setattr(Warehouse, "replace", replacing)
        patch.setattr(check_requests, "send", sending)
        patch.setattr(StagedAppend, "_commit", committing)


def _step(table: str, marker: Mapping[str, Any] | None) -> str:
    name = "topic" if TableName(table).topic else table
    return f"{'landing' if 'landing_id' in (marker or {}) else 'coordination'}:{name}"


def _signal_of(effect: str) -> signal.Signals:
    return signal.SIGSTOP if effect == "hold up" else signal.SIGKILL


def land_at_most(patch: pytest.MonkeyPatch, records: int) -> None:
    """A landing takes no more than so many records, and lands them in two parts or more."""
    patch.setattr(query, "MAX_RECORDS", records)
    patch.setattr(parts, "MOST_BYTES", max(1, records // 2) * (parts.RECORD + 100))


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
