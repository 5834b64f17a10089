"""What a coordinator counts as it goes, from 0 at its start: sums that only grow, as Prometheus wants them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import add
from typing import NamedTuple

BOUNDS_S = (1, 2, 5, 10, 30, 60, 300, 1_800, 3_600, 86_400)
"""Upper ends of what ages are counted in, in s."""
Labels = tuple[str, ...]


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

    def add(self, within: Sequence[int], number: int, seconds: float) -> None:
        """Add more of them."""
        old = self.sums
        each = tuple(map(add, old.within, within))
        self.sums = Sums(each, old.number + number, old.seconds + seconds)


class Counters:
    """Safe to use in any thread. Labels are names of the code's, never of producers: each value is kept for ever.

    Attributes:
        ended: from a half message to its end.
        late: from the due time of a delayed message to its delivery.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[Labels]] = {}
        self.ended, self.late = Ages(), Ages()

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
