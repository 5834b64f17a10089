"""Runs a coordinator that kills itself, JVM and all, at one of its writes; `never` runs it plainly.

python coordination_child.py CONFIG_JSON STEP MOMENT NTH, for example '{...}' coordination:transactions after 1
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from commitlake import config, job, session
from commitlake.streams import batch, finish
from commitlake.streams.coordinator import Coordinator
from commitlake.tables import Warehouse


class Killer:
    """Counts the writes of one step and kills the process group right before or after the `nth`."""

    def __init__(self, step: str, moment: str, nth: int) -> None:
        self.step, self.moment, self.nth = step, moment, nth
        self.seen, self.lock = 0, threading.Lock()

    def at(self, step: str, write: Callable[[], None]) -> None:
        with self.lock:
            self.seen += step == self.step
            is_time = step == self.step and self.seen == self.nth
        if is_time and self.moment == "before":
            os.killpg(0, signal.SIGKILL)
        write()
        if is_time:
            os.killpg(0, signal.SIGKILL)

    def arm(self) -> None:
        append, append_topic, send = Warehouse.append, Warehouse.append_topic, batch.send_checks

        def killing_append(self_: Warehouse, df: Any, name: str, marker: Mapping[str, Any] | None = None) -> None:
            self.at(_step(name, marker), lambda: append(self_, df, name, marker))

        def killing_append_topic(
            self_: Warehouse, df: Any, topic: str, marker: Mapping[str, Any] | None = None
        ) -> None:
            self.at(_step("topic", marker), lambda: append_topic(self_, df, topic, marker))

        def killing_send(*args: Any) -> None:
            self.at("coordination:kafka", lambda: send(*args))

        Warehouse.append = killing_append  # type: ignore[method-assign]
        Warehouse.append_topic = killing_append_topic  # type: ignore[method-assign]
        batch.send_checks = finish.send_checks = killing_send  # type: ignore[attr-defined]


def _step(table: str, marker: Mapping[str, Any] | None) -> str:
    return f"{'landing' if 'landing_id' in (marker or {}) else 'coordination'}:{table}"


def run(arguments: Any) -> None:
    settings = config.from_mapping(json.loads(arguments[0]))
    Killer(arguments[1], arguments[2], int(arguments[3])).arm()
    spark = session.build(settings, master="local[2]", short_lived=True)
    with Coordinator(spark, settings).start(available_now=True):
        pass


if __name__ == "__main__":
    job.main(run)
