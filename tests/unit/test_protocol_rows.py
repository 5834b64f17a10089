"""Rows as they are kept between batches: nothing lost, and a column with one value is kept once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.support.one_segment import OneSegment, T, commit, delayed, half

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


def test_a_half_message_that_comes_twice_is_an_error_and_not_two_decisions() -> None:
    segment = OneSegment()
    segment.batch(T, half())
    with pytest.raises(DoubledError, match="offset 7"):
        segment.batch(T + 1, half(), commit())


@pytest.mark.parametrize("at", [0, 1])
def test_a_timer_that_comes_twice_is_an_error_and_not_two_deliveries(at: int) -> None:
    timers = [delayed(Place(0, 5), T + 10), delayed(Place(0, 6), T + 10)]
    segment = OneSegment()
    segment.batch(T, *timers)
    with pytest.raises(DoubledError, match=f"offset {5 + at}"):
        segment.batch(T + 1, timers[at])
