"""One run of all queries: from a start on the tables to the first failure or a stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import Config, disks
from commitlake.coordinator.coordination.context import Context
from commitlake.coordinator.coordination.half_cache import HalfCache
from commitlake.coordinator.coordination.input_table import InputTable
from commitlake.coordinator.dedup.dedup_index import DedupIndex
from commitlake.coordinator.forwarding.to_kafka import Forwarders
from commitlake.coordinator.landing import kafka_identity
from commitlake.coordinator.landing import query as landing_query
from commitlake.coordinator.landing import start as landing_start
from commitlake.coordinator.landing.land import Landing
from commitlake.coordinator.landing.ordinary import Classification
from commitlake.coordinator.landing.parts import Parts
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.landing.topic_admission import Topics
from commitlake.coordinator.landing.watermark import Watermark
from commitlake.coordinator.maintenance.run import Maintenance, at_intervals
from commitlake.coordinator.recovery import recover
from commitlake.coordinator.recovery.fencing import Ownership
from commitlake.coordinator.recovery.recover import Recovered
from commitlake.coordinator.scheduler import Scheduler
from commitlake.coordinator.settings_publisher import SettingsPublisher
from commitlake.errors import CommitLakeError, IdentityError, StreamError, explained
from commitlake.kafka import topics
from commitlake.kafka.log_end_watcher import LogEndWatcher
from commitlake.kafka.log_ends import Offsets
from commitlake.protocol.clock import BrokerClock, now_ms
from commitlake.spark import checkpoints
from commitlake.spark.callbacks import held_weakly
from commitlake.spark.process import PROGRESS
from commitlake.tables import Warehouse

log = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 60
_SILENCE_S = 180.0
"""A cold round of 400 000 records takes up to 100 s; a supervisor must not restart the process for that."""
_SET_BACK_S = 10.0
"""Spark's trigger waits by the wall clock: after a clock is set back by an hour, the next round begins in an hour."""


