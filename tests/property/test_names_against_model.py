"""Once by name, against a model that looks at all messages ever: whatever comes in whatever order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlake.dedup import names
from commitlake.dedup.names import NOBODY, Claims, Names

WINDOW = 10
Round = tuple[int, list[list[int]]]
ROUNDS = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), max_size=5)), max_size=8
)
"""By round, how much later it is, and records: a message has one name, a batch one of each member."""


class Model:
    """Every record that was shown, with its time; the newest holder of a name is the last."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, int, int]] = []

    def claim(self, place: int, given: list[int], at: int) -> int | None:
        """The place because of which the record is refused, None when it is shown."""
        for name in given:
            held = [(holder, when) for own, holder, when in self.shown if own == name]
            if held and held[-1][0] != place and at - held[-1][1] < WINDOW:
                return held[-1][0]
        if any(holder == place for _, holder, _ in self.shown):
            return None  # written before the kill
        if len(set(given)) < len(given):
            return place
        self.shown += [(name, place, at) for name in given]
        return None


@pytest.mark.parametrize("recent", [0, 3, 1_000])
@settings(max_examples=150, deadline=None)
@given(rounds=ROUNDS, restart=st.integers(0, 8))
def test_a_name_is_shown_once_in_its_window(recent: int, rounds: list[Round], restart: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "_RECENT", recent)
        model, held, at, place = Model(), Names(WINDOW), 0, 0
        last: list[tuple[int, list[int]]] = []
        for number, (later, records) in enumerate(rounds):
            batch: list[tuple[int, list[int]]] = []
            if number == restart:  # what the round before had comes again
                held, batch = Names(WINDOW, claims(model.shown)), last
            else:
                at += later
            batch = batch + list(enumerate(records, place + 1))
            place += len(records)
            expected = {where: model.claim(where, given, at) for where, given in batch}
            refused, holder = held.claim(claims([(name, where, at) for where, given in batch for name in given]))
            each = [where for where, given in batch for _ in given]
            assert {where: int(holder[n]) if refused[n] else None for n, where in enumerate(each)} == expected
            last = batch


def claims(rows: list[tuple[int, int, int]]) -> Claims:
    return Claims(*np.array(rows, np.int64).T) if rows else NOBODY


def test_a_flood_of_one_name_is_shown_once() -> None:
    many = 100_000
    flood = Claims(np.zeros(many, np.int64), np.arange(many), np.full(many, 5))
    held = Names(WINDOW)
    assert np.flatnonzero(~held.claim(flood).refused).tolist() == [0]
    later = Claims(flood.name, flood.place + many, flood.at + WINDOW)
    assert np.flatnonzero(~held.claim(later).refused).tolist() == [0]
    assert len(held) == 2
