"""Rows as they are kept between batches: nothing lost, and a column with one value is kept once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from commitlake.protocol.states import Kind
from commitlake.statemachine.rows import ROW, Rows, make, pack, unpack


@given(arrays.arrays(ROW, st.integers(1, 20)))
def test_what_is_packed_comes_back(rows: Rows) -> None:
    assert unpack(pack(rows)).tobytes() == rows.tobytes()


def test_delayed_messages_of_one_topic_take_a_third_of_a_row_each() -> None:
    n = 10_000
    numbers, ids = np.arange(n), np.random.default_rng(1).integers(-(2**63), 2**63 - 1, n)
    waiting = make(ROW, n, kind=Kind.DELAYED, offset=numbers, tid=ids, grp=7, stored=numbers, deliver_at=numbers + 5)
    assert len(pack(waiting)) < 33 * n < ROW.itemsize * n / 3
    assert (unpack(pack(waiting)) == waiting).all()
