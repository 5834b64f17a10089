"""A segment sleeps exactly until something happens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commitlake.protocol.encoding import Position as Place
from commitlake.protocol.statemachine.advance import advance
from commitlake.protocol.statemachine.model import Rules
from commitlake.protocol.statemachine.rows import ROW, empty, make
from commitlake.protocol.states import Kind
from commitlake.testing.records import LandedMessage as Message
from commitlake.testing.records import LandedOp as Op
from commitlake.testing.records import half_row, op_rows

NOW = 1_000_000
TICK = make(ROW, 1, kind=Kind.TICK)
ages = st.integers(0, 100)
places = st.builds(Place, st.just(0), st.integers(0, 5))


@st.composite
def arrivals(draw: st.DrawFn) -> np.ndarray:
    halves = draw(
        st.lists(
            st.builds(Message, places, ages.map(lambda age: NOW - age), delay=st.integers(-1, 50)),
            unique_by=lambda m: m.at,
        )
    )
    parts = draw(st.lists(st.integers(0, 9), unique=True, max_size=3))
    rows = [half_row(m) for m in halves] + [
        half_row(Message(Place(1, p), NOW, draw(places), tid=draw(st.integers(1, 2)))) for p in parts
    ]
    for offset in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from([Kind.COMMIT, Kind.ROLLBACK, Kind.RESUME, Kind.RECALL]))
        further = st.lists(st.builds(Place, st.just(1), st.integers(0, 9)), max_size=2, unique=True)
        listed = (draw(places), *(() if kind == Kind.RECALL else draw(further)))  # landing refuses a RECALL of several
        rows.append(op_rows(Op(Place(0, offset), NOW - draw(ages), kind, listed, draw(st.integers(1, 2)))))
    return np.concatenate([empty(), *rows])


@given(
    arrivals(),
    st.builds(
        Rules,
        timeout_ms=st.integers(1, 60),
        check_interval_ms=st.integers(1, 30),
        check_repeat_ms=st.integers(1, 30),
        check_max=st.integers(0, 2),
        retention_ms=st.integers(1, 150),
        op_park_ms=st.integers(1, 40),
    ),
)
def test_a_segment_acts_at_wake_at_and_not_before_until_it_is_empty(rows: np.ndarray, rules: Rules) -> None:
    step, now = advance(empty(), rows, NOW, rules), NOW
    for _ in range(200):
        if step.next_due is None:
            break
        assert step.next_due > now
        early = advance(step.state, TICK, step.next_due - 1, rules)
        assert len(early.events) == 0
        assert early.next_due == step.next_due
        now, step = step.next_due, advance(step.state, TICK, step.next_due, rules)
        assert len(step.events) > 0
    assert step.next_due is None
    assert len(step.state) == 0
