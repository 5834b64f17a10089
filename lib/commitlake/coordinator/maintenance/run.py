"""Keeps a warehouse small and quick: it deletes old rows, compacts small files, and deletes unused files.

Maintenance also saves the open rows, so that the next start is quick.

Every batch writes a file or more for each queue and table. So a table that gets a batch a second has 14 000 files
after an hour, and every batch reads their list.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType

from commitlake.config import Config, disks
from commitlake.coordinator.landing import positions
from commitlake.coordinator.maintenance import retention
from commitlake.coordinator.recovery import rebuild
from commitlake.errors import CommitLakeError, root_reason
from commitlake.protocol.clock import as_datetime, now_ms
from commitlake.spark import session
from commitlake.spark.frames import checkpoint_now
from commitlake.spark.jvm import java, scala
from commitlake.tables import TABLES, TableName, Warehouse, commits, topic_table
from commitlake.tables.schemas import FILE_RETENTION, interval

log = logging.getLogger(__name__)

_FEW_FILES = 16
"""A table with no more files needs no compaction: 4 queues with a few files each."""
_DELETE_EVERY = 0.01
"""A part of the retention: a search that finds nothing old costs 10 s of CPU, and a hundredth later is early enough."""
_VACUUM_EVERY = 0.25
"""A part of the time for which files are kept: a table's directory holds unused files a quarter longer at most."""
_TRIM_EVERY_S = 600.0
"""Pause between two looks for old files of a topic, at least."""
_SAVE_EVERY_S, _SAVE_SHARE = 120.0, 20
"""Pause between saves of the open rows, at least; and how many times the last save: the more is open, the longer it is.
A start reads all small files since the last save: after four minutes beside 20 transactions a second it did so for 7 of
the 11 s in which a standby took over."""
_HOUR_MS = 3_600_000
Pause = Callable[[], AbstractContextManager[object]]
"""A context in which no batch runs."""


@dataclass
class Report:
    """The work of a run, by table: rows deleted, files compacted, failures; `kept` says why no row was deleted.

    `trimmed` has the files that went by age, by topic.
    """

    deleted: dict[str, int] = field(default_factory=dict)
    trimmed: dict[str, int] = field(default_factory=dict)
    compacted: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    kept: str = ""

    def __str__(self) -> str:
        """The report as one line."""
        rows = ", ".join(f"{name} {count}" for name, count in self.deleted.items()) or self.kept or "none"
        files = ", ".join(f"{name} {count}" for name, count in self.compacted.items()) or "none"
        failed = f"; failed, and is tried again: {'; '.join(self.failed)}" if self.failed else ""
        old = ", ".join(f"{topic} {count}" for topic, count in self.trimmed.items())
        trimmed = f"; old files removed: {old}" if old else ""
        return f"rows deleted: {rows}; files compacted: {files}{trimmed}{failed}"


