"""The rule: of the messages of a topic that have the same name, the first to become visible holds it (contract 4.12).

A name is its 64-bit hash, so no key leaves Spark. Of 20 million names two have the same hash once in 90 000 times.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]

MARGIN_MS = 600_000
"""How much longer than its window a name is kept: a batch's time is that of its begin, and clocks are corrected."""
_RECENT = 250_000
"""Names that are inserted one round at a time, some 5 ms; then they join the others, 0.5 s for 20 million."""


class Claims(NamedTuple):
    """Messages that would become visible, or have: columns of one length.

    Attributes:
        name: hash of the name.
        place: a number that stands for the record; members of a batch have the same one.
        at: when they become visible, ms since epoch, UTC.
    """

    name: Longs
    place: Longs
    at: Longs

    def chosen(self, which: npt.NDArray[np.generic]) -> Claims:
        """Some of them."""
        return Claims(*(column[which] for column in self))


class ClaimResult(NamedTuple):
    """For each claim whether it is refused, and the place that holds the name; 0 where it is not refused."""

    refused: Flags
    holder: Longs


NOBODY = Claims(*(np.empty(0, np.int64) for _ in range(3)))


class Names:
    """The names that a topic has shown, each with the messages that hold it: 24 bytes a name.

    A message may come with a wrong time. That decides how long it holds its own names, and forgets no others.

    Args:
        window_ms: how long a message holds its name.
        shown: what the topic's table holds.
    """

    def __init__(self, window_ms: int, shown: Claims = NOBODY) -> None:
        self._window_ms = window_ms
        self._old = shown.chosen(np.lexsort((shown.at, shown.name)))
        self._recent = NOBODY

    def __len__(self) -> int:
        """How many there are, some of them expired."""
        return len(self._old.name) + len(self._recent.name)

    def claim(self, claims: Claims, now: int) -> ClaimResult:
        """Give names to messages, the first come first; those that get theirs hold it from now on.

        A record is refused whole. One that holds its name already, since it was written before a kill, gets it again.

        Args:
            claims: in order of precedence, members of a batch one after the other.
            now: ms since epoch, UTC, which no message's time moves: what has expired by then may be forgotten.
        """
        held, again = self._holders(claims)
        verdict = ClaimResult(held.refused & ~again, np.where(again, 0, held.holder))
        if verdict.refused.any() or len(np.unique(claims.name)) < len(claims.name):
            _settle(claims, verdict, np.flatnonzero(~again), self._window_ms)
        self._add(claims.chosen(~verdict.refused & ~again), now)
        return verdict

    def _holders(self, claims: Claims) -> tuple[ClaimResult, Flags]:
        """Whether the newest message of a name holds it yet, and whether one of them is the claim's own."""
        size = len(claims.name)
        verdict, again = ClaimResult(np.zeros(size, bool), np.zeros(size, np.int64)), np.zeros(size, bool)
        for names in (self._old, self._recent):  # where both have a name, the recent one is the newer
            found = np.searchsorted(names.name, claims.name, side="right") - 1  # of equal names the newest is the last
            at = _same(names, found, claims, np.arange(size))
            live = at[claims.at[at] - names.at[found[at]] < self._window_ms]
            verdict.refused[live], verdict.holder[live] = True, names.place[found[live]]
            while len(at):  # few names have two
                again[at] |= names.place[found[at]] == claims.place[at]
                found[at] -= 1
                at = _same(names, found, claims, at)
        return verdict, again

    def _add(self, new: Claims, now: int) -> None:
        self._recent = _merged(self._recent, new.chosen(np.argsort(new.name, kind="stable")))
        if len(self._recent.name) > _RECENT:
            kept = self._old.chosen(self._old.at > now - self._window_ms - MARGIN_MS)
            self._old, self._recent = _merged(kept, self._recent), NOBODY


def _same(names: Claims, found: Places, claims: Claims, at: Places) -> Places:
    """Of some claims those whose name stands where it was found."""
    there: Places = at[found[at] >= 0]
    same: Places = there[names.name[found[there]] == claims.name[there]]
    return same


def _merged(old: Claims, new: Claims) -> Claims:
    """Both, sorted by name; of equal names the new one is the last."""
    at = np.searchsorted(old.name, new.name, side="right")
    return Claims(*(np.insert(mine, at, theirs) for mine, theirs in zip(old, new, strict=True)))


def _settle(claims: Claims, verdict: ClaimResult, new: Places, window_ms: int) -> None:
    """One record after the other, of the new ones that could meet a name: few, unless a flood repeats itself."""
    _, number, times = np.unique(claims.name, return_inverse=True, return_counts=True)
    doubtful = np.isin(claims.place, claims.place[verdict.refused | (times[number] > 1)])
    taken: dict[int, tuple[int, int]] = {}

    def holder(n: int) -> int | None:
        place, since = taken.get(int(claims.name[n]), (None, 0))
        if place is not None:
            return place if claims.at[n] - since < window_ms else None
        return int(verdict.holder[n]) if verdict.refused[n] else None

    for place, each in groupby(new[doubtful[new]].tolist(), key=lambda n: int(claims.place[n])):
        members = list(each)
        names = claims.name[members].tolist()
        holders = [found for n in members if (found := holder(n)) is not None]
        if not holders and len(set(names)) < len(names):
            holders = [place]
        if holders:
            verdict.refused[members], verdict.holder[members] = True, holders[0]
        else:
            verdict.refused[members], verdict.holder[members] = False, 0
            taken.update(dict.fromkeys(names, (place, int(claims.at[members[0]]))))
