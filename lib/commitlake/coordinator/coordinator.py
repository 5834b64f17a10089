"""The coordinator: landing and coordination in one Spark application, from start to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from commitlake import config as configuration
from commitlake.config import Config, disks
from commitlake.config.locations import is_local
from commitlake.coordinator import optional_services
from commitlake.coordinator.recovery import fencing
from commitlake.coordinator.recovery.fencing import Ownership, WarehouseLock
from commitlake.coordinator.recovery.signs import LOOK_S, Heartbeat, StopMark
from commitlake.coordinator.rehearsal import rehearsing
from commitlake.coordinator.restarts import Restarts, is_outage
from commitlake.coordinator.run import Run
from commitlake.errors import CommitLakeError, KafkaError, SetupError, explained, root_reason
from commitlake.kafka.admin_client import QUICK_TIMEOUT_MS, probe
from commitlake.kafka.embedded import provide
from commitlake.kafka.throttled import ThrottledWarning
from commitlake.protocol.clock import BrokerClock
from commitlake.protocol.durations import Duration, seconds
from commitlake.spark import cluster, session
from commitlake.spark.process import PROGRESS
from commitlake.tables import Warehouse, typed_topics

log = logging.getLogger(__name__)

_LOOK_S = 0.2
_MOST_UNANSWERED = 50
"""So many failed calls in a row mean that the JVM is gone. On a busy machine a single call may fail."""
_END_S = 10.0
_NOBODY_WAITS_S = 3.0
"""So long after the last look of `await_termination` nobody waits there. A caller that waits gets the error raised, and
need not have it logged too."""


class Coordinator:
    """A running coordinator; also what `commitlake.start` returns.

    A coordinator works in a Spark session of its own, so nothing changes in the caller's. When a failure that may pass
    ends its queries, such as an outage of Kafka, all of them restart as at a start. The warehouse stays its own
    meanwhile.

    Args:
        spark: any session of the application.
        config: the configuration.
        on_failure: called, in a thread, with the error that ended the coordinator.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        on_failure: Callable[[CommitLakeError], None] | None = None,
    ) -> None:
        session.require_classic(spark)
        self.config = config = cluster.resolved(spark, config)
        self.spark = session.beside(spark, config)
        self._on_failure = on_failure
        self._lock: WarehouseLock | None = None
        self._owner = Ownership()
        self._clock = BrokerClock()
        self._stack = ExitStack()
        self._stopping, self._met_other = threading.Event(), threading.Event()
        self._begin_lock = threading.RLock()  # a stop waits for a start in flight
        self._run: Run | None = None
        self._served: Run
        """The last run that started without an error."""
        self._restarts = Restarts()
        self._trouble: CommitLakeError | None = None
        """The failure for which all queries restart; None while they run."""
        self._error: CommitLakeError | None = None
        """The error that ended the coordinator for good."""
        self._serves = False
        self._watching = threading.current_thread()
        self._awaited_at = -_NOBODY_WAITS_S

    @property
    def epoch(self) -> int:
        """Number of this start, or of the last restart of all queries."""
        return self._owner.epoch

    def stand_by(self) -> None:
        """Waits until no coordinator runs on the warehouse; `start` then takes over.

        On a local warehouse the wait ends when its lock is free. Elsewhere it ends when there was no sign of life for
        `standby_after`. When two coordinators wait, the start of one can still be rejected.

        Raises:
            CommitLakeError: this process could not run a coordinator.
        """
        cluster.check(self.spark, self.config)
        with rehearsing(self.spark, self.config):
            if is_local(self.config.warehouse):
                fencing.await_lock(self.config, self.spark)
            else:
                with optional_services.standing_by(self.config):
                    Heartbeat(self.spark, self.config).await_silence()

    def start(self, *, available_now: bool = False) -> Self:
        """Starts all queries.

        With `available_now` it processes all records that are there and all that is due, and then returns.

        Raises:
            CommitLakeError: the coordinator can't start; nothing runs then.
        """
        try:
            self._take()
            self._begin(available_now=available_now)
            if not available_now:
                self._serve()
        except (CommitLakeError, PySparkException, Py4JError) as error:
            self.stop()
            told = self._explained(error)
            if told is not error:
                raise told from error
            raise
        except BaseException:
            self.stop()
            raise
        return self

    def _take(self) -> None:
        """Takes the warehouse first: a rejected start must change nothing under the coordinator that runs."""
        cluster.check(self.spark, self.config)
        session.apply_settings(self.spark, self.config)  # again, now that all executors are there
        self._lock = self._stack.enter_context(fencing.lock(self.config, self.spark))  # its error names who runs
        PROGRESS.info("Spark runs; connecting to Kafka: %s", self.config.kafka.bootstrap_servers)
        self.config = self._stack.enter_context(provide(self.config))

    def _begin(self, *, available_now: bool = False) -> None:
        """Begins an epoch and starts all queries: at the start, and at each restart."""
        self._run = None
        probe(self.config)
        PROGRESS.info("Kafka answers; making the tables that are missing, and taking the warehouse")
        warehouse, is_first = Warehouse(self.spark, self.config.warehouse), not self.epoch
        self._owner = fencing.own(warehouse, self._lock, self.epoch)
        fencing.fence_older(warehouse, self._owner)
        warehouse.values = typed_topics.prepare(warehouse, self.config.topics.schemas)
        if is_first and self._lock is None:  # beats until the end, so no standby takes over between two runs
            beat = Heartbeat(self.spark, self.config, self.epoch)
            self._stack.enter_context(beat.beating(self._met_other.set))
        self._run = Run(self.spark, self.config, warehouse, self._owner, self._clock)
        self._run.start(available_now=available_now)
        self._served = self._run

    def _serve(self) -> None:
        waits = lambda: is_outage(self._trouble)  # noqa: E731
        self._stack.enter_context(
            optional_services.serve_metrics(self.config, lambda: self._served, self._health, waits)
        )
        optional_services.answer_by_rules(self.config, self._clock, self._stopping)
        self._serves = True
        self._watching = threading.Thread(target=self._watch, name="commitlake-watch", daemon=True)
        self._watching.start()
        threading.Thread(target=self._await_stop_mark, name="commitlake-stop-mark", daemon=True).start()

    def _await_stop_mark(self) -> None:
        """Stops when `commitlake stop` asks for it, also while Kafka is away."""
        mark, first = StopMark(self.spark, self.config), self.epoch
        while not self._stopping.wait(LOOK_S):
            if mark.names_me(first, self.epoch):
                log.warning("stopping, as `commitlake stop` asks: what is under way ends first")
                self.stop()

    def _health(self) -> str | None:
        """The failure; None when there is none, or Kafka is away: no restart of the process helps against that."""
        if self._error:
            return f"all queries have ended: {self._error}"
        wrong = f"all queries begin again after {self._trouble}" if self._trouble else self._served.health()
        if wrong and not is_outage(self._trouble):
            with suppress(KafkaError):
                probe(self.config, QUICK_TIMEOUT_MS)
                return wrong
        return None

    def _watch(self) -> None:
        """Restarts all queries when one has ended, until all have ended for good."""
        unanswered = 0
        while not self._stopping.wait(_LOOK_S):
            try:
                error = self._served.failed() or self._lost()
                lasting = error and self._after(error)
                unanswered = 0
            except Exception as failure:  # a call to the JVM failed; when the JVM is gone, all calls fail
                unanswered += 1
                if unanswered == _MOST_UNANSWERED:
                    self._end(SetupError(f"Spark's JVM does not answer: {root_reason(failure)}; start again"))
            else:
                if lasting is not None:
                    self._end(lasting)

    def _lost(self) -> CommitLakeError | None:
        """The error that another coordinator has the warehouse; looked up only after its sign of life was met."""
        if not self._met_other.is_set():
            return None
        self._met_other.clear()
        return self._owner.lost(self._served.warehouse)

    def _after(self, error: CommitLakeError) -> CommitLakeError | None:
        """Restarts all queries after a failure that can pass; returns the error that ended them for good, or None."""
        ended_at = time.monotonic()
        ran_s = ended_at - self._served.begun_at
        while self._is_over():
            self._trouble = error
            pause_s = self._restarts.pause_s(error, ran_s)
            if is_outage(error):
                self._served.idle()
            if pause_s is None:
                return error
            if self._stopping.wait(pause_s) or not self._has_room():
                return None
            failure, ran_s = self._again(), 0.0
            if failure is None:
                self._restarts.begun(time.monotonic() - ended_at)
                self._trouble = None
                return None
            error = failure
        return error

    def _has_room(self) -> bool:
        """Waits while a disk is too full for queries to begin; False when the coordinator is stopped meanwhile."""
        full = ThrottledWarning(log)
        while told := disks.full(self.config):
            full.say(disks.WAITS, told)
            if self._stopping.wait(_LOOK_S):
                return False
        return True

    def _is_over(self) -> bool:
        """Whether nothing of the failed run is in flight, so that the next run sees all that it wrote."""
        with self._begin_lock, suppress(Exception):  # a stop fails when Spark or its JVM is gone: work may go on
            return self._run is None or self._run.stop()
        return False

    def _again(self) -> CommitLakeError | None:
        """Restarts all queries; returns the failure, if any."""
        try:
            with self._begin_lock:
                if not self._stopping.is_set():
                    self._begin()
        except Exception as error:  # anything that a start needs may fail
            return self._explained(error)
        return None

    def _explained(self, error: Exception) -> CommitLakeError:
        """The user's message for a start that failed, before there was a run or in it."""
        if self._run is not None:
            return self._run.explained(error)
        return explained("start-up", error, partial(disks.with_room, config=self.config))

    def _end(self, error: CommitLakeError) -> None:
        self._error = error
        with suppress(Exception):  # the same failure may prevent a clean stop
            self.stop()
        if time.monotonic() - self._awaited_at > _NOBODY_WAITS_S:
            log.error("the coordinator has stopped: %s", error)
        if self._on_failure is not None:
            self._on_failure(error)

    def await_termination(self, timeout: Duration | None = None) -> bool:
        """Waits until it ends or `stop` is called; returns whether that was within `timeout`, such as 30 (s).

        Raises:
            CommitLakeError: the coordinator ended by a failure that does not pass by itself, or Kafka has lost records.
                Everything is stopped then. The next start goes on from the tables.
        """
        until = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
        while self._serves and not self._stopping.is_set():
            self._awaited_at = time.monotonic()
            if until is not None and time.monotonic() > until:
                return False
            self._stopping.wait(_LOOK_S)
        if self._error is not None:
            if self._watching is not threading.current_thread():
                self._watching.join(_END_S)  # it calls `on_failure`; a process that ends here would cut that off
            raise self._error
        return True

    def stop(self) -> None:
        """Stops cleanly: the round in flight ends, and no other begins.

        Safe to call twice, and from a signal handler's thread.
        """
        self._stopping.set()
        with self._begin_lock:
            try:
                if self._run is not None:
                    self._run.stop()
            finally:
                self._stack.close()

    def __enter__(self) -> Self:
        """The running coordinator."""
        return self

    def __exit__(self, *error: object) -> None:
        """Stops the coordinator."""
        self.stop()


def start(
    spark: SparkSession,
    conf: configuration.Conf,
    *,
    available_now: bool = False,
    on_failure: Callable[[CommitLakeError], None] | None = None,
) -> Coordinator:
    """Starts a coordinator in a running Spark application, for example a notebook's.

    The coordinator works in a session of its own: no setting of `spark` changes. A later failure is logged as an error
    at once, unless a caller waits in `await_termination`, which raises it.

    Args:
        spark: a session with Delta and the Kafka connector.
        conf: a configuration, the path of one, or its keys and values.
        available_now: process all records that are there and all that is due, then return.
        on_failure: called, in a thread, with the error that ended the coordinator.

    Returns:
        A handle with `stop()` and `await_termination()`; its `config` holds the address of an embedded broker.
    """
    return Coordinator(spark, configuration.of(conf), on_failure=on_failure).start(available_now=available_now)
