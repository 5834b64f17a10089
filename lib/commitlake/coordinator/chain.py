"""The chain: what Kafka brought lands and is coordinated at once, a round after the other.

Kafka's next records are asked for when a round has ended. Two queries that take turns fix their offsets first and wait
then: a row was visible 17 s after its commit at 1 000 transactions a second on 2 cores, where a round took 6.6 s.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial, reduce

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.coordinator.coordination import input_rows
from commitlake.coordinator.coordination.batch import Surroundings
from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.coordination.input_table import SegmentKey
from commitlake.coordinator.counters import Counters
from commitlake.coordinator.landing.land import Landed, Landing
from commitlake.coordinator.landing.landed_time import LandedTime
from commitlake.coordinator.landing.positions import Offsets, Position
from commitlake.coordinator.rounds import Rounds
from commitlake.errors import KafkaError
from commitlake.spark.frames import in_few_tasks
from commitlake.spark.parallel import run_all
from commitlake.tables import TableName

log = logging.getLogger(__name__)

_INPUTS: Mapping[TableName, Callable[[DataFrame], DataFrame]] = {
    TableName("half"): input_rows.half_rows,
    TableName("op"): input_rows.op_rows,
    TableName("delayed"): input_rows.delayed_rows,
}
"""The tables whose new rows the state machine sees, and what it sees of them."""


class Chain:
    """Rounds of landing and coordination, one at a time.

    Args:
        around: what batches work with; a round appends to its `inputs`.
        landing: lands the batches.
        landed_time: knows what Kafka held at the start: until that has landed no deadline runs.
        held: asks Kafka for the next offset of each partition that decides on transactions.
    """

    def __init__(
        self, around: Surroundings, landing: Landing, landed_time: LandedTime, held: Callable[[], Offsets]
    ) -> None:
        self._around, self._landing, self._landed_time, self._held = around, landing, landed_time, held
        self._coordination: StreamingQuery | None = None
        self._start_coordination: Callable[[], StreamingQuery] | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="commitlake-coordination")
        self._running: Future[None] = _ended()
        self._written: Future[None] = _ended()
        self._recorded: Future[None] = _ended()
        self._shown = threading.Event()
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._wakes: dict[SegmentKey, int] = {}
        self.rounds = Rounds(around.config.trigger_interval_ms)
        self._busy = threading.Lock()
        self.failure: Exception | None = None
        """What failed first; Spark reports it as the text of a stack trace only."""

    @property
    def position(self) -> Position:
        """How far landing has come."""
        return self._landing.position

    @property
    def counters(self) -> Counters:
        """What was counted since the start."""
        return self._around.counters

    def coordinate_with(self, start: Callable[[], StreamingQuery]) -> None:
        """Sets what starts the query that reads `inputs`: the first round does, unless `begin` has before."""
        self._start_coordination = start

    def note(self, events: Events) -> None:
        """Remembers when segments have to be called next."""
        for key, at in events.wakes().items():
            if at is None:
                self._wakes.pop(key, None)
            else:
                self._wakes[key] = at

    def wait_for_landing(self) -> None:
        """Waits until the landing has written its tables: a batch writes nothing before. Raises what failed there."""
        self._written.result()

    def wait_for_position(self) -> None:
        """Waits until the position of the landing is written: no batch is complete before. Raises what failed there."""
        self._recorded.result()

    def show(self) -> None:
        """Says that a batch has shown its rows: Kafka may be asked for the next records."""
        self._shown.set()

    def round(self, raw: DataFrame, ends: Offsets) -> None:
        """Lands a batch of the Kafka source, and coordinates what it brought; returns when that is visible.

        While the next batch is judged, the rest of this one's coordination goes on.

        Args:
            raw: the batch.
            ends: where it ends, the next offset of each partition.
        """
        with self._one_at_a_time() as goes_on:
            if goes_on:
                begun = time.monotonic()
                if self._around.once.topics:
                    self._running.result()  # what it shows takes names first
                landed = self._landing.judge(raw, ends)
                judged = time.monotonic()
                self._running.result()
                self._land_and_coordinate(landed)
                self.rounds.add(landed.rows, judged - begun, time.monotonic() - judged)
                self._ask()  # now, since what Spark reads next is all of this and more

    def tick(self) -> None:
        """Calls the segments in which something is due, if there are any."""
        if not self._due(self._around.clock.now_ms()):
            self.rounds.idle()
            return
        with self._one_at_a_time() as goes_on:
            self._running.result()
            if goes_on:
                self._ask()
                due = self._due(self._pass(self.position))
                if due:
                    self._around.inputs.append(self._around.inputs.ticks(due))
                    self.coordinate()
            self.rounds.idle()

    def stop(self, timeout_s: float) -> None:
        """Lets the round under way end, and none begin."""
        self._stopping.set()
        for held in (self._busy, self._turn):  # each sees the flag after we had its lock
            if held.acquire(timeout=timeout_s):
                held.release()
        wait([self._running], timeout_s)
        self._pool.shutdown(wait=False)

    @contextmanager
    def between_rounds(self) -> Iterator[None]:
        """A context in which no round runs."""
        with self._turn:
            wait([self._running])
            yield

    def unless_stopping(self, write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """A batch of coordination that begins while stopping never happened: the next start begins from the tables."""

        def guarded(frame: DataFrame, batch_id: int) -> None:
            with self._busy, self._noting_failure():
                if not self._stopping.is_set():
                    write(frame, batch_id)

        return guarded

    def _land_and_coordinate(self, landed: Landed) -> None:
        """One round, from judged records to visible rows; two things side by side.

        - Write the tables of the landing, which nothing orders; then append its position.
        - Append its input rows, and coordinate. The half messages that have just landed are still cached. A batch waits
          for the tables of the landing before it writes anything, and for its position before it is complete.
        """
        around = self._around
        around.recent.add(landed)
        rows = [make(landed.tables[name]) for name, make in _INPUTS.items() if name in landed.tables]
        due = self._due(self._pass(landed.position))
        if due:
            rows.append(around.inputs.ticks(due))
        tasks: list[Callable[[], object]] = [partial(self._write, landed)]
        if rows:
            tasks.append(partial(self._coordinate_rows, in_few_tasks(reduce(DataFrame.union, rows))))
        self._written, self._recorded = Future(), Future()  # last: who waits for them waits for `_write`
        run_all(around.warehouse.spark, tasks)

    def _write(self, landed: Landed) -> None:
        with _telling(self._recorded):
            with _telling(self._written):
                run_all(self._around.warehouse.spark, self._landing.writes(landed))
            self._landing.complete(landed)
        counters = self._around.counters
        counters.add("rejected", {(reason,): number for reason, number in landed.rejected.items()})
        counters.add("answers", {(): landed.answers})

    def _coordinate_rows(self, rows: DataFrame) -> None:
        """Coordinates rows until theirs are visible; the rest of the batch is `_running`."""
        self._around.inputs.append(rows)
        self._shown.clear()
        self.begin()
        self._running.add_done_callback(lambda _: self._shown.set())
        self._shown.wait()
        if self._running.done():
            self._running.result()

    def begin(self) -> None:
        """Begins to coordinate; what writes input rows next waits for the end."""
        self._running = self._pool.submit(self._query().processAllAvailable)

    def coordinate(self) -> None:
        """Runs coordination until it has worked off all its input rows."""
        self._running.result()
        self._query().processAllAvailable()

    def _query(self) -> StreamingQuery:
        if self._coordination is None:
            assert self._start_coordination is not None
            self._coordination = self._start_coordination()
        return self._coordination

    def _due(self, until: int) -> list[SegmentKey]:
        return [key for key, at in list(self._wakes.items()) if at <= until]

    def _ask(self) -> None:
        """Remembers what Kafka holds: when that has landed, landed time is now. It stands still while Kafka is away."""
        asked = self._around.clock.now_ms()
        try:
            self._landed_time.ask(asked, self._held())
        except KafkaError as error:
            log.debug("landed time stands still: %s", error)

    def _pass(self, position: Position) -> int:
        """Takes how far landing has come with the input rows that are appended next; returns landed time."""
        landed = self._around.inputs.landed_until = self._landed_time.landed(position)
        return landed

    @contextmanager
    def _one_at_a_time(self) -> Iterator[bool]:
        """Whether the round goes on: one that would begin while stopping never happened."""
        with self._turn, self._noting_failure():
            yield not self._stopping.is_set()

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error
            raise


@contextmanager
def _telling(future: Future[None]) -> Iterator[None]:
    """Ends a future with what happens here."""
    try:
        yield
    except BaseException as error:
        future.set_exception(error)
        raise
    future.set_result(None)


def _ended() -> Future[None]:
    ended: Future[None] = Future()
    ended.set_result(None)
    return ended
