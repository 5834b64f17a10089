"""What the last rounds took: a log line for each, and the newest one for metrics."""

from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import asdict, dataclass

from commitlake.clock import now_ms

log = logging.getLogger(__name__)

FORMAT = "COMMITLAKE_LOG_FORMAT"


@dataclass(frozen=True)
class Round:
    """One round of landing and coordination.

    Attributes:
        ended_at: ms since epoch, UTC.
        records: how many records of Kafka it landed.
        judge_s: seconds in which they were read and judged.
        write_s: seconds until they were written and what they decided was visible.
    """

    ended_at: int
    records: int
    judge_s: float
    write_s: float

    def line(self) -> str:
        """As it is logged: words, or JSON where the environment variable COMMITLAKE_LOG_FORMAT is json."""
        if os.environ.get(FORMAT) == "json":
            return json.dumps({"event": "round", **asdict(self)})
        return f"round: {self.records} records, judged in {self.judge_s:.2f} s, visible {self.write_s:.2f} s later"


class Rounds:
    """The rounds of this run. Safe to use in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self.newest: Round | None = None
        self.alive_at = now_ms()
        """When a round ended last, or was found not to be needed."""

    def add(self, records: int, judge_s: float, write_s: float) -> None:
        """A round has ended."""
        done = Round(now_ms(), records, judge_s, write_s)
        with self._lock:
            self.count += 1
            self.newest, self.alive_at = done, done.ended_at
        log.info("%s", done.line())

    def idle(self) -> None:
        """Nothing was to be done."""
        self.alive_at = now_ms()
