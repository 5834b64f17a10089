"""The coordinator: landing and coordination in one Spark application, from start to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Self

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import commitlake
from commitlake.config import Config
from commitlake.coordination import input_rows, query
from commitlake.coordination.commit import BatchWriter
from commitlake.errors import CommitLakeError, StreamError, root_reason
from commitlake.kafka import clock_skew, topics
from commitlake.kafka.embedded import provide
from commitlake.landing.query import Landing
from commitlake.maintenance.run import Maintenance, at_intervals
from commitlake.recovery import complete_batch, fencing, rebuild
from commitlake.recovery.fencing import WarehouseLock
from commitlake.spark import checkpoints, session
from commitlake.tables import Warehouse

log = logging.getLogger(__name__)

_AWAITED = ("op", "admin", "half")
"""What must have landed as far as Kafka held it at the start: ops come before deadlines, half messages before the park
times of their ops are over."""
_STOP_TIMEOUT_S = 60
_FEW_CORES = 4


class Coordinator:
    """A running coordinator; also what `commitlake.start` returns.

    A start: own the warehouse, and bring up the embedded broker where one is asked for; finish the batch that a kill
    cut short; land, and meanwhile work out what is open; coordinate as soon as the ops that Kafka held at the start
    have landed, so that no deadline runs before them.
    """

    def __init__(self, spark: SparkSession, config: Config, lock: WarehouseLock | None = None) -> None:
        self.spark, self.config = spark, config
        self._lock = lock  # taken before, or taken at the start where there can be one
        self.warehouse = Warehouse(spark, config.warehouse)
        self.epoch = 0
        self._is_new = False
        self._stack = ExitStack()
        self._queries: list[StreamingQuery] = []
        self._busy: list[threading.Lock] = []
        # On few cores landing and coordination take turns: side by side, each batch takes twice as long, and a row that
        # needs one of each comes later.
        self._turn = threading.Lock() if spark.sparkContext.defaultParallelism <= _FEW_CORES else None
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._scratch = ""

    def start(self, *, available_now: bool = False) -> Self:
        """Starts all queries.

        With `available_now` it works off all that is there, fires what is due, and returns when that is done.

        Raises:
            CommitLakeError: it can't start; nothing runs then.
        """
        try:
            self._start(available_now)
        except BaseException:
            self.stop()
            self._raise_if_fenced()
            raise
        return self

    def _start(self, available_now: bool) -> None:
        self._own()  # first: a start that is refused must not add queues under the one that runs
        landing = Landing(
            self.spark,
            self.config,
            self.warehouse,
            on_topics=self._publish_settings,
            guard=self._unless_stopping,
            epoch=self.epoch,
        )
        landing.check_kafka()  # before anything is written to what may be another Kafka
        for warning in topics.ensure_topics(self.config):
            log.warning("%s", warning)
        ends = topics.end_offsets(self.config, _AWAITED)
        clock_skew.warn(topics.publish_settings(self.config, self.warehouse.topics()))
        # Before anything lands: later commits come by the stream, so none is read twice.
        versions = {name: self.warehouse.version(name) for name in query.STREAMED}
        landing.recover()
        last = self._finish()
        self._queries.append(landing.start(available_now=available_now))
        rows = self._input_rows(versions)
        if available_now:
            self._await(self._queries[0])
        else:
            self._wait(lambda: landing.passed(ends))
        writer = BatchWriter(self.config, self.warehouse, last + 1)
        self._coordinate(rows, self._unless_stopping(writer), available_now)
        if not available_now and self.config.maintenance.interval_ms:
            self._maintain()

    def _own(self) -> None:
        if self._lock is None:
            self._lock = self._stack.enter_context(fencing.lock(self.config))
        self.config = self._stack.enter_context(provide(self.config))
        self.warehouse.create()
        self.epoch = fencing.begin_epoch(self.warehouse, commitlake.__version__)
        self._is_new = self.epoch == fencing.FIRST_EPOCH and self._lock is not None  # else two may be the first
        if self._lock is not None:
            self._lock.tell(self.epoch)
            if not self._is_new:
                fencing.mark(self.warehouse, self.epoch, [name for name in query.STREAMED if name != "epochs"])
        else:
            self.warehouse.guard = fencing.EpochGuard(self.warehouse, self.epoch)
            fencing.check(self.warehouse, self.epoch)  # a mark of the older of two would stop the newer
            fencing.mark(self.warehouse, self.epoch, fencing.FENCED)

    def _finish(self) -> int:
        """Finishes what a kill cut short; returns the newest batch_id. A new warehouse has nothing to look through."""
        if self._is_new:
            return -1
        last = complete_batch.finish_last_batch(self.warehouse)
        complete_batch.resend_checks(self.warehouse, self.config)
        return last

    def _input_rows(self, versions: Mapping[str, int]) -> DataFrame:
        """Writes what is open to a table of this run, and reads on from there."""
        self._scratch = checkpoints.fresh(self.config, "coordination", self.epoch)
        if self._is_new:
            opened = self.spark.createDataFrame([], input_rows.INPUT_SCHEMA)
        else:
            own = session.beside(self.spark, self.config, session.HISTORY_SETTINGS)
            tables = Warehouse(own, self.config.warehouse)
            opened = rebuild.open_rows(tables, versions, self.config.transaction)
        opened.write.format("delta").save(f"{self._scratch}/open")
        return query.read(self.warehouse, f"{self._scratch}/open", versions)

    def _coordinate(self, rows: DataFrame, write: Callable[[DataFrame, int], None], available_now: bool) -> None:
        while True:
            before = self.warehouse.version("reentries")
            place = f"{self._scratch}/checkpoint"
            started = query.start(self.config, rows, write, place, available_now=available_now)
            self._queries.append(started)
            if not available_now:
                return
            self._await(started)
            if self.warehouse.version("reentries") == before:
                return
            # What a batch sends back to its own input is there only after the query has looked what there is.

    def _unless_stopping(self, write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """A batch that begins while stopping never happened: the next start begins from the tables."""
        busy = self._turn or threading.Lock()
        self._busy.append(busy)

        def guarded(frame: DataFrame, batch_id: int) -> None:
            with busy:  # `stop` takes it after it has set the flag, so what begins later sees the flag
                if self._stopping.is_set():
                    return
                try:
                    write(frame, batch_id)
                except Exception as error:  # Spark would tell it as the text of a stack trace
                    self._failure = error
                    raise

        return guarded

    def _maintain(self) -> None:
        tidy = Maintenance(
            self.spark, self.config, self._between_batches, lambda: not self._stopping.is_set(), is_owner=True
        )
        thread = at_intervals(tidy, self.config.maintenance.interval_ms, self._stopping)
        # Where there is a lock it must not be free while a commit of ours is under way.
        self._stack.callback(thread.join, _STOP_TIMEOUT_S)

    @contextmanager
    def _between_batches(self) -> Iterator[None]:
        with ExitStack() as held:
            for busy in dict.fromkeys(self._busy):  # when they take turns it is one lock
                held.enter_context(busy)
            yield

    def _publish_settings(self, names: set[str]) -> None:
        topics.publish_settings(self.config, names)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Waits until a query ends or `stop` is called; returns whether it has within `timeout` seconds.

        Raises:
            CommitLakeError: a query failed; everything is stopped then, and the next start goes on where the tables
                are.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self._stopping.is_set():
            if any(not query.isActive for query in self._queries):
                self._raise_failure()
                return True
            if until is not None and time.monotonic() > until:
                return False
            self._stopping.wait(0.2)
        return True

    def _await(self, query: StreamingQuery) -> None:
        while query.isActive and not self._stopping.is_set():
            self._stopping.wait(0.05)
        self._raise_failure()

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done() and not self._stopping.is_set():
            self._raise_failure()
            self._stopping.wait(0.05)

    def _raise_failure(self) -> None:
        for each in self._queries:
            cause = None if each.isActive else each.exception()
            if cause is not None and not self._stopping.is_set():
                name = each.name
                self.stop()
                self._raise_if_fenced()
                if isinstance(self._failure, CommitLakeError):
                    raise self._failure
                raise StreamError(name, root_reason(self._failure or cause)) from self._failure or cause

    def _raise_if_fenced(self) -> None:
        """What failed may be how a newer coordinator shows: by a conflict in Delta, or a checkpoint that is gone."""
        if self._lock is None and self.epoch:
            with suppress(PySparkException):  # what made the query fail may make this fail too
                fencing.check(self.warehouse, self.epoch)

    def stop(self) -> None:
        """Stops cleanly: batches under way are finished, none begins.

        Safe to call twice, and from a signal handler's thread.
        """
        self._stopping.set()
        for busy in self._busy:
            if busy.acquire(timeout=_STOP_TIMEOUT_S):
                busy.release()
        try:
            for query in self._queries:
                _stop_quietly(query)
        finally:
            self._stack.close()

    def __enter__(self) -> Self:
        """The running coordinator."""
        return self

    def __exit__(self, *error: object) -> None:
        """Stops it."""
        self.stop()


def _stop_quietly(query: StreamingQuery) -> None:
    try:
        query.stop()
    except PySparkException as error:
        log.debug("stopping %s: %s", query.name, error)


def start(spark: SparkSession, conf: Config | str | dict[str, object], *, available_now: bool = False) -> Coordinator:
    """Starts a coordinator in a Spark session that is there, for example a notebook's.

    Args:
        spark: a session with Delta and the Kafka connector.
        conf: a configuration, the path of one, or its keys and values.
        available_now: work off all that is there, then return.

    Returns:
        A handle with `stop()` and `await_termination()`; its `config` holds the address of an embedded broker.
    """
    from commitlake import config
    from commitlake.spark import session

    if isinstance(conf, str):
        conf = config.load(conf)
    elif isinstance(conf, dict):
        conf = config.from_mapping(conf)
    session.apply_settings(spark, conf)
    return Coordinator(spark, conf).start(available_now=available_now)