class Run:
    """One run of all queries."""

    def __init__(
        self, spark: SparkSession, config: Config, warehouse: Warehouse, owner: Ownership, clock: BrokerClock
    ) -> None:
        self.spark, self.config, self.warehouse = spark, config, warehouse
        self._owner, self._clock = owner, clock
        self.begun_at = time.monotonic()
        self._wall_s = time.time() - self.begun_at
        self._stack = ExitStack()
        self._stopping = threading.Event()
        self._queries: list[StreamingQuery] = []
        self.forwarders = Forwarders()
        self.scheduler: Scheduler | None = None
        self._end_maintenance: Callable[[float], bool] = lambda _: True

    @property
    def epoch(self) -> int:
        """Number of this run's start."""
        return self._owner.epoch

    def start(self, *, available_now: bool) -> None:
        """Starts all queries.

        1. The warehouse is owned already: a rejected start changes nothing under the coordinator that runs.
        2. Compare Kafka with the one that the warehouse was filled from, before anything is written to either.
        3. Side by side, from the tables alone: complete the cut-short batch; work out the open rows, the first input of
           coordination; find the rows of a cut-short landing.
        4. Run coordination, and landing from its position.
        5. Tick and maintain.

        With `available_now` it processes all records that are there and all that is due, and then returns.
        """
        is_new = self._owner.is_new  # a new warehouse needs no reading, which saves 10 s of 25
        resume_point = landing_start.NOTHING if is_new else landing_start.reached(self.warehouse, self.config)  # step 2
        kafka = None if is_new else kafka_identity.remembered(self.warehouse)
        others = kafka_identity.check(self.warehouse, self.config, kafka, resume_point.position)
        settings = SettingsPublisher(self.config, self._clock)
        known = Topics(self.warehouse, self.config.topics.max, settings.add)
        for warning in topics.ensure_topics(self.config):
            log.warning("%s", warning)
        settings.publish(known.names)
        watermark, asked = Watermark(), self._clock.now_ms()
        begin = landing_start.begin(self.warehouse, self.config, resume_point, kafka, others)
        if begin.stable_ms is not None:
            watermark.ask(begin.stable_ms, begin.stable)
        watermark.ask(asked, begin.ends)
        with ThreadPoolExecutor(1) as pool:
            built = pool.submit(Classification.of, self.config)
            PROGRESS.info("reading from the tables what is open")
            found = self._recovered(begin.position, known.names)  # step 3
        PROGRESS.info("starting the queries")
        # After the batch that a kill cut short is complete.
        dedup = DedupIndex(self.warehouse, self.config.topics.dedup, self._clock)
        steps = built.result()
        landing = Landing(
            self.warehouse, self.config, steps, known, dedup, begin.position, self._clock, found.uncommitted
        )
        context = Context(self.config, self.warehouse, self._clock, HalfCache(self.warehouse), found.inputs, dedup)
        held = LogEndWatcher(self.config, begin.position.held, landing.remember)
        self._stack.enter_context(suppress(Exception))  # without the JVM there is no memory to free
        self._stack.callback(context.half_cache.clear)
        self._stack.callback(held.close)
        start = partial(self._coordinate, found.inputs)
        scheduler = Scheduler(context, landing, watermark, held.ends, start, found.last_batch + 1)
        self.scheduler = scheduler  # from here on `stop` waits for its rounds
        if available_now:  # one batch processes the open rows and the first records
            self._work_off(scheduler, self._land(scheduler, begin.offsets, available_now=True))
        else:
            self._forward(available_now=False)
            scheduler.begin()  # step 4
            self._land(scheduler, begin.offsets, available_now=False)
            self._serve(scheduler, settings)  # step 5

    def _recovered(self, position: LandingPosition, known: Collection[str]) -> Recovered:
        place = f"{self._scratch('inputs')}/table"
        if self._owner.is_new:
            return recover.of_new_warehouse(self.warehouse, place, self._clock)
        return recover.recover(self.warehouse, self.config, place, self._clock, position, known)

    def _coordinate(self, inputs: InputTable, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
        return self._keep(inputs.coordinate(self.config.transaction, held_weakly(write), self._scratch("coordination")))

    def _land(self, scheduler: Scheduler, offsets: Offsets, *, available_now: bool) -> StreamingQuery:
        scratch = self._scratch("landing")
        ends = partial(landing_query.ends_of, self.spark, self.config, scratch)
        # An attribute: Java holds the method weakly, so that it does not keep this run alive.
        self._parts = Parts(self.spark, self.config, offsets, scheduler.round, ends)
        land = held_weakly(self._parts.land if available_now else self._land_paced)
        started = landing_query.start(self.spark, self.config, offsets, land, scratch, available_now=available_now)
        return self._keep(started)

    def _land_paced(self, raw: DataFrame, batch_id: int) -> None:
        """Lands a batch, then waits: Kafka is polled again when `trigger_interval` has passed since the batch began.

        After a batch without records there is no wait: Spark runs one at a start.
        """
        assert self.scheduler is not None, "it runs the batch"
        rounds, begun = self.scheduler.rounds, time.monotonic()
        before = rounds.records
        self._parts.land(raw, batch_id)
        if rounds.records > before:
            self._stopping.wait(begun + self.config.trigger_interval_ms / 1_000 - time.monotonic())

    def _forward(self, *, available_now: bool) -> None:
        """Starts the queries that send topics to Kafka; with `available_now` these come last."""
        self.forwarders.start(self.warehouse, self.config, self._scratch, available_now=available_now)

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

    def _raise_failure(self) -> None:
        error = None if self._stopping.is_set() else self._ended_by_error()
        if error is not None:
            raise error

    def _serve(self, scheduler: Scheduler, settings: SettingsPublisher) -> None:
        tell = partial(settings.tick, self.warehouse.topics)
        # Spark is asked first: where it hangs, no tick reports the rounds as alive. The second thread may wait for
        # Kafka without a delay of any deadline.
        ask = lambda: [each.isActive for each in self._queries]  # noqa: E731
        for steps in ([ask, scheduler.tick], [tell, self.forwarders.tick]):
            threading.Thread(target=self._tick, args=[steps], name="commitlake-ticks", daemon=True).start()
        if interval_ms := self.config.maintenance.interval_ms:
            go_on = lambda: not self._stopping.is_set()  # noqa: E731
            tidy = Maintenance(self.warehouse, self.config, scheduler.between_rounds, go_on, self._clock.now_ms)
            self._end_maintenance = at_intervals(tidy, interval_ms, self._stopping, scheduler.rounds.maintained)

    def _tick(self, steps: Sequence[Callable[[], object]]) -> None:
        """Ticks at each trigger interval.

        The thread survives every failure of a step, a call to the JVM too: without ticks a deadline passes only when
        records land.
        """
        while not self._stopping.wait(self.config.trigger_interval_ms / 1_000):
            for step in steps:
                try:
                    step()
                except Exception as error:  # Kafka may be away; `failed` reports the end of a query
                    log.debug("no tick: %s", error)

    def health(self) -> str | None:
        """The failure; None when there is none."""
        if self.scheduler is None or any(not each.isActive for each in self._queries):
            return f"a query has ended: {self.scheduler and self.scheduler.failure}"
        silent_s = (now_ms() - self.scheduler.rounds.alive_at) / 1_000
        most_s = max(_SILENCE_S, 5 * self.config.trigger_interval_ms / 1_000)
        return f"no round for {silent_s:.0f} s" if silent_s > most_s else None

    def idle(self) -> None:
        """Notes that nothing was to be done, as Kafka is away."""
        if self.scheduler is not None:
            self.scheduler.rounds.idle()

    def failed(self) -> CommitLakeError | None:
        """The error that ended the run: of a query, or one that ends no query, such as a tick's finding in Kafka."""
        if error := self._ended_by_error():
            return error
        ended = [each.name for each in self._queries if not each.isActive]
        if ended:
            return StreamError(ended[0], "it was stopped")
        wall_s = time.time() - time.monotonic()
        set_back_s, self._wall_s = self._wall_s - wall_s, max(self._wall_s, wall_s)
        if set_back_s > _SET_BACK_S:
            return StreamError("landing", f"its trigger waits, as the clock was set back by {set_back_s:.0f} s")
        return None

    def _ended_by_error(self) -> CommitLakeError | None:
        for each in self._queries:
            cause = None if each.isActive else each.exception()
            if cause is not None:
                return self.explained(cause, each.name)
        return failure if isinstance(failure := self.scheduler and self.scheduler.failure, IdentityError) else None

    def explained(self, cause: Exception, name: str | None = None) -> CommitLakeError:
        """The user's message for the failure of a query."""
        # The failure may be the effect of a newer coordinator: a conflict in Delta, or a checkpoint that is gone.
        if fenced := self._owner.lost(self.warehouse):
            return fenced
        failure = self.scheduler and self.scheduler.failure  # Spark has only its text
        name = name or (self._queries[0].name if self._queries else None) or "start-up"
        known = failure if failure and isinstance(cause, PySparkException) else cause
        return explained(name, known, partial(disks.with_room, config=self.config))

    def stop(self) -> bool:
        """Stops cleanly: the round in flight ends, and no other begins. Returns whether nothing is in flight any more.

        Safe to call twice.
        """
        self._stopping.set()
        if self.scheduler is not None:
            self.scheduler.begin_no_more()
            # Before the wait for the round, which may wait for maintenance that deletes rows. And before the lock is
            # free: no commit of ours may then be in flight.
            self._end_maintenance(_STOP_TIMEOUT_S)
            self.scheduler.stop(_STOP_TIMEOUT_S)
        try:
            for each in reversed(self._queries):
                _stop_quietly(each)
            self.forwarders.stop()
        finally:
            self._stack.close()
        # A round that hung may have ended with its query.
        return self._end_maintenance(0) and (self.scheduler is None or self.scheduler.stop(_STOP_TIMEOUT_S))

    def _scratch(self, name: str) -> str:
        return checkpoints.fresh(self.spark, self.config, name, self.epoch)


def _stop_quietly(query: StreamingQuery) -> None:
    try:
        query.stop()
    except PySparkException as error:
        log.debug("stopping %s: %s", query.name, error)
