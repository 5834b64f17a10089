"""Random histories: segments with their ledger, and a model that does one message at a time, agree."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from hypothesis import given, note
from hypothesis import strategies as st
from tests.property.model import Model, crash

from commitlake.protocol.encoding import Position as Place
from commitlake.protocol.statemachine.advance import advance
from commitlake.protocol.statemachine.model import Rules
from commitlake.protocol.statemachine.rows import ROW, SEGMENT_SIZE, empty, make
from commitlake.protocol.states import Delivery, Kind
from commitlake.testing.coordination import Segments
from commitlake.testing.records import Check, Delivered, half_row, op_rows
from commitlake.testing.records import LandedMessage as Message
from commitlake.testing.records import LandedOp as Op

FIRSTS = (Place(0, 0), Place(0, 1), Place(1, SEGMENT_SIZE))
PARTS = (Place(0, 2), Place(1, 0), Place(1, 1))
HALVES = FIRSTS + PARTS
DELAYED = (Place(0, 0), Place(0, 1))
START = 1_000_000
Item = TypeVar("Item")

rules = st.builds(
    Rules,
    timeout_ms=st.sampled_from([5, 20]),
    check_interval_ms=st.sampled_from([1, 10, 30]),
    check_repeat_ms=st.sampled_from([3, 25]),
    check_max=st.integers(0, 3),
    retention_ms=st.sampled_from([15, 60, 1_000]),
    op_park_ms=st.sampled_from([1, 10, 40]),
    counts_unanswered=st.booleans(),
)
mostly_right = st.sampled_from([1, 1, 1, 1, 1, 2])
delay = st.sampled_from([-1, -1, 0, 15])
clock_steps = st.sampled_from([0, 1, 1, 5, 5, 11, 30, 61, 1_001, -1, -7, -100])
"""A batch's time is a clock that may be set back and forth."""
lags = st.sampled_from([0, 0, 0, 3, 40, 2_000])
"""Landed time may lag, and catch up in one step."""


def stored(draw: st.DrawFn, now: int) -> int:
    """Broker's append time: a little before the batch that reads it, and not in the order of the batches."""
    return now - draw(st.sampled_from([0, 0, 1, 3, 12]))


@st.composite
def half_messages(draw: st.DrawFn, now: int, place: Place) -> Message:
    others = [other for other in HALVES if other != place]
    first = draw(st.sampled_from(FIRSTS if draw(mostly_right) == 1 else others)) if place in PARTS else None
    return Message(
        place,
        stored(draw, now),
        first,
        draw(mostly_right),
        draw(mostly_right),
        immunity=draw(st.sampled_from([-1, -1, 0, 1])),
        delay=draw(delay),
        deliver_at=draw(st.sampled_from([-1, -1, -1, 0, now + 8])),
        refused=first is not None and draw(st.sampled_from([False, False, False, True])),
    )


@st.composite
def ops(draw: st.DrawFn, now: int, offset: int, asked: list[Check]) -> Op:
    kinds = [Kind.COMMIT, Kind.COMMIT, Kind.ROLLBACK, Kind.RESUME, Kind.RECALL, Kind.UNKNOWN, Kind.UNKNOWN]
    decision = draw(st.sampled_from(kinds))
    admin = decision == Kind.RESUME or (decision in (Kind.COMMIT, Kind.ROLLBACK) and draw(st.booleans()))
    first = draw(st.sampled_from(FIRSTS if draw(mostly_right) == 1 or decision == Kind.RESUME else HALVES))
    further = draw(st.lists(st.sampled_from([p for p in HALVES if p != first]), max_size=2, unique=True))
    listed = (draw(st.sampled_from(DELAYED)),) if decision == Kind.RECALL else (first, *further)
    listed = listed[:1] if decision == Kind.RESUME else listed
    group, from_check = draw(mostly_right), decision == Kind.UNKNOWN or draw(st.booleans())
    known = [check[2:4] for check in asked if check[1] == listed[0]]
    answered = [None, *known] if known else []  # nobody answers what was never asked
    check = draw(st.sampled_from([(9, 9), *answered])) if decision == Kind.UNKNOWN else None
    at = Place(0 if admin else listed[0].queue, offset)
    return Op(at, stored(draw, now), decision, listed, draw(mostly_right), group, admin, from_check, check)


