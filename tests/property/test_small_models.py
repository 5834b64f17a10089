"""Names that are shown once, and marks in logs of tables, each against a small model, in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlake.clients.delta.marks import FENCED, PREFIX, WRITTEN, decision, fence, mark
from commitlake.protocol import names
from commitlake.protocol.names import NOBODY, Claims, Names

WINDOW, MARGIN = 10, 2
DAYS = 3 * WINDOW


class Record(NamedTuple):
    """A message has one name, a batch one of each member; a broker's wrong clock stores it `ahead` of its time."""

    names: list[int]
    ahead: int


class Round(NamedTuple):
    """It comes `later` than the one before; the coordinator's clock is wrong by `wrong` in it."""

    later: int
    wrong: int
    records: list[Record]


WRONG = st.sampled_from([0, 0, 0, 1, -1, MARGIN, DAYS, -DAYS])
AHEAD = st.sampled_from([0, 0, 0, 0, 1, WINDOW, DAYS])
RECORDS = st.builds(Record, st.lists(st.integers(0, 4), min_size=1, max_size=3), AHEAD)
ROUNDS = st.lists(st.builds(Round, st.integers(0, 6), WRONG, st.lists(RECORDS, max_size=5)), max_size=10)


class Model:
    """Every record that was shown, with its time; the newest holder of a name is the last."""

    def __init__(self) -> None:
        self.window = WINDOW
        self.shown: list[tuple[int, int, int]] = []
        self.latest = 0

    def claim(self, place: int, given: list[int], at: int, *, is_refused: bool) -> int | None:
        """The place because of which the record is refused, None when it is shown.

        What has expired by the right clock may be forgotten: then a record of a wrong time, behind, is shown or not.
        """
        if any(holder == place for _, holder, _ in self.shown):
            return None  # written before the kill
        for name in given:
            held = [(holder, when) for own, holder, when in self.shown if own == name]
            if held and at - held[-1][1] < self.window and (is_refused or self.is_kept(held[-1][1])):
                return held[-1][0]
        if len(set(given)) < len(given):
            return place
        self.shown += [(name, place, at) for name in given]
        return None

    def is_kept(self, at: int) -> bool:
        return at > self.latest - self.window - MARGIN

    def kept(self) -> list[tuple[int, int, int]]:
        return [each for each in self.shown if self.is_kept(each[2])]


@pytest.mark.parametrize("recent", [0, 3, 1_000])
@settings(max_examples=150, deadline=None)
@given(rounds=ROUNDS, restart=st.integers(0, 8), window=st.sampled_from([WINDOW, 3, 4 * WINDOW]))
def test_a_name_is_shown_once_in_its_window_whatever_the_clocks(
    recent: int, rounds: list[Round], restart: int, window: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "_RECENT", recent)
        patch.setattr(names, "MARGIN_MS", MARGIN)
        model, held, now, place = Model(), Names(WINDOW), 1_000, 0
        last: list[tuple[int, int, list[int]]] = []
        for number, (later, wrong, records) in enumerate(rounds):
            batch: list[tuple[int, int, list[int]]] = []
            now += later
            if number == restart:  # what the round before had comes again; `topics.dedup` may have changed meanwhile
                model.window = window
                held, batch = Names(window, claims(model.kept())), last
            told = min(now, now + wrong)
            model.latest = max(model.latest, told)
            fresh = [
                (where, max(now + wrong, now + record.ahead), record.names)
                for where, record in enumerate(records, place + 1)
            ]
            batch = batch + fresh
            place += len(records)
            asked = claims([(name, where, at) for where, at, own in batch for name in own])
            refused, holder = held.claim(asked, told)
            each = [where for where, _, own in batch for _ in own]
            found = {where: int(holder[n]) if refused[n] else None for n, where in enumerate(each)}
            expected = {
                where: model.claim(where, own, at, is_refused=found[where] is not None) for where, at, own in batch
            }
            assert found == expected
            last = batch


def claims(rows: list[tuple[int, int, int]]) -> Claims:
    return Claims(*np.array(rows, np.int64).T) if rows else NOBODY


def test_one_wrong_time_makes_no_other_name_forgotten() -> None:
    day, many = 86_400_000, 260_000
    held = Names(day)
    begun = 10**12
    assert not held.claim(claims([(1, 1, begun)]), begun).refused.any()
    held.claim(several(10, many, begun), begun)
    held.claim(claims([(5, 5, begun + 3 * day)]), begun + 1)
    held.claim(several(many + 10, many, begun + 2), begun + 2)
    assert held.claim(claims([(1, 2, begun + 3)]), begun + 3).refused.all()
    held.claim(several(2 * many + 10, many, begun + 2 * day), begun + 2 * day)
    assert len(held) == many + 1


def several(first: int, many: int, at: int) -> Claims:
    numbers = np.arange(first, first + many)
    return Claims(numbers, numbers, np.full(many, at))


def test_a_flood_of_one_name_is_shown_once() -> None:
    many = 100_000
    flood = Claims(np.zeros(many, np.int64), np.arange(many), np.full(many, 5))
    held = Names(WINDOW)
    assert np.flatnonzero(~held.claim(flood, 5).refused).tolist() == [0]
    later = Claims(flood.name, flood.place + many, flood.at + WINDOW)
    assert np.flatnonzero(~held.claim(later, 5 + WINDOW).refused).tolist() == [0]
    assert len(held) == 2


TABLES = ("orders", "lines")
TRANSACTION = PREFIX + "t"
STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(TABLES)),
    st.tuples(st.just("fence"), st.sampled_from(TABLES)),  # a check that was killed after one of its fences
    st.tuples(st.just("other"), st.sampled_from(TABLES)),  # a commit of somebody else
    st.tuples(st.just("check"), st.just("early")),
    st.tuples(st.just("check"), st.just("late")),
)


def write(place: str) -> None:
    """What Delta's writer does with `txnVersion`: nothing where that version was reached."""
    table = DeltaTable(place)
    if (table.transaction_version(TRANSACTION) or 0) >= WRITTEN:
        return
    properties = CommitProperties(app_transactions=[Transaction(TRANSACTION, WRITTEN)], max_commit_retries=0)
    write_deltalake(table, pa.table({"id": [1]}), mode="append", commit_properties=properties)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEPS, max_size=12))
def test_a_decision_fits_the_rows_and_never_changes(steps: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        places = {name: str(Path(root) / name) for name in TABLES}
        for place in places.values():
            write_deltalake(place, pa.table({"id": [0]}))
        model: dict[str, int] = {}
        decided: str | None = None
        for kind, what in [*steps, ("check", "late")]:
            if kind == "write":
                write(places[what])
                model.setdefault(what, WRITTEN)
            elif kind == "fence":
                assert fence(places[what], TRANSACTION) == model.setdefault(what, FENCED)
            elif kind == "other":
                write_deltalake(places[what], pa.table({"id": [9]}), mode="append")
            else:
                found = decision(list(places.values()), TRANSACTION, is_over=what == "late")
                if what == "late" or FENCED in model.values():
                    for name in TABLES:
                        model.setdefault(name, FENCED)
                expected = None
                if len(model) == len(TABLES):
                    expected = "COMMIT" if set(model.values()) == {WRITTEN} else "ROLLBACK"
                assert found == expected
                assert decided in (None, found)
                decided = found
            for name, place in places.items():
                rows = DeltaTable(place).to_pyarrow_table()["id"].to_pylist()
                assert rows.count(1) == int(model.get(name) == WRITTEN)
                assert mark(place, TRANSACTION) == model.get(name)
        assert decided is not None
