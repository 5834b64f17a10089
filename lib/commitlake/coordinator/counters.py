"""What a coordinator counts as it goes, from 0 at its start: sums that only grow, as Prometheus wants them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from operator import add
from typing import NamedTuple

BOUNDS_S = (1, 2, 5, 10, 30, 60, 300, 1_800, 3_600, 86_400)
"""Upper ends of what ages are counted in, in s."""
Labels = tuple[str, ...]
Times = Iterable[tuple[float, int]]
"""Times in ms since epoch, UTC, each with how many there are of it."""


class Sums(NamedTuple):
    """Ages, counted.

    Attributes:
        within: by bound, how many were not above it.
        number: how many there were.
        seconds: their sum.
    """

    within: tuple[int, ...] = (0,) * len(BOUNDS_S)
    number: int = 0
    seconds: float = 0.0


class Ages:
    """How many ages there were up to each of `BOUNDS_S`, and altogether. One thread adds, any may read.

    Attributes:
        sums: what was added; replaced as a whole, so who reads it has numbers that agree.
    """

    def __init__(self) -> None:
        self.sums = Sums()

    def add(self, times: Times, until: int) -> None:
        """Add the ages that `times` have at another time, ms since epoch, UTC; none is below 0."""
        ages = [(max(0.0, until - at) / 1_000, number) for at, number in times]
        within = [sum(number for age, number in ages if age <= bound) for bound in BOUNDS_S]
        old, total = self.sums, sum(age * number for age, number in ages)
        more = sum(number for _, number in ages)
        self.sums = Sums(tuple(map(add, old.within, within)), old.number + more, old.seconds + total)


class Counters:
    """Safe to use in any thread. Labels are names of the code's, never of producers: each value is kept for ever.

    Attributes:
        ended: from a half message to its end.
        committed: from the op to the row that can be read, of half messages without a delay.
        normal: from a normal message, or a batch of them, to its rows that can be read.
        late: from the due time of a delayed message to its row that can be read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[Labels]] = {}
        self.ended, self.committed, self.normal, self.late = (Ages() for _ in range(4))

    def add(self, name: str, more: Mapping[Labels, int]) -> None:
        """Count more, by labels."""
        with self._lock:
            self._counts.setdefault(name, Counter()).update(more)

    def of(self, name: str, from_zero: Iterable[Labels] = ()) -> dict[Labels, int]:
        """What was counted under a name.

        Args:
            name: the name.
            from_zero: labels that are there before the first count: the increase from nothing to 1 shows in no `rate`.
        """
        with self._lock:
            return dict.fromkeys(from_zero, 0) | self._counts.get(name, {})