class Maintenance:
    """Maintains the tables of one warehouse, in Spark sessions of its own: some settings hold for it only.

    Args:
        warehouse: the tables; by its guard an older coordinator maintains nothing under a newer one.
        config: the configuration.
        pause: a context in which no batch of this process runs, for deletes of rows.
        go_on: called between two tables; False ends the run.
        now: Kafka's time, ms since epoch, UTC: rows of topics have it. The driver's without a coordinator.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        config: Config,
        pause: Pause = nullcontext,
        go_on: Callable[[], bool] = lambda: True,
        now: Callable[[], int] = now_ms,
    ) -> None:
        self._config, self._pause, self._go_on, self._plain = config, pause, go_on, warehouse
        self._warehouse, self._files = (
            warehouse.beside(session.beside(warehouse.spark, config, settings))
            for settings in (session.HISTORY_SETTINGS, session.MAINTENANCE_SETTINGS)
        )
        self._jobs = f"commitlake-maintenance-{uuid.uuid4().hex}"
        self._next_delete = time.monotonic()
        self._next_vacuum: dict[str, float] = {}
        self._next_trim: dict[str, float] = {}
        self._now_ms = now

    def run(self) -> Report:
        """Deletes old rows, compacts tables with many files, and vacuums each from time to time.

        A failure on one table is logged, and the next run retries it; the other tables proceed.
        """
        report, now = Report(), time.monotonic()
        self._say_nothing()
        if not self._try(self.save_open_rows, "saving what is open", report):
            # Without saved rows a start works out the open rows from all of history, which must then be there.
            report.kept = "none, what is open could not be saved"
        with self._pause():
            # An append that was held up for hours has ended by now, and files of later appends are young. So all files
            # that VACUUM takes for left behind are left behind.
            pass
        if now >= self._next_delete and not report.kept:
            self._next_delete = now + self._config.maintenance.retention_ms / 1_000 * _DELETE_EVERY
            self._try(partial(self._delete_old_rows, report), "deleting old rows", report)
        self._try(partial(self._trim_topics, report), "deleting old rows of topics", report)
        for shown, name, keep_ms in self._tables():
            if self._go_on():
                self._try(partial(self._tidy, report, shown, name, keep_ms), shown, report)
        return report

    def save_open_rows(self) -> None:
        """Saves the open rows, if anything has landed since the last time."""
        context = self._files.spark.sparkContext  # the pool and the group are of this thread's jobs
        context.setLocalProperty("spark.scheduler.pool", "maintenance")
        context.setJobGroup(self._jobs, "maintenance")
        rebuild.save_snapshot(self._warehouse, self._config.transaction, self._plain)

    def cut_short(self) -> None:
        """Cancels the jobs of a run in flight; its uncommitted work has no effect, as after a kill."""
        self._files.spark.sparkContext.cancelJobGroup(self._jobs)

    def _try(self, step: Callable[[], None], name: str, report: Report) -> bool:
        try:
            step()
        except (PySparkException, Py4JError, CommitLakeError) as error:
            if self._go_on():
                report.failed.append(f"{name}: {root_reason(error)}")
            return False
        return True

    def _delete_old_rows(self, report: Report) -> None:
        timing, now = self._config, now_ms()
        stored = now - max(timing.maintenance.retention_ms, timing.transaction.op_park_time_ms)
        ended = stored - timing.transaction.op_park_time_ms
        last = self._warehouse.newest_batch()
        if last < 0:
            report.kept = "none, nothing has ended yet"
            return
        cut = retention.Cut(last, ended, stored)
        for step in retention.steps(self._warehouse, cut):
            if self._go_on() and not report.kept:
                self._delete(report, step, cut)

    def _kept(self, names: Sequence[str] = positions.LANDED) -> str:
        """Why no row of these tables may be deleted; empty when rows may be."""
        with self._pause():  # a landing in flight looks like one that was cut short
            newest = positions.newest(self._warehouse)
            if newest is None or positions.uncommitted(self._warehouse, newest, names) is not None:
                # The next start leaves out the records that stand in the tables, so these must stay.
                return "none, a landing was cut short; start the coordinator first"
        return ""

    def _delete(self, report: Report, step: retention.RetentionStep, cut: retention.Cut) -> None:
        old = checkpoint_now(step.rows())
        count = old.count()
        if not count:
            return
        if not report.deleted:
            report.kept = self._kept()  # only before the first delete: it delays rounds for some seconds
            if report.kept:
                return
            self._tell(cut)
        same = " AND ".join([f"t.{name} = old.{name}" for name in step.on] + _bounds(old, step.on))
        with self._pause():  # a MERGE makes Spark compute cached frames of a batch again
            guarded = self._warehouse.guard.rows(old)
            merge = self._warehouse.table(step.table).alias("t").merge(guarded.alias("old"), same)
            merge.whenMatchedDelete().execute()
        report.deleted[step.table] = count

    def _tell(self, cut: retention.Cut) -> None:
        """Records the cut in `maintenance`: an audit must know before the first delete which rows may be gone."""
        row = {"ended_before": as_datetime(cut.stored_ms), "maintained_at": as_datetime(now_ms())}
        self._warehouse.add([row], "maintenance")

    def _trim_topics(self, report: Report) -> None:
        """Removes old files of the topics for which it is time."""
        if not any(self._config.topics.retention.values()):
            return
        ages = {topic: self._config.topics.retention_of(topic) for topic in sorted(self._warehouse.topics())}
        now = time.monotonic()
        due = {topic: age for topic, age in ages.items() if age and now >= self._next_trim.get(topic, now)}
        if not due or self._kept([*map(topic_table, due)]):  # one look for all, since it delays rounds
            return
        for topic, age_ms in due.items():
            if self._go_on():
                self._try(partial(self._trim, report, topic, age_ms), f"deleting old rows of topics/{topic}", report)

    def _trim(self, report: Report, topic: str, age_ms: int) -> None:
        count = retention.delete_old_files(self._files, topic, self._now_ms() - age_ms, self._pause)
        if count:
            report.trimmed[topic] = count
        if count < retention.MOST_FILES:
            self._next_trim[topic] = time.monotonic() + max(_TRIM_EVERY_S, age_ms / 1_000 * _DELETE_EVERY)

    def _tables(self) -> Iterator[tuple[str, str, int]]:
        """Each table: its name in a report, its name, and the time for which its unused files are kept."""
        keep = self._config.maintenance
        for name in TABLES:
            yield name, name, keep.file_retention_ms
        for topic in sorted(self._warehouse.topics()):
            yield f"topics/{topic}", topic_table(topic), keep.topic_file_retention_ms

    @contextmanager
    def _files_of(self, topic: str | None, size: int) -> Iterator[None]:
        """Compaction of a topic whose rows go by age leaves smaller files, each of a short time: whole files go."""
        if topic is None or not self._config.topics.retention_of(topic):
            yield
            return
        most = size // (retention.WINDOWS * self._config.kafka.queues)
        try:
            self._set(session.file_sizes(min(session.LARGEST_FILE, most)))
            yield
        finally:
            self._set(session.file_sizes(session.LARGEST_FILE))

    def _set(self, settings: Mapping[str, str]) -> None:
        for name, value in settings.items():
            self._files.spark.conf.set(name, value)

    def _say_nothing(self) -> None:
        """Silences Scala's console in this thread: Delta prints "Deleted 0 files" there for each table."""
        spark = self._files.spark
        with suppress(Py4JError):
            nowhere = java(spark, "java.io.PrintStream")(java(spark, "java.io.OutputStream").nullOutputStream())
            scala(spark, "scala.Console$").setOutDirect(nowhere)

    def _tidy(self, report: Report, shown: str, name: str, keep_ms: int) -> None:
        table, now = self._files.table(name), time.monotonic()
        files, size, properties = table.detail().select("numFiles", "sizeInBytes", "properties").collect()[0]
        if properties.get(FILE_RETENTION) != interval(keep_ms):
            with self._pause():  # an append beside it would fail
                self._files.set_property(name, FILE_RETENTION, interval(keep_ms))
        if files > _FEW_FILES:
            with self._files_of(TableName(name).topic, size):
                report.compacted[shown] = _compact(table)
        if now >= self._next_vacuum.get(name, now):  # it lists all files, so not more often than needed
            table.vacuum(keep_ms / _HOUR_MS)
            commits.forget(table, keep_ms)
            self._next_vacuum[name] = now + keep_ms / 1_000 * _VACUUM_EVERY


