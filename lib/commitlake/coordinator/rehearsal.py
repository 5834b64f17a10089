"""Starts and rounds that a waiting standby runs on tables of its own, so that its JVM is warm at the takeover.

A JVM loads classes, and compiles code that runs often. A cold standby took 2.5 times as long from a SIGKILL of the
coordinator to the first new row. Kafka takes no part: the records are made here, and nothing is sent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import Config
from commitlake.coordinator.coordination.context import Context
from commitlake.coordinator.coordination.half_cache import HalfCache
from commitlake.coordinator.dedup.dedup_index import DedupIndex
from commitlake.coordinator.landing import positions
from commitlake.coordinator.landing.land import Landing
from commitlake.coordinator.landing.ordinary import Classification
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.landing.topic_admission import Topics
from commitlake.coordinator.landing.watermark import Watermark
from commitlake.coordinator.recovery import recover
from commitlake.coordinator.recovery.recover import Recovered
from commitlake.coordinator.scheduler import Scheduler
from commitlake.kafka.log_ends import Place
from commitlake.protocol import headers, wire
from commitlake.protocol.clock import BrokerClock
from commitlake.protocol.encoding import Position
from commitlake.spark import checkpoints, session
from commitlake.spark.callbacks import held_weakly
from commitlake.spark.files import FileSystem
from commitlake.spark.frames import of_rows
from commitlake.tables import TABLES, Warehouse
from commitlake.tables.schemas import columns

log = logging.getLogger(__name__)

_SOONEST_S = 1.0
"""Pause before the rehearsal. Where no coordinator runs, a standby takes over within it, so none begins."""
_END_S = 10.0
_READ_EVERY_S = 300.0
"""Interval of reads of the tables' logs. At a takeover Delta then lacks the commits of five minutes at most."""
_NAME = "rehearsal"
"""Name of the topic and of the producer group."""
_ROUNDS, _EACH = 6, 20
"""Rounds of each start, and transactions of each round. The first round takes seconds, the sixth hardly longer than the
next."""
_RAW = columns("""
string    topic
int       partition
bigint    offset
timestamp timestamp
binary    key value
binaries  headers
""")
"""The columns of the Kafka source that landing reads. There headers are entries, not a map."""


