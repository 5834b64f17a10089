"""Spans: ranges of offsets by which Delta skips files without rows of interest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.protocol.statemachine.rows import SEGMENT_SIZE

_GAPS = 16  # the widest ones stay between the spans of a batch; each costs one more comparison a row
_CELLS = 10_000  # limit of segments to collect: a flood of unmatched ops may name any number


@dataclass(frozen=True)
class Span:
    """A range of offsets of one queue; both ends belong to it."""

    queue: int
    low: int
    high: int


def within(spans: Sequence[Span], queue: str, offset: str) -> Column:
    """The rows that lie in `spans`: Delta skips the other partitions, and files by their statistics."""
    each = [f"({queue} = {span.queue} AND {offset} BETWEEN {span.low} AND {span.high})" for span in spans]
    return F.expr(" OR ".join(each) or "false")


def spans_of(frame: DataFrame, queue: str, offset: str) -> list[Span]:
    """Few spans that hold the coordinates of a frame's rows, which one or two small jobs read."""
    ends = [F.min(offset).alias("low"), F.max(offset).alias("high")]
    rows = frame.groupBy(queue, F.expr(f"{offset} div {SEGMENT_SIZE}")).agg(*ends).limit(_CELLS + 1).collect()
    if len(rows) > _CELLS:
        rows = frame.groupBy(queue).agg(*ends).collect()
    return joined([Span(row[0], row["low"], row["high"]) for row in rows])


def joined(spans: list[Span]) -> list[Span]:
    """Few spans that hold all of `spans`: neighbours are joined, except at the widest gaps.

    An old message and a new one may end in one batch, and the rows between them need not be read.
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