def _bounds(old: DataFrame, on: Sequence[str]) -> list[str]:
    """Conditions that let Delta skip files without rows to delete: a MERGE finds none by itself."""
    numbers = [name for name in on if old.schema[name].dataType in (IntegerType(), LongType())]
    ends = old.agg(*map(F.min, numbers), *map(F.max, numbers)).collect()[0]
    lows, highs = ends[: len(numbers)], ends[len(numbers) :]
    return [f"t.{name} BETWEEN {low} AND {high}" for name, low, high in zip(numbers, lows, highs, strict=True)]


def _compact(table: DeltaTable) -> int:
    done = table.optimize().executeCompaction().select("metrics.numFilesRemoved").collect()
    return int(done[0]["numFilesRemoved"])


def at_intervals(
    maintenance: Maintenance, interval_ms: int, stopping: threading.Event, ended: Callable[[], None]
) -> Callable[[float], bool]:
    """Runs maintenance in a thread until `stopping`, and saves the open rows between two runs.

    A failure is logged and retried, and stops nothing.

    Args:
        maintenance: the maintenance to run.
        interval_ms: time between the end of a run and the next one.
        stopping: ends the thread when it is set.
        ended: called after each run.

    Returns:
        A function that waits for the end of the thread, so many seconds at most, and returns whether the thread has
        ended. It cuts a run short: a compaction may take half a minute, and a supervisor gives a process 30 s to stop.
    """

    def run() -> None:
        disks.keep_ballast(maintenance._config)
        report = maintenance.run()
        log.log(logging.WARNING if report.failed else logging.INFO, "maintenance: %s", report)
        ended()

    def attempt(step: Callable[[], None], name: str) -> float:
        begun = time.monotonic()
        try:
            step()
        except Exception as error:  # without this thread the tables' files would grow for ever
            if not stopping.is_set():
                log.warning("%s failed, and is tried again: %s", name, root_reason(error))
        return time.monotonic() - begun

    def serve() -> None:
        due, pause_s = time.monotonic() + interval_ms / 1_000, _SAVE_EVERY_S
        while not stopping.wait(max(0.0, min(pause_s, due - time.monotonic()))):
            if time.monotonic() < due:
                pause_s = max(_SAVE_EVERY_S, _SAVE_SHARE * attempt(maintenance.save_open_rows, "saving what is open"))
            else:
                attempt(run, "maintenance")
                due = time.monotonic() + interval_ms / 1_000

    thread = threading.Thread(target=serve, name="maintenance", daemon=True)
    thread.start()

    def end(timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while thread.is_alive() and time.monotonic() < until:
            with suppress(Py4JError, OSError, AttributeError):  # the JVM, or the session, has already ended
                maintenance.cut_short()
            thread.join(0.2)
        return not thread.is_alive()

    return end