class Rehearsal:
    """Starts and rounds on tables of its own."""

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self._spark, self._place = spark, checkpoints.passing(spark, config, "rehearsal")
        self._files = FileSystem(spark, self._place)
        self._real = config
        free = replace(config.topics, allowed=(), dedup={}, schemas={})
        self._config = replace(
            config,
            warehouse=f"{self._place}/warehouse",
            checkpoints=f"{self._place}/checkpoints",
            topics=free,
            transaction=replace(config.transaction, reject=False),
        )
        self._clock, self._stopping = BrokerClock(), threading.Event()

    def stop(self) -> None:
        """Lets the round in flight end, and no other begin."""
        self._stopping.set()

    def run(self) -> None:
        """Runs two starts and their rounds, reads the tables as a start does, and then follows their logs."""
        if self._stopping.wait(_SOONEST_S):
            return
        begun = time.monotonic()
        try:
            self._run_starts()
        except Exception as error:  # a cold standby can take over too
            if not self._stopping.is_set():
                log.warning("the standby could not rehearse, so it will be slower at first: %s", error)
            return
        finally:
            with suppress(Exception):  # the session may have ended
                self._files.delete("")
        self._quietly(self._read)
        if not self._stopping.is_set():
            log.warning("standing by, warm after %.0f s", time.monotonic() - begun)
        while not self._stopping.wait(_READ_EVERY_S):
            self._quietly(self._follow_logs)

    def _quietly(self, read: Callable[[], None]) -> None:
        """Reads, unless stopped. Tables may be missing or of another version: a start reports that, a read does not."""
        if not self._stopping.is_set():
            try:
                read()
            except Exception as error:
                log.debug("cannot read the tables: %s", error)

    def _read(self) -> None:
        """Reads the tables of the coordinator once as a start does; nothing is written."""
        tables = Warehouse(self._spark, self._real.warehouse)
        position = positions.newest(tables) if all(map(tables.holds, TABLES)) else None
        if position is not None:  # else the coordinator has just begun
            recover.open_rows(tables, self._real, position).count()
            tables.listed_topics()

    def _follow_logs(self) -> None:
        """Lets Delta read the new commits of the tables' logs, without the open rows of `_read`: these may be many."""
        tables = Warehouse(self._spark, self._real.warehouse)
        for name in TABLES:
            tables.read(name)

    def _run_starts(self) -> None:
        """Runs a start on an empty warehouse, then one that finds the rows of the first, with delayed messages."""
        tables = Warehouse(self._spark, self._config.warehouse)
        tables.create()
        new = recover.of_new_warehouse(tables, self._inputs(), self._clock)
        landed = self._run_start(tables, new, LandingPosition(0, {}))
        if not self._stopping.is_set():
            found = recover.recover(tables, self._config, self._inputs(), self._clock, landed, tables.topics())
            self._run_start(tables, found, landed, **{headers.TIMER_DELAY_SEC: "1"})

    def _inputs(self) -> str:
        return f"{checkpoints.fresh(self._spark, self._config, 'inputs', 0)}/table"

    def _run_start(self, tables: Warehouse, found: Recovered, begun: LandingPosition, **delays: str) -> LandingPosition:
        """Runs the rounds of one start; returns the position after them."""
        config, dedup = self._config, DedupIndex(tables, {}, self._clock)
        topics = Topics(tables, config.topics.max, lambda _: None)
        context = Context(config, tables, self._clock, HalfCache(tables), found.inputs, dedup)
        steps = Classification.of(config)
        landing = Landing(tables, config, steps, topics, dedup, begun, self._clock, found.uncommitted)
        queries: list[StreamingQuery] = []

        def start(write: Callable[[DataFrame, int], None]) -> StreamingQuery:
            scratch = checkpoints.fresh(self._spark, config, "coordination", 0)
            queries.append(found.inputs.coordinate(config.transaction, held_weakly(write), scratch))
            return queries[0]

        ends: dict[Place, int] = {}
        scheduler = Scheduler(context, landing, Watermark(), lambda: ends, start, found.last_batch + 1)
        first = begun.next("half", 0)
        try:
            for at in range(first, first + _ROUNDS * _EACH, _EACH):
                if self._stopping.is_set():
                    break
                ends.update({(source, 0): at + _EACH for source in ("half", "op", "messages")})
                scheduler.round(self._raw(range(at, at + _EACH), delays), ends)
        finally:
            scheduler.stop(_END_S)
            for each in queries:
                each.stop()
            context.half_cache.clear()
        return landing.position

    def _raw(self, offsets: range, delays: dict[str, str]) -> DataFrame:
        """Records of a committed transaction and of a normal message for each offset."""
        rows = []
        for at in offsets:
            for source, record in _records(at, delays):
                stored = {"topic": self._config.kafka.topic(source), "partition": 0, "offset": at}
                rows.append({**record._asdict(), **stored, "timestamp": datetime.now(UTC)})
        return of_rows(self._spark, rows, _RAW).withColumn("headers", F.map_entries("headers"))


def _records(offset: int, delays: dict[str, str]) -> list[tuple[str, wire.Encoded]]:
    half = wire.HalfRecord(
        topic=_NAME, msg_id=f"h{offset}", body=b"rehearsal", producer_group=_NAME, transaction_id=f"t{offset}"
    )
    op = wire.OpRecord(
        transaction_id=f"t{offset}",
        producer_group=_NAME,
        decision="COMMIT",
        half_messages=(Position(0, offset),),
    )
    message = wire.MessageRecord(
        topic=_NAME, msg_id=f"m{offset}", body=b"rehearsal", producer_group=_NAME, delays=delays
    )
    return [
        ("half", wire.encode_half(half)),
        ("op", wire.encode_op(op)),
        ("messages", wire.encode_message(message)),
    ]


@contextmanager
def rehearsing(spark: SparkSession, config: Config) -> Iterator[None]:
    """Rehearses while the context lasts. A round in flight at its end runs on beside the code that follows."""
    rehearsal = Rehearsal(session.beside(spark, config), config)  # a session allows one query of each name
    threading.Thread(target=rehearsal.run, name="commitlake-rehearsal", daemon=True).start()
    try:
        yield
    finally:
        rehearsal.stop()
