"""The coordinator: landing and coordination in one Spark application, from start to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from commitlake import config as configuration
from commitlake.config import Config, disks
from commitlake.config.locations import is_local
from commitlake.coordinator import companions
from commitlake.coordinator.coordination import query
from commitlake.coordinator.coordination.context import Context
from commitlake.coordinator.coordination.half_cache import HalfCache
from commitlake.coordinator.coordination.input_table import InputTable
from commitlake.coordinator.dedup.dedup_index import DedupIndex
from commitlake.coordinator.forwarding.forwarders import Forwarders
from commitlake.coordinator.landing import classify, kafka_identity
from commitlake.coordinator.landing import query as landing_query
from commitlake.coordinator.landing import start as landing_start
from commitlake.coordinator.landing.land import Landing
from commitlake.coordinator.landing.positions import LandingPosition, Offsets
from commitlake.coordinator.landing.topic_admission import Topics
from commitlake.coordinator.landing.watermark import Watermark
from commitlake.coordinator.maintenance.run import Maintenance, at_intervals
from commitlake.coordinator.recovery import fencing, recover
from commitlake.coordinator.recovery.fencing import Ownership
from commitlake.coordinator.recovery.heartbeat import Heartbeat
from commitlake.coordinator.recovery.recover import Recovered
from commitlake.coordinator.scheduler import Scheduler
from commitlake.coordinator.settings_publisher import SettingsPublisher
from commitlake.errors import CommitLakeError, IdentityError, StreamError, root_reason
from commitlake.kafka import topics
from commitlake.kafka.admin_client import probe
from commitlake.kafka.embedded import provide
from commitlake.kafka.held import Held
from commitlake.protocol.clock import BrokerClock, now_ms
from commitlake.protocol.durations import Duration, seconds
from commitlake.protocol.kafka_topics import LANDED
from commitlake.spark import checkpoints, cluster, session
from commitlake.tables import Warehouse

log = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 60
_LOOK_S = 0.2
_SILENCE_S = 60.0
"""A round of a flood takes tens of seconds; who restarts a process must not end it for that."""
_MOST_UNANSWERED = 10
"""Calls to the JVM that fail one after the other when it is gone; on a busy machine a single one may."""
_NOBODY_WAITS_S = 3.0
"""After a look by `await_termination`: who waits gets the error raised, and need not have it logged too."""


class Coordinator:
    """A running coordinator; also what `commitlake.start` returns.

    It works in a Spark session of its own, so nothing changes in the caller's.

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
        self.warehouse = Warehouse(self.spark, config.warehouse)
        self._on_failure = on_failure
        self._owner = Ownership()
        self._clock = BrokerClock()
        self._stack = ExitStack()
        self._stopping, self._met_other = threading.Event(), threading.Event()
        self._queries: list[StreamingQuery] = []
        self._forwarders = Forwarders()
        self._scheduler: Scheduler | None = None
        self._end_maintenance: Callable[[float], None] = lambda _: None
        self._error: CommitLakeError | None = None
        self._awaited_at = -_NOBODY_WAITS_S
        self._unanswered = 0

    @property
    def epoch(self) -> int:
        """Number of this start."""
        return self._owner.epoch

    def stand_by(self) -> None:
        """Waits until no coordinator runs on the warehouse; `start` then takes over.

        On a local warehouse that is when its lock is free, elsewhere when there was no sign of life for
        `standby_after`. Of two that wait, one can be refused at its start all the same.

        Raises:
            CommitLakeError: this process could not run one.
        """
        cluster.check(self.spark, self.config)
        if is_local(self.config.warehouse):
            fencing.await_lock(self.config, self.spark)
        else:
            with companions.standing_by(self.config):
                Heartbeat(self.spark, self.config).await_silence()

    def start(self, *, available_now: bool = False) -> Self:
        """Starts all queries.

        With `available_now` it works off all that is there, fires what is due, and returns when that is done.

        Raises:
            CommitLakeError: it can't start; nothing runs then.
        """
        try:
            self._start(available_now)
        except BaseException as error:
            self.stop()
            if fenced := self._owner.lost(self.warehouse):
                raise fenced from error
            if isinstance(error, (PySparkException, Py4JError)):
                raise self._explained(str(self._queries[0].name) if self._queries else "start-up", error) from error
            raise
        return self

    def _start(self, available_now: bool) -> None:
        """A start.

        1. Own the warehouse: a start that is refused must change nothing under the coordinator that runs.
        2. Compare Kafka with what the warehouse was filled from, before anything is written to what may be another one.
        3. Side by side, all from the tables alone: complete the batch that a kill cut short; work out what is open, the
           first input of coordination; find what a landing that was cut short has written.
        4. Run coordination, and landing from where it came to.
        5. Tick, maintain and watch.
        """
        self._own()  # step 1
        is_new = self._owner.is_new  # then there is nothing to look through, which saves 10 s of 25
        come = landing_start.NOTHING if is_new else landing_start.reached(self.warehouse, self.config)  # step 2
        others = () if is_new else kafka_identity.check(self.warehouse, self.config, come.position)
        rules = classify.LandingRules.of(self.config)
        settings = SettingsPublisher(self.config, self._clock)
        known = Topics(self.warehouse, rules.topics_max, settings.add)
        for warning in topics.ensure_topics(self.config):
            log.warning("%s", warning)
        settings.publish(known.names)
        watermark, asked = Watermark(), self._clock.now_ms()
        begin = landing_start.begin(self.warehouse, self.config, come, others)
        watermark.ask(asked, begin.ends)
        with ThreadPoolExecutor(1) as pool:
            classification = pool.submit(classify.classification, rules)
            found = self._recovered(begin.position, known.names)  # step 3
        # After what a kill cut short is complete.
        dedup = DedupIndex(self.warehouse, self.config.topics.dedup, self._clock)
        landing = Landing(
            self.warehouse, rules, classification.result(), known, dedup, begin.position, self._clock, found.uncommitted
        )
        context = Context(self.config, self.warehouse, self._clock, HalfCache(self.warehouse), found.inputs, dedup)
        held = Held(self.config, LANDED, begin.position.held, landing.remember)
        self._stack.callback(held.close)
        start = partial(self._coordinate, found.inputs)
        scheduler = Scheduler(context, landing, watermark, held.ends, start, found.last_batch + 1)
        self._scheduler = scheduler  # from here on `stop` waits for its rounds
        if available_now:  # what was open is worked off with what lands first, in one batch
            self._work_off(scheduler, self._land(scheduler, begin.offsets, available_now=True))
        else:
            self._forward(available_now=False)
            scheduler.begin()  # step 4
            self._land(scheduler, begin.offsets, available_now=False)
            self._serve(scheduler, settings)  # step 5

    def _recovered(self, position: LandingPosition, known: Collection[str]) -> Recovered:
        def made(opened: DataFrame) -> InputTable:
            return InputTable(self.spark, f"{self._scratch('inputs')}/table", self._clock, opened)

        if self._owner.is_new:
            return recover.of_new_warehouse(self.warehouse, made)
        return recover.recover(self.warehouse, self.config, made, position, known)

    def _coordinate(self, inputs: InputTable, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
        return self._keep(query.start(self.config, inputs, write, self._scratch("coordination")))

    def _land(self, scheduler: Scheduler, offsets: Offsets, *, available_now: bool) -> StreamingQuery:
        scratch = self._scratch("landing")

        def land(raw: DataFrame, batch_id: int) -> None:
            scheduler.round(raw, landing_query.ends_of(self.spark, self.config, scratch, batch_id))

        started = landing_query.start(self.spark, self.config, offsets, land, scratch, available_now=available_now)
        return self._keep(started)

    def _own(self) -> None:
        cluster.check(self.spark, self.config)
        session.apply_settings(self.spark, self.config)  # again, now that all executors are there
        lock = self._stack.enter_context(fencing.lock(self.config, self.spark))  # first: its error names who runs
        self.config = self._stack.enter_context(provide(self.config))
        probe(self.config)
        self._owner = fencing.own(self.warehouse, lock)
        if lock is None:
            beat = Heartbeat(self.spark, self.config, self.epoch)
            self._stack.enter_context(beat.beating(self._met_other.set))

    def _forward(self, *, available_now: bool) -> None:
        """Starts what sends topics to Kafka; those that work off what is there come last."""
        self._forwarders.start(self.warehouse, self.config, self._scratch, available_now=available_now)

    def _keep(self, started: StreamingQuery) -> StreamingQuery:
        self._queries.append(started)
        return started

    def _work_off(self, scheduler: Scheduler, landing: StreamingQuery) -> None:
        while landing.isActive and not self._stopping.is_set():
            self._stopping.wait(0.05)
        self._raise_failure()
        scheduler.finish()
        self._raise_failure()
        if not self._stopping.is_set():
            self._forward(available_now=True)

    def _health(self, scheduler: Scheduler) -> str | None:
        """What is wrong, None when nothing is."""
        if self._error is not None or any(not each.isActive for each in self._queries):
            return f"a query has ended: {self._error or scheduler.failure}"
        silent_s = (now_ms() - scheduler.rounds.alive_at) / 1_000
        most_s = max(_SILENCE_S, 5 * self.config.trigger_interval_ms / 1_000)
        return f"no round for {silent_s:.0f} s" if silent_s > most_s else None

    def _serve(self, scheduler: Scheduler, settings: SettingsPublisher) -> None:
        health = partial(self._health, scheduler)
        self._stack.enter_context(
            companions.telling(self.config, scheduler, self.epoch, health, self._forwarders.failed)
        )
        companions.answer_by_rules(self.config, self._clock, self._stopping)
        tell = partial(settings.tick, self.warehouse.topics)
        # Kafka may keep the others waiting, which no deadline does.
        for steps in ([scheduler.tick, self._report_failure], [tell, self._forwarders.tick]):
            threading.Thread(target=self._tick, args=[steps], name="commitlake-ticks", daemon=True).start()
        if interval_ms := self.config.maintenance.interval_ms:
            go_on = lambda: not self._stopping.is_set()  # noqa: E731
            tidy = Maintenance(self.warehouse, self.config, scheduler.between_rounds, go_on)
            self._end_maintenance = at_intervals(tidy, interval_ms, self._stopping, scheduler.rounds.maintained)

    def _tick(self, steps: Sequence[Callable[[], object]]) -> None:
        """Ticks at each trigger interval; when a query has failed and nobody waits, stops and reports it.

        It outlives whatever fails in it, a call to the JVM too: without ticks a deadline passes only when records land.
        """
        while not self._stopping.wait(self.config.trigger_interval_ms / 1_000):
            for step in steps:
                try:
                    step()
                except Exception as error:  # Kafka may be away; what ended a query is reported below
                    log.debug("no tick: %s", error)

    def _report_failure(self) -> None:
        if time.monotonic() - self._awaited_at <= _NOBODY_WAITS_S:
            return
        try:
            self._raise_failure()
            self._unanswered = 0
        except CommitLakeError as error:
            self._tell(error)
        except Exception as error:  # a call to the JVM failed; when that is gone, all of them do
            self._unanswered += 1
            if self._unanswered >= _MOST_UNANSWERED:
                self._stopping.set()
                self._error = StreamError("landing", f"Spark's JVM does not answer: {root_reason(error)}")
                self._tell(self._error)

    def _tell(self, error: CommitLakeError) -> None:
        log.error("the coordinator has stopped: %s", error)
        if self._on_failure is not None:
            self._on_failure(error)

    def await_termination(self, timeout: Duration | None = None) -> bool:
        """Waits until a query ends or `stop` is called; returns whether it has within `timeout`, such as 30 (s).

        Raises:
            CommitLakeError: a query failed, or Kafka has lost records; everything is stopped then, and the next start
                goes on where the tables are.
        """
        until = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
        while not self._stopping.is_set():
            self._awaited_at = time.monotonic()
            has_ended = any(not each.isActive for each in self._queries)
            self._raise_failure()
            if has_ended:
                return True
            if until is not None and time.monotonic() > until:
                return False
            self._stopping.wait(_LOOK_S)
        if self._error is not None:
            raise self._error
        return True

    def _raise_failure(self) -> None:
        error = None if self._stopping.is_set() else self._failed()
        if error is not None:
            self._error = error
            with suppress(Exception):  # what failed may be in the way of a clean stop, too
                self.stop()
            raise error

    def _failed(self) -> CommitLakeError | None:
        """What has ended it: a query's error, a newer coordinator, or what a tick has found in Kafka."""
        for each in self._queries:
            cause = None if each.isActive else each.exception()
            if cause is not None:
                return self._explained(each.name, cause)
        if self._met_other.is_set():
            self._met_other.clear()
            if fenced := self._owner.lost(self.warehouse):
                return fenced
        return failure if isinstance(failure := self._scheduler and self._scheduler.failure, IdentityError) else None

    def _explained(self, name: str, cause: Exception) -> CommitLakeError:
        # What failed may be how a newer coordinator shows: by a conflict in Delta, or a checkpoint that is gone.
        if fenced := self._owner.lost(self.warehouse):
            return fenced
        failure = self._scheduler.failure if self._scheduler else None
        if isinstance(failure, CommitLakeError):
            return failure
        explained = StreamError(name, disks.with_room(root_reason(failure or cause), self.config))
        explained.__cause__ = failure or cause
        return explained

    def stop(self) -> None:
        """Stops cleanly: the round under way ends, and none begins.

        Safe to call twice, and from a signal handler's thread.
        """
        self._stopping.set()
        if self._scheduler is not None:
            self._scheduler.begin_no_more()
            # Before the round is waited for, since it may wait for maintenance that deletes rows; and before the lock
            # is free, which must not be while a commit of ours is under way.
            self._end_maintenance(_STOP_TIMEOUT_S)
            self._scheduler.stop(_STOP_TIMEOUT_S)
        try:
            for each in reversed(self._queries):
                _stop_quietly(each)
            self._forwarders.stop()
        finally:
            self._stack.close()

    def _scratch(self, name: str) -> str:
        return checkpoints.fresh(self.config, name, self.epoch)

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


def start(
    spark: SparkSession,
    conf: configuration.Conf,
    *,
    available_now: bool = False,
    on_failure: Callable[[CommitLakeError], None] | None = None,
) -> Coordinator:
    """Starts a coordinator in a Spark application that is there, for example a notebook's.

    It works in a session of its own: no setting of `spark` changes. When it fails later, that is logged as an error
    at once, whether or not somebody waits for it.

    Args:
        spark: a session with Delta and the Kafka connector.
        conf: a configuration, the path of one, or its keys and values.
        available_now: work off all that is there, then return.
        on_failure: called, in a thread, with the error that ended the coordinator.

    Returns:
        A handle with `stop()` and `await_termination()`; its `config` holds the address of an embedded broker.
    """
    return Coordinator(spark, configuration.of(conf), on_failure=on_failure).start(available_now=available_now)
