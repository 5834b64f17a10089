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


class Verdict(NamedTuple):
    """For each claim whether it is refused, and the place that holds the name; 0 where it is not refused."""

    refused: Flags
    holder: Longs


NOBODY = Claims(*(np.empty(0, np.int64) for _ in range(3)))


class Names:
    """The names that a topic has shown, each with the newest message that holds it: 24 bytes a name.

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

    def claim(self, claims: Claims) -> Verdict:
        """Give names to messages, the first come first; those that get theirs hold it from now on.

        A record is refused whole. One that holds its name already, since it was written before a kill, gets it again.

        Args:
            claims: in order of precedence, members of a batch one after the other.
        """
        held, holder = self._holders(claims)
        again = held & (holder == claims.place)
        verdict = Verdict(held & ~again, np.where(again, 0, holder))
        if verdict.refused.any() or len(np.unique(claims.name)) < len(claims.name):
            _settle(claims, verdict, np.flatnonzero(~again))
        self._add(claims.chosen(~verdict.refused & ~again))
        return verdict

    def _holders(self, claims: Claims) -> Verdict:
        verdict = Verdict(np.zeros(len(claims.name), bool), np.zeros(len(claims.name), np.int64))
        for names in (self._old, self._recent):  # where both have a name, the recent one is the newer
            found = np.searchsorted(names.name, claims.name, side="right") - 1  # of equal names the newest is the last
            at = np.flatnonzero(found >= 0)
            at = at[names.name[found[at]] == claims.name[at]]
            is_live = claims.at[at] - names.at[found[at]] < self._window_ms
            at = at[is_live | (claims.place[at] == names.place[found[at]])]
            verdict.refused[at], verdict.holder[at] = True, names.place[found[at]]
        return verdict

    def _add(self, new: Claims) -> None:
        self._recent = _merged(self._recent, new.chosen(np.argsort(new.name, kind="stable")))
        if len(self._recent.name) > _RECENT:
            live = self._old.chosen(self._old.at > self._recent.at.max() - self._window_ms)
            self._old, self._recent = _merged(live, self._recent), NOBODY


def _merged(old: Claims, new: Claims) -> Claims:
    """Both, sorted by name; of equal names the new one is the last."""
    at = np.searchsorted(old.name, new.name, side="right")
    return Claims(*(np.insert(mine, at, theirs) for mine, theirs in zip(old, new, strict=True)))


def _settle(claims: Claims, verdict: Verdict, new: npt.NDArray[np.intp]) -> None:
    """One record after the other, of the new ones that could meet a name: few, unless a flood repeats itself."""
    _, number, times = np.unique(claims.name, return_inverse=True, return_counts=True)
    doubtful = np.isin(claims.place, claims.place[verdict.refused | (times[number] > 1)])
    taken: dict[int, int] = {}
    for place, each in groupby(new[doubtful[new]].tolist(), key=lambda n: int(claims.place[n])):
        members = list(each)
        names = claims.name[members].tolist()
        holders = [
            int(verdict.holder[n]) if verdict.refused[n] else taken[name]
            for n, name in zip(members, names, strict=True)
            if verdict.refused[n] or name in taken
        ]
        if not holders and len(set(names)) < len(names):
            holders = [place]
        if holders:
            verdict.refused[members], verdict.holder[members] = True, holders[0]
        else:
            taken.update(dict.fromkeys(names, place))
