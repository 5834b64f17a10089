"""A batch's events: the rows that the state machine emitted, cached, and one summary that shows what there is to do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import reduce
from operator import xor
from typing import NamedTuple

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from commitlake.config.terminal import counted
from commitlake.coordinator.coordination.input_table import SegmentKey
from commitlake.coordinator.counters import Counters, Labels
from commitlake.errors import DoubledError
from commitlake.kafka.throttled import Throttle
from commitlake.protocol.statemachine.rows import SEGMENT_SIZE
from commitlake.protocol.states import Delivery, Event, Kind, Reason, Refusal, Source, State
from commitlake.spark.frames import checkpoint_lazily, release
from commitlake.tables.spans import Span, joined

log = logging.getLogger(__name__)

_DISCARDS = Throttle()
_OF_SEGMENT = (Event.DECIDED, Event.DELIVERY, Event.CHECK, Event.NEXT_DUE)
"""Events whose offset lies in their segment; others may be about any record."""


class EndedCount(NamedTuple):
    """How many messages ended, and one number made of all their places, whatever their order."""

    number: int
    places: int


class Events:
    """The events of one batch.

    The frame is computed here, once and whole. A stateful frame that is read in part leaves its state uncommitted. One
    that is read twice runs the state machine twice.

    Attributes:
        summary: the number of events (`n`), by kind and place.
    """

    def __init__(self, frame: DataFrame) -> None:
        self.frame = checkpoint_lazily(frame)
        lies = F.col("event").isin(*map(int, _OF_SEGMENT))
        segment = F.when(lies, F.expr(f"offset div {SEGMENT_SIZE}")).alias("segment")
        again = F.expr("repeat > 0").alias("is_again")
        self.summary: list[Row] = (
            self.frame.groupBy("event", "src", "queue", "state", "reason", segment, "kind", again)
            .agg(
                F.count("*").alias("n"),
                F.max("now").alias("now"),
                F.min("offset").alias("low"),
                F.max("offset").alias("high"),
                F.max("deliver_at").alias("latest"),
                F.expr("bit_xor(xxhash64(src, queue, offset))").alias("places"),
            )
            .collect()
        )

    @property
    def now(self) -> int:
        """The batch's time, ms since epoch, UTC."""
        return max((int(row["now"]) for row in self.summary), default=0)

    def next_due(self) -> Mapping[SegmentKey, int | None]:
        """When each segment of the batch must be called next (ms since epoch, UTC); None: only when a row comes."""
        return {
            SegmentKey(row["src"], row["queue"], row["segment"]): row["latest"] if row["latest"] >= 0 else None
            for row in self.summary
            if row["event"] == Event.NEXT_DUE
        }

    def count(self, *events: Event, src: Source | None = None, kind: Kind | None = None) -> int:
        """The number of these events: of one source or of both, about ops of one kind or of any."""
        found = (row for row in self.summary if row["event"] in events and src in (None, row["src"]))
        return sum(row["n"] for row in found if kind in (None, row["kind"]))

    def count_discarded(self) -> int:
        """How many half messages are discarded."""
        return sum(row["n"] for row in self.summary if (row["event"], row["state"]) == (Event.DECIDED, State.DISCARDED))

    def check_written(self, written: EndedCount, table: str, event: Event) -> None:
        """Compares ledger rows with their events: each event has one row, and there are no others.

        Raises:
            DoubledError: a message stands twice, or not at all, in its table.
        """
        rows = [row for row in self.summary if row["event"] == event]
        wanted = EndedCount(sum(row["n"] for row in rows), reduce(xor, (row["places"] for row in rows), 0))
        if written != wanted:
            msg = f"{table}: {wanted.number} messages ended in this batch, but {written.number} rows were written"
            raise DoubledError(msg)

    def check_ends(self) -> None:
        """Compares the ends that segments report with those of resolutions: no message has two.

        Raises:
            DoubledError: a message has two.
        """
        ends = self.frame.where(F.col("event").isin(int(Event.DECIDED), int(Event.DELIVERY)))
        twice = ends.groupBy("event", "src", "queue", "offset").count().where("count > 1").head()
        if twice is not None:
            msg = f"the message at queue {twice['queue']}, offset {twice['offset']} ends twice in a batch"
            raise DoubledError(msg)

    def of(self, event: Event, src: Source | None = None) -> DataFrame:
        """The events of one kind."""
        found = self.frame.where(F.col("event") == int(event))
        return found if src is None else found.where(F.col("src") == int(src))

    def spans(self, *events: Event, src: Source = Source.HALF) -> list[Span]:
        """The ranges of offsets where the messages of these events lie."""
        rows = [row for row in self.summary if row["event"] in events and row["src"] == src]
        return joined([Span(row["queue"], row["low"], row["high"]) for row in rows])

    def with_more(self, more: DataFrame) -> Events:
        """These events and `more` as one."""
        return Events(self.frame.unionByName(more))

    def release(self) -> None:
        """Frees the memory of the cache."""
        release(self.frame)


class Timers:
    """The next due time of each segment in which something is open, in ms since epoch, UTC."""

    def __init__(self) -> None:
        self._next: dict[SegmentKey, int] = {}

    def note(self, events: Events) -> None:
        """Takes the next due times from the events of a batch."""
        for key, at in events.next_due().items():
            if at is None:
                self._next.pop(key, None)
            else:
                self._next[key] = at

    def due(self, until: int) -> list[SegmentKey]:
        """The segments that are due by `until`, ms since epoch, UTC."""
        return [key for key, at in list(self._next.items()) if at <= until]


def count(counters: Counters, events: Events) -> None:
    """Counts the events of a batch that is complete, for metrics, and warns of discards: nobody may look at those."""
    for row in events.summary:
        told = _told(row)
        if told is not None:
            name, label = told
            counters.add(name, {label: row["n"]})
    discarded = events.count_discarded()
    if discarded and _DISCARDS.is_due():
        log.warning(
            "%s discarded just now, and kept: `commitlake tx list --state DISCARDED` says whose and why; "
            "the next warning comes in a minute or later",
            counted(discarded, "half message"),
        )


def _told(row: Row) -> tuple[str, Labels] | None:
    """The counter of an event, and its labels; None for an event that is not counted."""
    match row["event"]:
        case Event.DECIDED:
            return "ended", (State(row["state"]).name, Reason(row["reason"]).name)
        case Event.DELIVERY:
            return "deliveries", (Delivery(row["state"]).name,)
        case Event.REFUSED:
            return "rejected", (Refusal(row["reason"]).name,)
        case Event.CHECK:
            return "checks", ("repeated" if row["is_again"] else "sent",)
    return None
