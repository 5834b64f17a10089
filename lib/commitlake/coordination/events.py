"""A batch's events: where they lie, how they meet the tables, and the names that numbers stand for."""

from __future__ import annotations

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from commitlake.protocol.states import Event, Source, State
from commitlake.statemachine.rows import SEGMENT_SIZE
from commitlake.tables.spans import Span, joined


class Events:
    """The events of one batch: a cached frame, and one summary that says what there is to do.

    The frame is evaluated here, once and whole: a stateful frame that is read in part leaves its state uncommitted,
    and one that is read twice runs the state machine twice.
    """

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame.persist()
        lies = F.col("event").isin(int(Event.DECIDED), int(Event.DELIVERY), int(Event.CHECK))  # others may be anywhere
        segment = F.when(lies, F.expr(f"offset div {SEGMENT_SIZE}")).alias("segment")
        spans = [F.min("offset").alias("low"), F.max("offset").alias("high")]
        rows = (
            self.frame.groupBy("event", "src", "queue", "state", segment)
            .agg(F.count("*").alias("n"), F.max("now").alias("now"), *spans)
            .collect()
        )
        self._summary: list[Row] = rows

    @property
    def now(self) -> int:
        """The batch's time, ms since epoch, UTC."""
        return max((int(row["now"]) for row in self._summary), default=0)

    def count(self, *events: Event) -> int:
        """How many there are of these events; of all, if none is named."""
        return sum(row["n"] for row in self._summary if not events or row["event"] in events)

    def count_of(self, event: Event, src: Source) -> int:
        """How many there are of this event for one source."""
        return sum(row["n"] for row in self._summary if row["event"] == event and row["src"] == src)

    def count_discarded(self) -> int:
        """How many half messages are discarded."""
        return sum(
            row["n"] for row in self._summary if (row["event"], row["state"]) == (Event.DECIDED, State.DISCARDED)
        )

    def of(self, event: Event, src: Source | None = None) -> DataFrame:
        """The events of one kind."""
        found = self.frame.where(F.col("event") == int(event))
        return found if src is None else found.where(F.col("src") == int(src))

    def spans(self, event: Event, src: Source = Source.HALF) -> list[Span]:
        """Where the messages of these events are."""
        rows = [row for row in self._summary if row["event"] == event and row["src"] == src]
        return joined([Span(row["queue"], row["low"], row["high"]) for row in rows])

    def with_more(self, more: DataFrame) -> Events:
        """These events and `more` as one."""
        return Events(self.frame.unionByName(more))
