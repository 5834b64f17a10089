"""A batch's events: where they lie, how they meet the tables, and the names that numbers stand for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from itertools import pairwise

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from commitlake.protocol.encoding import OFFSET_BITS
from commitlake.protocol.rows import SEGMENT_SIZE
from commitlake.protocol.states import Event, Source, State


def coordinate(queue: str, offset: str) -> Column:
    """(queue, offset) as one number: a join on a single bigint is Spark's fastest, and cheap to broadcast."""
    return F.shiftleft(F.col(queue).cast("bigint"), OFFSET_BITS).bitwiseOR(F.col(offset))


def named(kinds: type[IntEnum], column: str) -> Column:
    """The contract's name of a number."""
    pairs = [F.lit(item) for kind in kinds for item in (int(kind), kind.name)]
    return F.create_map(*pairs)[F.col(column)]


def or_null(column: str) -> Column:
    """What is absent (-1) in a row is null in a table."""
    return F.when(F.col(column) >= 0, F.col(column))


def moment(column: str) -> Column:
    """Ms since epoch as a timestamp, null when absent."""
    return F.timestamp_millis(or_null(column))


_GAPS = 16  # left out of the spans of a batch; each is one more comparison a row
_CELLS = 10_000  # segments that asks are about; ops of a flood may name as many as they like
_SMALL = 500_000  # rows of some 100 bytes: 50 MB on the wire; a shuffle of the other side costs twice the time


def sized(frame: DataFrame, rows: int) -> DataFrame:
    """Says how the smaller side of a join travels; Spark would guess, 10 times too low, from compressed sizes."""
    return frame.hint("broadcast" if rows <= _SMALL else "shuffle_hash")


@dataclass(frozen=True)
class Span:
    """The offsets of one queue that some events touch; both ends belong to it."""

    queue: int
    low: int
    high: int


def within(spans: list[Span], queue: str, offset: str) -> Column:
    """The rows that lie in `spans`: Delta skips the other partitions, and files by their statistics."""
    each = [(F.col(queue) == span.queue) & F.col(offset).between(span.low, span.high) for span in spans]
    return reduce(Column.__or__, each, F.lit(False))


def spans_of(frame: DataFrame, queue: str, offset: str) -> list[Span]:
    """Few spans that hold the coordinates of a frame's rows."""
    ends = [F.min(offset).alias("low"), F.max(offset).alias("high")]
    rows = frame.groupBy(queue, F.expr(f"{offset} div {SEGMENT_SIZE}")).agg(*ends).limit(_CELLS + 1).collect()
    if len(rows) > _CELLS:
        rows = frame.groupBy(queue).agg(*ends).collect()
    return joined([Span(row[0], row["low"], row["high"]) for row in rows])


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


def joined(spans: list[Span]) -> list[Span]:
    """Few spans that hold all these: neighbours become one, but at the widest gaps.

    An old message and a new one may end in one batch, and all that lies between them need not be read.
    """
    spans = sorted(spans, key=lambda span: (span.queue, span.low))
    gaps = sorted(after.low - before.high for before, after in pairwise(spans) if before.queue == after.queue)
    narrow = max([SEGMENT_SIZE, *gaps[:-_GAPS][-1:]])
    found: list[Span] = []
    for span in spans:
        last = found[-1] if found else None
        if last and last.queue == span.queue and span.low - last.high <= narrow:
            found[-1] = Span(last.queue, last.low, max(last.high, span.high))
        else:
            found.append(span)
    return found