@given(st.data())
def test_any_history_ends_as_the_model_does(data: st.DataObject) -> None:
    chosen = data.draw(rules, "rules")
    model, product = Model(chosen), Segments(chosen)
    now, landed, unread, offset, answered = START, START, [], 0, 0
    every: list[Place | tuple[Place, str]] = [*HALVES, *((place, "delayed") for place in DELAYED)]
    to_land = data.draw(st.permutations(every), "order")
    for _ in range(data.draw(st.integers(1, 14), "batches")):
        now += data.draw(clock_steps, "time")
        landed = max(landed, now - data.draw(lags, "lag"))
        landing, to_land = split(to_land, data.draw(st.sampled_from([0, 1, 1, 2, 8]), "landing"))
        for what in landing:
            message = data.draw(a_message(now, what), "message")
            model.land(message)
            product.land(message)
            unread.append(message)
        reading, unread = split(unread, data.draw(st.sampled_from([0, 1, 8, 8, 8]), "reading"))
        arrived = [
            data.draw(ops(now, offset + i, model.checks), "op")
            for i in range(data.draw(st.sampled_from([0, 1, 1, 2, 3]), "ops"))
        ]
        offset += len(arrived)
        for i, op in enumerate(arrived):  # the answers to a transaction have one partition, where times do not fall
            if op.decision == Kind.UNKNOWN:
                arrived[i] = replace(op, stored=max(op.stored, answered))
                answered = arrived[i].stored
        if data.draw(st.sampled_from([False, False, False, True]), "crash"):
            model.crash()
            crash(product)
            model.batch(now, landed, reading + unread, arrived)
            product.batch(now, landed, [], arrived)
            unread = []
        else:
            model.batch(now, landed, reading, arrived)
            product.batch(now, landed, reading, arrived)
        note(f"at {now}: {product.ledger.transactions} {product.ledger.rejected} {product.ledger.checks}")
        agree(model, product)
    settle(now, model, product, unread)


@st.composite
def a_message(draw: st.DrawFn, now: int, what: Place | tuple[Place, str]) -> Message:
    if isinstance(what, Place):
        return draw(half_messages(now, what))
    due = now + draw(st.sampled_from([-1, 0, 5, 30]))
    return Message(what[0], stored(draw, now), tid=1, group=1, deliver_at=due, delayed=True)


def split(items: list[Item], n: int) -> tuple[list[Item], list[Item]]:
    return list(items[:n]), list(items[n:])


def agree(model: Model, product: Segments) -> None:
    """Decisions, checks and ends of delayed messages fall in the same batch; all else agrees when it has settled."""
    ends = {at: [end for end in h.ends if end.reason.name != "ORPHAN"] for at, h in model.halves.items() if h.ends}
    written = {
        at: [end for end in ends if end.reason.name != "ORPHAN"] for at, ends in product.ledger.transactions.items()
    }
    assert {at: e for at, e in written.items() if e} == {at: e for at, e in ends.items() if e}
    assert sorted(product.ledger.checks, key=repr) == sorted(model.checks, key=repr)
    assert delayed(product.ledger.deliveries) == delayed(model.deliveries)


def delayed(deliveries: dict[Delivered, tuple[Delivery, int]]) -> dict[Delivered, tuple[Delivery, int]]:
    """Those of delayed messages; a late part of a transaction starts to wait a batch later than in the model."""
    return {at: end for at, end in deliveries.items() if at[0] == "messages"}


def settle(now: int, model: Model, product: Segments, unread: list[Message]) -> None:
    """Time passes until everything has ended; then nothing is left in any segment."""
    for at in range(now + 2_000, now + 40_000, 2_000):
        model.batch(at, at, unread, [])
        product.batch(at, at, unread, [])
        unread = []
    agree(model, product)
    assert product.ledger.transactions == {at: h.ends for at, h in model.halves.items() if h.ends}
    assert product.ledger.rejected == model.refused
    assert product.ledger.deliveries == model.deliveries
    assert not model.waiting
    assert not product.states


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
        counts_unanswered=st.booleans(),
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
