"""Runs a coordinator that sends its process group, JVM and all, a signal at one of its writes.

python -m tests.support.coordination_child CONFIG_JSON <<< PLAN_JSON
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake import config
from commitlake.coordinator.coordination import check_requests
from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.recovery import fencing
from commitlake.spark import process, session
from commitlake.tables import TableName, Warehouse
from commitlake.tables.staged_append import StagedAppend


@dataclass(frozen=True)
class Plan:
    """What a child does.

    Attributes:
        step: the write at which the signal is sent; "" for never.
        moment: right `before` or `after` the write, or `within` it: the rows are being written, nothing is committed.
        nth: which of the writes of that step it is.
        number: the signal.
        stays: whether it runs until SIGTERM, instead of working off what is there.
        elsewhere: whether it takes the warehouse for one that is not on a local disk, where there is no lock.
    """

    step: str = ""
    moment: str = "before"
    nth: int = 1
    number: int = signal.SIGKILL
    stays: bool = False
    elsewhere: bool = False


class Fault:
    """Counts the writes of one step and sends the signal at the `nth`."""

    def __init__(self, plan: Plan, scratch: str) -> None:
        self.plan, self.scratch = plan, Path(scratch)
        self.seen, self.lock = 0, threading.Lock()

    def at(self, step: str, rows: Any, write: Callable[[Any], object]) -> None:
        with self.lock:
            self.seen += step == self.plan.step
            is_time = step == self.plan.step and self.seen == self.plan.nth
        if is_time and self.plan.moment == "before":
            os.killpg(0, self.plan.number)
        write(self._signalling(rows) if is_time and self.plan.moment == "within" else rows)
        if is_time and self.plan.moment == "after":
            os.killpg(0, self.plan.number)

    def _signalling(self, rows: DataFrame) -> DataFrame:
        """The same rows; the first that is written sends the signal."""
        group, number, sent = os.getpgid(0), self.plan.number, self.scratch / f"sent-{uuid.uuid4()}"

        @F.udf("boolean")
        def passes(_: object) -> bool:
            if not sent.exists():
                sent.touch()
                os.killpg(group, number)  # Spark's Python workers have a group of their own
            return True

        return rows.where(passes(F.col(rows.columns[0]).cast("string")))

    def arm(self) -> None:
        append, send, commit = Warehouse.append, check_requests.send, StagedAppend._commit

        def failing_append(self_: Warehouse, df: Any, name: str, marker: Mapping[str, Any] | None = None) -> None:
            self.at(_step(name, marker), df, lambda rows: append(self_, rows, name, marker))

        def failing_send(settings: config.Config, checked: DataFrame, *more: Any) -> None:
            self.at("coordination:kafka", checked, lambda rows: send(settings, rows, *more))

        def failing_commit(self_: StagedAppend, step: Any, *more: Any) -> None:
            self.at(_step("staged", step.marker), None, lambda _: commit(self_, step, *more))

        patch = pytest.MonkeyPatch()
        patch.setattr(Warehouse, "append", failing_append)
        patch.setattr(StagedAppend, "_commit", failing_commit)
        patch.setattr(check_requests, "send", failing_send)


def _step(table: str, marker: Mapping[str, Any] | None) -> str:
    if table == "epochs":
        return table
    name = "topic" if TableName(table).topic else table
    return f"{'landing' if 'landing_id' in (marker or {}) else 'coordination'}:{name}"


def run(arguments: Any) -> None:
    settings = config.from_mapping(json.loads(arguments[0]))
    spark = session.build(settings, master="local[2]", short_lived=True)
    plan = Plan(**json.loads(sys.stdin.read()))
    Fault(plan, settings.checkpoints).arm()
    if plan.elsewhere:
        pytest.MonkeyPatch().setattr(fencing, "is_local", lambda _: False)
    with Coordinator(spark, settings).start(available_now=not plan.stays) as coordinator:
        if plan.stays:
            stop = process.stop_on_signals()
            print("READY", flush=True)
            while not stop.is_set() and not coordinator.await_termination(timeout=0.2):
                pass


if __name__ == "__main__":
    process.main(run)
