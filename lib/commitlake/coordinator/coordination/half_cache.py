"""The half messages that landed last, still cached: nearly every decision is about one of them.

A round that reads `half` pays for the list of its files and for opening them. Spark holds the rows of the last landings
in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame

from commitlake.coordinator.landing.land import Landed
from commitlake.tables import TableName, Warehouse
from commitlake.tables.spans import Span, within

_LANDINGS = 4
_BYTES = 100 << 20
"""Bytes of the records kept besides those of the newest landing: 200 000 with bodies of 256 B."""


class HalfCache:
    """Half messages by where they lie: in a cached landing, or in the table.

    The cached landings hold every half message of a queue from their lowest offset on, so an offset says where to look.
    """

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._kept: deque[Landed] = deque()

    def add(self, landed: Landed) -> None:
        """Keeps a landing, and frees old ones.

        A landing that left out records, because a table had them already, lacks some of its range.
        """
        if not landed.is_whole:
            self.clear()
        self._kept.append(landed)
        while len(self._kept) > _LANDINGS or sum(each.bytes for each in list(self._kept)[:-1]) > _BYTES:
            self._kept.popleft().release()

    def clear(self) -> None:
        """Frees all landings."""
        while self._kept:
            self._kept.popleft().release()

    def at(self, spans: Sequence[Span]) -> DataFrame:
        """Rows of `half`: all at `spans`, and maybe others."""
        lows = self._lows()
        frames = [each.tables[_HALF] for each in self._kept if each.is_whole and _touches(each, spans)]
        old = [_below(span, lows.get(span.queue)) for span in spans]
        wanted = [span for span in old if span is not None]
        if wanted or not frames:
            frames.append(self._warehouse.read(_HALF).where(within(wanted, "queue", "queue_offset")))
        return reduce(DataFrame.unionAll, [frame.select(*_HALF.layout.columns) for frame in frames])

    def _lows(self) -> Mapping[int, int]:
        """The first cached offset, by queue."""
        lows: dict[int, int] = {}
        for landed in self._kept:
            for queue, span in landed.half_spans.items() if landed.is_whole else ():
                lows[queue] = min(span.low, lows.get(queue, span.low))
        return lows


_HALF = TableName("half")


def _touches(landed: Landed, spans: Sequence[Span]) -> bool:
    own = landed.half_spans
    return _HALF in landed.tables and any(
        span.queue in own and span.low <= own[span.queue].high and own[span.queue].low <= span.high for span in spans
    )


def _below(span: Span, low: int | None) -> Span | None:
    """The part of a span below the first cached offset, None when there is none."""
    if low is None or span.high < low:
        return span
    return Span(span.queue, span.low, low - 1) if span.low < low else None
