"""Times of the rounds: a log line for each, and the newest one for metrics."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import asdict, dataclass

from commitlake.protocol.clock import now_ms
from commitlake.spark.log_lines import FIELDS

log = logging.getLogger(__name__)

_SLOW_S = 10.0
"""Rounds under a load that two cores can carry take up to 5 s."""
_SLOW_ROUNDS = 3
_TELL_EVERY_S = 600.0


@dataclass(frozen=True)
class RoundTiming:
    """One round of landing and coordination.

    Attributes:
        ended_at: ms since epoch, UTC.
        records: how many records of Kafka it landed.
        classify_s: seconds in which the records were read and classified.
        write_s: seconds after that until they were written and their decisions were visible.
    """

    ended_at: int
    records: int
    classify_s: float
    write_s: float

    def line(self) -> str:
        """The text of its log line."""
        return (
            f"round: {self.records} records, classified in {self.classify_s:.2f} s, visible {self.write_s:.2f} s later"
        )


class RoundLog:
    """The rounds of this run. Safe to use in any thread."""

    def __init__(self, interval_ms: int) -> None:
        self._lock = threading.Lock()
        self._most_s = max(_SLOW_S, 5 * interval_ms / 1_000)
        self._slow = 0
        self._told_at = float("-inf")
        self.count = self.records = 0
        self.classify_s = self.write_s = 0.0
        """Sums over all rounds."""
        self.newest: RoundTiming | None = None
        self.alive_at = now_ms()
        """When a round last ended, or was found not to be needed; ms since epoch, UTC."""
        self.maintained_at = now_ms()
        """When a run of maintenance last ended; before the first one, when this run began; ms since epoch, UTC."""

    def add(self, records: int, classify_s: float, write_s: float) -> None:
        """Notes and logs a round that has ended; warns when rounds fall behind."""
        done = RoundTiming(now_ms(), records, classify_s, write_s)
        with self._lock:
            self.count += 1
            self.records += records
            self.classify_s += classify_s
            self.write_s += write_s
            self.newest, self.alive_at = done, done.ended_at
        log.info("%s", done.line(), extra={FIELDS: {"event": "round", **asdict(done)}})
        self._look_whether_behind(classify_s + write_s)

    def alive(self) -> None:
        """Notes that all that was due is done."""
        self.alive_at = now_ms()

    def idle(self) -> None:
        """Notes that nothing was due; ends a series of slow rounds."""
        self.alive()
        self._slow = 0

    def maintained(self) -> None:
        """Notes that a run of maintenance has ended."""
        self.maintained_at = now_ms()

    def _look_whether_behind(self, took_s: float) -> None:
        """Warns of slow rounds. Spark's warning names no cause, and comes for each round longer than the interval."""
        self._slow = self._slow + 1 if took_s > self._most_s else 0
        if self._slow >= _SLOW_ROUNDS and time.monotonic() - self._told_at > _TELL_EVERY_S:
            self._told_at = time.monotonic()
            told = (self._slow, self._most_s, took_s)
            what = "falling behind: %d rounds in a row took longer than %.0f s, the newest %.1f s; "
            log.warning(f"{what}give it more cores, or see Sizing in docs/how-to/size-and-maintain.md", *told)
