"""Landed time: the broker time up to which every half message and op has landed. Deadlines never run ahead of it.

A lagging or stalled landing, or a backlog that is taken in steps, then discards nothing whose op is in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

DECIDING = ("half", "op", "admin")
"""The Kafka topics whose records open or end transactions."""


class Range(NamedTuple):
    """What a batch brought of one partition: offsets from `first` to `last`, the newest stored at `stored_ms`."""

    source: str
    partition: int
    first: int
    last: int
    stored_ms: int


def landed_until(ranges: Iterable[Range], asked_ms: int, most: int) -> int:
    """Broker time up to which half messages and ops have landed with a batch, ms since epoch, UTC.

    Args:
        ranges: what the batch brought, one for each partition.
        asked_ms: a time before the batch asked Kafka for its ends (ms since epoch, UTC).
        most: records that a batch takes at most. One with fewer has taken all that Kafka held when it asked; one with
            more than half as many counts as cut, since offsets without a record count towards the limit.
    """
    every = list(ranges)
    if sum(each.last - each.first + 1 for each in every) <= most // 2:
        return asked_ms
    # A cut batch has records of each partition that lags: what it has none of has landed up to `asked_ms`.
    return min([asked_ms, *(each.stored_ms for each in every if each.source in DECIDING)])
