"""The order of the work: records of Kafka land and are coordinated at once, one round after the other.

Kafka is polled for the next records when a round has ended. Two queries that take turns fix their offsets first and
then wait. At 1 000 transactions a second on 2 cores a row was visible 17 s after its commit, where a round took 6.6 s.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import disks
from commitlake.coordinator.coordination.context import Context
from commitlake.coordinator.coordination.events import Timers
from commitlake.coordinator.counters import Counters
from commitlake.coordinator.landing.land import Landed, Landing
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.landing.watermark import Watermark
from commitlake.coordinator.round import Round
from commitlake.coordinator.round_log import RoundLog
from commitlake.errors import IdentityError, KafkaError
from commitlake.kafka.log_ends import Offsets
from commitlake.kafka.throttled import ThrottledWarning
from commitlake.protocol.statemachine.rows import ABSENT
from commitlake.spark.parallel import run_all

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_ASK_EVERY_S = 30.0
"""Interval of polls without traffic, so that an outage of Kafka, or a log that has lost its end, is reported."""
Start = Callable[[Callable[[DataFrame, int], None]], StreamingQuery]
"""Starts the query that reads `inputs`. The argument carries out its batches."""


class Scheduler:
    """Rounds of landing and coordination, one at a time.

    Args:
        context: the objects that all rounds work with.
        landing: lands the batches.
        watermark: knows the ends of the logs at the start: no deadline runs until all below them has landed.
        held: asks Kafka for the next offset of each partition that decides on transactions.
        start: starts the coordination query, in `begin` or else in the first round.
        first_batch_id: the batch_id of that query's batch 0; ids grow over the whole life of the warehouse.
    """

    def __init__(
        self,
        context: Context,
        landing: Landing,
        watermark: Watermark,
        held: Callable[[], Offsets],
        start: Start,
        first_batch_id: int,
    ) -> None:
        self._context, self._landing, self._watermark, self._held = context, landing, watermark, held
        self._start, self._first_batch_id = start, first_batch_id
        self._coordination: StreamingQuery | None = None
        self._timers = Timers()
        self._outage, self._full, self._asked_at = ThrottledWarning(log), ThrottledWarning(log), time.monotonic()
        self._round = Round(context, self._timers, landing, None, ABSENT)  # for the rows that were open at the start
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="commitlake-coordination")
        self._coordinating: Future[None] = Future()
        self._coordinating.set_result(None)
        self._rounds_lock = threading.Lock()
        self._stopping = threading.Event()
        self.rounds = RoundLog(context.config.trigger_interval_ms)
        self.failure: Exception | None = None
        """The first error since the last round began; Spark reports only the text of its stack trace."""

    @property
    def position(self) -> LandingPosition:
        """How far landing has come."""
        return self._landing.position

    @property
    def counters(self) -> Counters:
        """The counts since the start."""
        return self._context.counters

    def round(self, raw: DataFrame, ends: Offsets) -> tuple[int, int] | None:
        """Lands records of Kafka and coordinates them; returns when their decisions are visible.

        While the next records are classified, the rest of this round's coordination goes on.

        Returns:
            The number of records, and their bytes; None when no round begins any more.
        """
        self._await_room()
        with self._one_at_a_time() as goes_on:
            if goes_on:
                begun = time.monotonic()
                if self._context.dedup.topics:
                    self._coordinating.result()  # the messages that the round before shows take their names first
                landed = self._landing.classify(raw, ends)
                classified = time.monotonic()
                self._coordinating.result()
                self.failure = None  # if any, of a tick, which ended no query
                self._run_round(landed)
                self.rounds.add(landed.rows, classified - begun, time.monotonic() - classified)
                self._ask()  # now, since Spark's next read covers all below these ends, and more
                return landed.rows, landed.bytes
            return None

    def tick(self) -> None:
        """Calls the segments in which something is due, if there are any."""
        if self._timers.due(self._context.clock.now_ms()) and self._has_room():
            with self._one_at_a_time() as goes_on:
                self._coordinating.result()
                if goes_on:
                    self._ask()
                    self._run_round(None)
            self.rounds.alive()
        elif not self._rounds_lock.locked():  # a round in flight may hang, so it does not count as alive
            if time.monotonic() - self._asked_at > _ASK_EVERY_S:
                self._poll_log_ends()
            self.rounds.idle()

    def _await_room(self) -> None:
        while not self._has_room() and not self._stopping.wait(_LOOK_S):
            pass

    def _has_room(self) -> bool:
        short = disks.short(self._context.config)
        if short:
            self._full.say(disks.WAITS, short)
        else:
            self._full.end()
        return not short

    def _poll_log_ends(self) -> None:
        """Asks Kafka where its logs end while no records come; a round in flight has just asked."""
        if not self._stopping.is_set() and self._rounds_lock.acquire(blocking=False):
            try:
                with self._noting_failure():
                    self._ask()
            finally:
                self._rounds_lock.release()

    def begin(self) -> None:
        """Begins to coordinate the open rows; the first round waits until that is done."""
        with self._one_at_a_time() as goes_on:
            if goes_on:
                self._begin()

    def finish(self) -> None:
        """Processes the open rows, where nothing landed, and all that is due; returns when that is complete."""
        self._coordinating.result()
        self.begin()
        self._coordinating.result()
        self._await_room()
        self.tick()
        self._coordinating.result()

    def begin_no_more(self) -> None:
        """Lets no further round begin."""
        self._stopping.set()

    def stop(self, timeout_s: float) -> bool:
        """Lets the round in flight end, and no other begin; returns whether it has ended."""
        self.begin_no_more()
        if has_ended := self._rounds_lock.acquire(timeout=timeout_s):  # the next holder of the lock sees the flag
            self._rounds_lock.release()
        wait([self._coordinating], timeout_s)
        self._pool.shutdown(wait=False)
        return has_ended and self._coordinating.done()

    @contextmanager
    def between_rounds(self) -> Iterator[None]:
        """A context in which no round runs."""
        with self._rounds_lock:
            wait([self._coordinating])
            yield

    def _run_round(self, landed: Landed | None) -> None:
        """Runs a round from classified records to visible rows; landing and coordination run side by side.

        A batch writes nothing before the landing's tables are written, and is complete only after its position.
        """
        if landed is not None:
            self._context.half_cache.add(landed)
        position = self._landing.position if landed is None else landed.position
        until = self._watermark.at(position)
        self._round = Round(self._context, self._timers, self._landing, landed, until, self._round)
        tasks: list[Callable[[], None]] = [self._round.land, partial(self._coordinate, self._round, until)]
        run_all(self._context.warehouse.spark, tasks)

    def _coordinate(self, now: Round, until: int) -> None:
        """Coordinates a round until its decisions are visible; `_coordinating` is the rest of the round."""
        if now.advance(self._timers.due(until)):
            self._begin()
            self._coordinating.add_done_callback(lambda _: now.visible.set())  # also where it failed, and shows nothing
            now.visible.wait()
            if self._coordinating.done():
                self._coordinating.result()

    def _begin(self) -> None:
        self._coordinating = self._pool.submit(self._query().processAllAvailable)

    def _commit(self, frame: DataFrame, spark_batch_id: int) -> None:
        """Carries out a batch, but none that begins after a stop: the next start begins from the tables."""
        with self._noting_failure():
            if not self._stopping.is_set():
                self._round.commit(frame, self._first_batch_id + spark_batch_id)

    def _query(self) -> StreamingQuery:
        if self._coordination is None:
            self._coordination = self._start(self._commit)
        return self._coordination

    def _ask(self) -> None:
        """Notes where Kafka's logs end. When all below has landed, the watermark is the time of this call.

        Without Kafka the watermark stands still.
        """
        asked, self._asked_at = self._context.clock.now_ms(), time.monotonic()
        try:
            self._watermark.ask(asked, self._held())
        except IdentityError:
            raise
        except KafkaError as error:
            self._outage.say("nothing is decided while Kafka is away, and nothing is lost: %s", error)
        else:
            self._outage.end()

    @contextmanager
    def _one_at_a_time(self) -> Iterator[bool]:
        """The lock of the rounds; yields False once `begin_no_more` was called: then no round begins."""
        with self._rounds_lock, self._noting_failure():
            yield not self._stopping.is_set()

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error
            raise
