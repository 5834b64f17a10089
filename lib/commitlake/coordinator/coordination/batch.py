"""A coordination batch: it writes its events to tables in the one order that survives a kill between any two steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial, reduce

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from commitlake.coordinator.coordination import batch_rows, check_requests
from commitlake.coordinator.coordination.context import Context
from commitlake.coordinator.coordination.events import EndedCount, Events
from commitlake.coordinator.coordination.rejected_rows import rejected_rows
from commitlake.coordinator.coordination.unmatched.resolve import Resolved
from commitlake.coordinator.counters import Ages, Times
from commitlake.protocol.clock import as_datetime
from commitlake.protocol.states import Event, Source
from commitlake.spark.frames import checkpoint_lazily, release
from commitlake.spark.parallel import run_all
from commitlake.tables.commits import AFTER
from commitlake.tables.small_files import are_few


@dataclass
class Batch:
    """One batch that has something to write; each method is a step of the protocol (`Round.commit`).

    Attributes:
        context: configuration and tables.
        events: its events, resolutions included.
        batch_id: grows over the whole life of the warehouse.
        landing_id: the newest landing that may have written before it.
        messages: by source, the messages of its events, with these events.
        requeued: input rows for the next batch, None when there are none.
        reopened: the requeued rows that RESUMEs have reopened, None when there are none.
        cached: the caches that `release` frees.
        topics: the topics in which messages become visible; the append to the ledger finds them.
        since: the counters of ages, each with the times from which its ages count; the same append finds the times.
        shown_at: when all of its messages could be read, ms since epoch, UTC.
        bytes: about how many bytes the messages that end have; the same append finds that.
    """

    context: Context
    events: Events
    batch_id: int
    landing_id: int
    messages: Mapping[Source, DataFrame]
    requeued: DataFrame | None
    reopened: DataFrame | None
    cached: ExitStack
    topics: set[str] = field(default_factory=set)
    since: list[tuple[Ages, Times]] = field(default_factory=list)
    shown_at: int = 0
    bytes: int = 0

    @property
    def marker(self) -> dict[str, int]:
        """Marker of the batch's commits; commits to topics have more in it."""
        return {"batch_id": self.batch_id}

    @property
    def few(self) -> bool:
        """Whether the driver writes the files of the messages that end."""
        return are_few(self.events.count(Event.DECIDED, Event.DELIVERY), self.bytes)

    @classmethod
    def of(cls, context: Context, batch_id: int, landing_id: int, found: Resolved) -> Batch:
        """The batch of these events; reads their messages, once, and claims the names that these show."""
        events = found.events
        with ExitStack() as cached:
            cached.callback(events.release)
            messages = {}
            if events.count(Event.DECIDED, Event.DELIVERY, Event.CHECK, src=Source.HALF):
                messages[Source.HALF] = batch_rows.halves(events, context.half_cache)
            if events.count(Event.DELIVERY, src=Source.MESSAGES):
                messages[Source.MESSAGES] = batch_rows.delayed(events, context.warehouse)
            for src, frame in messages.items():
                messages[src] = checkpoint_lazily(frame)
                cached.callback(release, messages[src])
            messages = batch_rows.without_duplicates(messages, context.dedup, events.now) if messages else {}
            return cls(
                context, events, batch_id, landing_id, messages, found.requeued, found.reopened, cached.pop_all()
            )

    def write_ledger(self) -> None:
        """The commit point: a message with a row in `transactions` or `deliveries` has ended."""
        counters = self.context.counters
        if self.events.count(Event.DECIDED):
            rows = batch_rows.transactions(self.messages[Source.HALF], self.batch_id)
            place, shown = "0, queue, half_offset", batch_rows.SHOWN_AT_ONCE
            since = [(counters.ended, "unix_millis(stored_at)"), (counters.committed, _since(shown))]
            written = self._append_ledger(rows, "transactions", shown, place, since)
            self.events.check_written(written, "transactions", Event.DECIDED)
        ended = [
            batch_rows.deliveries(self.messages[src], src, self.batch_id)
            for src in Source
            if self.events.count(Event.DELIVERY, src=src)
        ]
        if ended:
            rows, place = reduce(DataFrame.unionByName, ended), "INT(source != 'half'), queue, queue_offset"
            shown = "state = 'DELIVERED'"
            written = self._append_ledger(rows, "deliveries", shown, place, [(counters.late, _since(shown))])
            self.events.check_written(written, "deliveries", Event.DELIVERY)

    def publish(self) -> None:
        """Makes committed and delivered messages visible, and then counts their delays.

        `visible_at` is never before the batch's time, even if the clock was set back since: that time may be just after
        a message was due.
        """
        clock = partial(self.context.clock.onward_ms, self.events.now)
        if self.topics:
            shown = f"({batch_rows.SHOWN}) AND duplicate_of IS NULL"
            frames = [
                batch_rows.topic_rows(frame.where(shown), src, self.batch_id)
                for src, frame in self.messages.items()
                if self.events.count(Event.DECIDED, Event.DELIVERY, src=src)
            ]
            rows = reduce(DataFrame.union, frames)
            marker = {**self.marker, AFTER: self.landing_id}
            self.context.warehouse.append_to_topics(rows, sorted(self.topics), marker, clock, few=self.few)
        self.shown_at = clock()
        for ages, since in self.since:
            ages.add(since, self.shown_at)

    def write_rest(self) -> None:
        """Writes the tables that no reader of a topic waits for, side by side."""
        append, events = self.context.warehouse.append, self.events
        tasks: list[Callable[[], None]] = []
        if events.count_discarded():
            columns = self.context.warehouse.read("half").columns
            rows = batch_rows.discarded(self.messages[Source.HALF], columns, self.batch_id)
            tasks.append(partial(append, rows, "discarded", self.marker, few=self.few))
        if events.count(Event.REFUSED):
            refused = rejected_rows(self.context.warehouse, self.context.config, events)
            tasks.append(partial(append, refused, "rejected", self.marker))
        if events.count(Event.CHECK):
            checks = batch_rows.checks(self.messages[Source.HALF], self.batch_id)
            tasks.append(partial(append, checks, "checks", self.marker, few=are_few(events.count(Event.CHECK))))
        if self.reopened is not None:
            reopened = self.reopened.withColumn("batch_id", F.lit(self.batch_id))
            tasks.append(partial(append, reopened, "reentries", self.marker))
        run_all(self.context.warehouse.spark, tasks)

    def requeue(self, watermark: int) -> None:
        """Appends input rows for the next batch. A start works them out again, except those that RESUMEs reopened."""
        if self.requeued is not None:
            self.context.inputs.append(self.requeued, watermark)

    def complete(self, landing_id: int) -> None:
        """Writes the row of `batches`, which says that the batch is complete; so is the landing `landing_id`."""
        at = as_datetime(self.shown_at)
        row = {"batch_id": self.batch_id, "completed_at": at, "landing_id": landing_id}
        self.context.warehouse.add([row], "batches", self.marker)

    def send_checks(self) -> None:
        """Sends check requests to Kafka; their ids never change. When they can't be sent, the batch still ends."""
        if self.events.count(Event.CHECK):
            checked = self.messages[Source.HALF].where(f"event = {int(Event.CHECK)}")
            asked = checked.selectExpr("*", "e.round", "e.checks AS check_no", "e.repeat")
            check_requests.send(self.context.config, asked, self._parts(), self.context.unsent_checks)
            if self.context.silent_groups.is_due():
                check_requests.tell_unanswered(self.context.config, asked)

    def release(self) -> None:
        """Frees the memory of the caches."""
        self.cached.close()

    def _append_ledger(
        self, rows: DataFrame, name: str, shown: str, place: str, since: Sequence[tuple[Ages, str]]
    ) -> EndedCount:
        """Appends rows, and gathers their topics, bytes and times meanwhile: a query of its own would cost a job.

        Args:
            rows: the rows of the table.
            name: the name of the table.
            shown: SQL; whether a row's message becomes visible.
            place: SQL of the columns that identify a row.
            since: counters of ages, each with SQL of the time from which an age counts, ms since epoch, UTC.
        """
        seen = Observation()
        topics = F.expr(f"to_json(collect_set(IF({shown}, topic, NULL)))").alias("topics")
        gathered = [_times(at, f"since {number}") for number, (_, at) in enumerate(since)]
        places = F.expr(f"bit_xor(xxhash64({place}))").alias("places")
        found = rows.observe(seen, topics, F.count("*").alias("n"), F.sum("bytes").alias("bytes"), places, *gathered)
        self.context.warehouse.append(found, name, self.marker, few=self.few)
        self.bytes += seen.get["bytes"] or 0
        self.topics |= set(json.loads(seen.get["topics"]))
        self.since += [(ages, _told_times(seen.get[f"since {number}"])) for number, (ages, _) in enumerate(since)]
        return EndedCount(seen.get["n"], seen.get["places"] or 0)

    def _parts(self) -> DataFrame | None:
        """The parts of the transactions that are checked."""
        if not self.events.count(Event.CHECK_PART):
            return None
        parts = self.events.of(Event.CHECK_PART)
        return parts.selectExpr("first_queue", "first_offset", "queue", "offset AS queue_offset")


def _since(shown: str) -> str:
    """SQL of the time from which a message could have been visible; null for one that does not become visible."""
    return f"IF({shown}, {batch_rows.SINCE}, NULL)"


def _times(at_ms: str, name: str) -> Column:
    """Aggregate of times, which `_told_times` reads: as JSON, since an observation hands no list to Python.

    Their ages count up to a commit that is still to come. So the times themselves are kept: some 64 of them, each with
    the number of rows at or near it.

    Args:
        at_ms: SQL of the time, ms since epoch, UTC; null for rows that do not count.
        name: the name of the column.
    """
    return F.expr(f"to_json(histogram_numeric({at_ms}, 64))").alias(name)


def _told_times(text: str | None) -> Times:
    """The times that `_times` has gathered, from its JSON."""
    return [(part["x"], round(part["y"])) for part in json.loads(text or "[]")]
