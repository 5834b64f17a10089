"""Rows as they are kept between batches: nothing lost, and a column with one value is kept once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.support.one_segment import OneSegment, T, commit, delayed, half, part

from commitlake.errors import DoubledError
from commitlake.protocol.encoding import Position as Place
from commitlake.protocol.statemachine.rows import ROW, Rows, make, pack, unpack
from commitlake.protocol.states import Kind


@given(arrays.arrays(ROW, st.integers(1, 20)))
def test_what_is_packed_comes_back(rows: Rows) -> None:
    assert unpack(pack(rows)).tobytes() == rows.tobytes()


def test_delayed_messages_of_one_topic_take_a_third_of_a_row_each() -> None:
    n = 10_000
    numbers, ids = np.arange(n), np.random.default_rng(1).integers(-(2**63), 2**63 - 1, n)
    waiting = make(ROW, n, kind=Kind.DELAYED, offset=numbers, tid=ids, grp=7, stored=numbers, deliver_at=numbers + 5)
    assert len(pack(waiting)) < 33 * n < ROW.itemsize * n / 3
    assert (unpack(pack(waiting)) == waiting).all()


TIMERS = [delayed(Place(0, offset), T + 10) for offset in (5, 6)]


@pytest.mark.parametrize(
    ("rows", "again", "offset"),
    [([half()], 0, 7), ([part(Place(1, 3))], 0, 7), (TIMERS, 0, 5), (TIMERS, 1, 6)],
    ids=["a half message", "a part", "a timer", "another timer"],
)
def test_what_comes_twice_is_an_error_and_does_not_end_twice(rows: list[Rows], again: int, offset: int) -> None:
    segment = OneSegment()
    segment.batch(T, *rows, watermark=T - 1)
    with pytest.raises(DoubledError, match=f"offset {offset}"):
        segment.batch(T + 1, rows[again], commit(), watermark=T - 1)
