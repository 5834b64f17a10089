"""Counters of a coordinator, from 0 at its start: sums that only grow, as Prometheus requires."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from operator import add
from typing import NamedTuple

BOUNDS_S = (1, 2, 5, 10, 30, 60, 300, 1_800, 3_600, 86_400)
"""Upper bounds of the buckets of ages, in s."""
Labels = tuple[str, ...]
Times = Iterable[tuple[float, int]]
"""Pairs of a time in ms since epoch, UTC, and how many there are of it."""


class Sums(NamedTuple):
    """Counted ages.

    Attributes:
        within: for each bound, how many ages were not above it.
        number: how many ages there were.
        seconds: the sum of all ages.
    """

    within: tuple[int, ...] = (0,) * len(BOUNDS_S)
    number: int = 0
    seconds: float = 0.0


class Ages:
    """How many ages there were up to each of `BOUNDS_S`, and altogether. One thread adds, any thread may read.

    Attributes:
        sums: all ages so far; replaced as a whole, so a reader gets numbers that agree.
    """

    def __init__(self) -> None:
        self.sums = Sums()

    def add(self, times: Times, until: int) -> None:
        """Add the ages that `times` have at `until`, ms since epoch, UTC; a negative age counts as 0."""
        ages = [(max(0.0, until - at) / 1_000, number) for at, number in times]
        within = [sum(number for age, number in ages if age <= bound) for bound in BOUNDS_S]
        old, total = self.sums, sum(age * number for age, number in ages)
        more = sum(number for _, number in ages)
        self.sums = Sums(tuple(map(add, old.within, within)), old.number + more, old.seconds + total)


class Counters:
    """Counts by name and labels, safe to use in any thread.

    Labels are names of the code's, never of producers: each value is kept for ever.

    Attributes:
        ended: ages from a half message to its end.
        committed: ages from the op to the readable row, of half messages without a delay.
        normal: ages from a normal message, or a batch of them, to its readable rows.
        late: ages from the due time of a delayed message to its readable row.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[Labels]] = {}
        self.ended, self.committed, self.normal, self.late = (Ages() for _ in range(4))

    def add(self, name: str, more: Mapping[Labels, int]) -> None:
        """Add `more` to the counts of a name, by labels."""
        with self._lock:
            self._counts.setdefault(name, Counter()).update(more)

    def of(self, name: str, from_zero: Iterable[Labels] = ()) -> dict[Labels, int]:
        """The counts of a name, by labels.

        Args:
            name: the name.
            from_zero: labels to show as 0 before their first count: no `rate` shows the increase from nothing to 1.
        """
        with self._lock:
            return dict.fromkeys(from_zero, 0) | self._counts.get(name, {})
