"""The rule: of a topic's messages with the same name, the first to become visible holds the name (contract 4.12).

Names are compared by 64-bit hashes, so no key leaves Spark. The chance that two of 20 million names share a hash is
1 in 90 000.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commitlake.protocol.durations import MARGIN_MS

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]

_RECENT = 250_000
"""Each round inserts its names among at most so many, in some 5 ms. Once there are more, they are merged with all
others, in 0.5 s for 20 million."""


class Claims(NamedTuple):
    """Messages that have become visible, or are about to: columns of one length.

    Attributes:
        name: hash of the name.
        place: a number that stands for the record; members of a batch have the same one.
        at: when they become visible, ms since epoch, UTC.
    """

    name: Longs
    place: Longs
    at: Longs

    def chosen(self, which: npt.NDArray[np.generic]) -> Claims:
        """The claims that `which` selects, as a mask or as indices."""
        return Claims(*(column[which] for column in self))


class ClaimResult(NamedTuple):
    """For each claim whether it is refused, and the place that holds the name; 0 where it is not refused."""

    refused: Flags
    holder: Longs


NOBODY = Claims(*(np.empty(0, np.int64) for _ in range(3)))


class Names:
    """The names that a topic has shown, each with the messages that hold it: 24 bytes a name.

    A message may have a wrong time. Its time decides only how long it holds its own names; no other name is forgotten.

    Args:
        window_ms: how long a message holds its name.
        shown: what the topic's table holds.
    """

    def __init__(self, window_ms: int, shown: Claims = NOBODY) -> None:
        self._window_ms = window_ms
        self._old = shown.chosen(np.lexsort((shown.at, shown.name)))
        self._recent = NOBODY

    def __len__(self) -> int:
        """Number of names, expired ones included that are not forgotten yet."""
        return len(self._old.name) + len(self._recent.name)

    def claim(self, claims: Claims, now: int) -> ClaimResult:
        """Give each name to the first message that claims it; that message holds it from now on.

        A record is refused as a whole. A record that holds its name already, because it was written before a kill,
        gets it again.

        Args:
            claims: in order of precedence, members of a batch one after the other.
            now: ms since epoch, UTC, which is no message's time; names that have expired by then may be forgotten.
        """
        held, again = self._holders(claims)
        verdict = ClaimResult(held.refused & ~again, np.where(again, 0, held.holder))
        if verdict.refused.any() or len(np.unique(claims.name)) < len(claims.name):
            _settle(claims, verdict, np.flatnonzero(~again), self._window_ms)
        self._add(claims.chosen(~verdict.refused & ~again), now)
        return verdict

    def _holders(self, claims: Claims) -> tuple[ClaimResult, Flags]:
        """Whether a name's newest message still holds it, and whether any of its messages is the claim's own."""
        size = len(claims.name)
        verdict, again = ClaimResult(np.zeros(size, bool), np.zeros(size, np.int64)), np.zeros(size, bool)
        for names in (self._old, self._recent):  # where both have a name, the recent one is the newer
            found = np.searchsorted(names.name, claims.name, side="right") - 1  # of equal names the newest is the last
            at = _same(names, found, claims, np.arange(size))
            live = at[claims.at[at] - names.at[found[at]] < self._window_ms]
            verdict.refused[live], verdict.holder[live] = True, names.place[found[live]]
            while len(at):  # a name may have several messages; few have more than one
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
    """The indices in `at` of claims whose name really stands at the place in `found`."""
    there: Places = at[found[at] >= 0]
    same: Places = there[names.name[found[there]] == claims.name[there]]
    return same


def _merged(old: Claims, new: Claims) -> Claims:
    """Old and new claims, sorted by name; of equal names the new one is the last."""
    at = np.searchsorted(old.name, new.name, side="right")
    return Claims(*(np.insert(mine, at, theirs) for mine, theirs in zip(old, new, strict=True)))


def _settle(claims: Claims, verdict: ClaimResult, new: Places, window_ms: int) -> None:
    """Decide record by record where a name is held or claimed twice: few records, unless a flood repeats itself."""
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
