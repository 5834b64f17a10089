"""Which op decides, which waits, which is refused (contract 4.1, 4.2, 4.6), and rows kept between batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.support.one_segment import H, OneSegment, T, commit, delayed, half, part, reopened, resume, rollback

from commitlake.errors import DoubledError
from commitlake.protocol.encoding import Position as Place
from commitlake.protocol.statemachine.rows import ROW, Rows, make, pack, unpack
from commitlake.protocol.states import Kind

PARK = 600_000


def test_a_half_message_has_no_event_until_its_op_comes() -> None:
    segment = OneSegment()
    assert segment.batch(T, half()) == {}
    assert segment.batch(T + 1, commit()) == {"DECIDED": [(7, "COMMITTED", "DIRECT")]}
    assert segment.open() == 0
    assert segment.next_due is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "DIRECT"),
        ({"from_check": True}, "CHECK"),
        ({"admin": True}, "ADMIN"),
        ({"admin": True, "from_check": True}, "ADMIN"),
    ],
)
def test_the_reason_names_the_source_of_the_decision(fields: dict[str, bool], reason: str) -> None:
    assert OneSegment().batch(T, half(), rollback(**fields)) == {"DECIDED": [(7, "ROLLED_BACK", reason)]}


def test_an_op_before_its_half_message_waits_for_it() -> None:
    segment = OneSegment()
    assert segment.batch(T, rollback()) == {}
    assert segment.next_due == T + PARK
    assert segment.batch(T + PARK - 1, half(stored=T + PARK - 1)) == {"DECIDED": [(7, "ROLLED_BACK", "DIRECT")]}
    assert segment.open() == 0


def test_park_time_counts_from_the_append_time_of_the_op_and_ends_by_landed_time() -> None:
    segment = OneSegment()
    segment.batch(T + 2 * PARK, commit(stored=T), watermark=T - 1)
    assert segment.batch(T + 3 * PARK, watermark=T + PARK - 1) == {}
    assert segment.batch(T + 3 * PARK, watermark=T + PARK) == {"UNMATCHED_OP": [(0, 1)]}
    assert segment.open() == 0


def test_the_earliest_op_wins_by_append_time_then_queue_then_offset() -> None:
    for winner, loser in [
        (commit(9, stored=T), rollback(1, stored=T + 1)),
        (commit(9, queue=0), rollback(1, queue=1)),
        (commit(1), rollback(2)),
    ]:
        for arrived in ([winner, loser], [loser, winner]):
            events = OneSegment().batch(T + 1, half(), *arrived)
            assert events == {"DECIDED": [(7, "COMMITTED", "DIRECT")]}


def test_an_op_of_an_earlier_batch_wins_though_a_later_one_is_older() -> None:
    segment = OneSegment()
    segment.batch(T + 10, half(), commit(5, stored=T + 10))
    assert segment.batch(T + 11, rollback(4, stored=T)) == {}
    assert segment.batch(T + 11 + PARK) == {"UNMATCHED_OP": [(4, 1)]}


def test_a_second_decision_is_unmatched_when_its_park_time_ends() -> None:
    segment = OneSegment()
    segment.batch(T, half(), commit(0), rollback(1), commit(2))
    assert segment.batch(T + PARK) == {"UNMATCHED_OP": [(1, 1), (2, 1)]}
    assert segment.open() == 0


def test_a_wrong_transaction_id_is_refused_and_decides_nothing() -> None:
    segment = OneSegment()
    assert segment.batch(T, half(), commit(0, tid=2, group=2)) == {"REFUSED": [(0, "WRONG_TRANSACTION_ID")]}
    assert segment.batch(T, commit(1)) == {"DECIDED": [(7, "COMMITTED", "DIRECT")]}


def test_a_wrong_group_is_refused_but_an_admin_may_have_any() -> None:
    segment = OneSegment()
    assert segment.batch(T, half(), commit(0, group=2)) == {"REFUSED": [(0, "WRONG_PRODUCER_GROUP")]}
    assert segment.batch(T, commit(1, group=2, admin=True)) == {"DECIDED": [(7, "COMMITTED", "ADMIN")]}


def test_a_wrong_op_that_waited_is_refused_and_the_right_one_wins() -> None:
    segment = OneSegment()
    segment.batch(T, rollback(0, tid=2))
    events = segment.batch(T + 1, half(), commit(1, stored=T + 1))
    assert events == {"REFUSED": [(0, "WRONG_TRANSACTION_ID")], "DECIDED": [(7, "COMMITTED", "DIRECT")]}


def test_op_and_admin_records_of_equal_coordinates_are_two_records() -> None:
    segment = OneSegment()
    landed, missing = Place(1, 3), Place(1, 4)
    segment.batch(T, half(), part(landed), commit(0, listed=(H, missing)))
    events = segment.batch(T, rollback(0, admin=True, listed=(H, landed)))
    assert events == {"DECIDED": [(7, "ROLLED_BACK", "ADMIN"), (3, "ROLLED_BACK", "ADMIN")]}
    assert segment.batch(T + PARK) == {"UNMATCHED_OP": [(0, 1)]}


def test_a_resume_of_an_open_transaction_is_refused_at_once() -> None:
    segment = OneSegment()
    assert segment.batch(T, half(), resume()) == {"REFUSED": [(0, "NOT_DISCARDED")]}
    assert segment.batch(T, resume(1, tid=2)) == {"REFUSED": [(1, "WRONG_TRANSACTION_ID")]}


def test_a_resume_of_what_is_not_open_is_unmatched_at_once() -> None:
    segment = OneSegment()
    assert segment.batch(T, resume(), watermark=-1) == {"UNMATCHED_OP": [(0, 1)]}
    assert segment.open() == 0


def test_an_accepted_resume_is_not_refused_by_the_round_that_it_opened() -> None:
    segment = OneSegment()
    segment.batch(T, resume())
    assert segment.batch(T, reopened()) == {}


def test_an_op_from_before_a_resume_never_applies_to_the_new_round() -> None:
    segment = OneSegment()
    segment.batch(T + 1, rollback(0, stored=T - 1), rollback(1, stored=T))
    assert segment.batch(T + 2, reopened()) == {}
    assert segment.batch(T + 3, commit(2, stored=T + 1)) == {"DECIDED": [(7, "COMMITTED", "DIRECT")]}


def test_admin_records_of_one_millisecond_are_ordered_by_offset() -> None:
    assert OneSegment().batch(T, reopened(offset=5), commit(4, admin=True)) == {}
    assert OneSegment().batch(T, reopened(offset=5), commit(6, admin=True)) == {"DECIDED": [(7, "COMMITTED", "ADMIN")]}


def test_checks_of_a_resumed_transaction_start_again_from_the_resume() -> None:
    segment = OneSegment()
    segment.batch(T, reopened())
    assert segment.next_due == T + 6_001
    assert segment.batch(T + 6_001) == {"CHECK": [(7, 1, 1, 0)]}


def test_the_retention_of_a_resumed_transaction_counts_from_the_resume() -> None:
    segment = OneSegment(retention_ms=3_000)
    segment.batch(T, reopened())
    assert segment.batch(T + 3_000) == {}
    assert segment.batch(T + 3_001) == {"DECIDED": [(7, "DISCARDED", "EXPIRED")]}


def test_an_op_decides_only_the_transaction_it_names() -> None:
    segment = OneSegment()
    events = segment.batch(T, half(Place(0, 6)), half(), half(Place(0, 8)), part(Place(1, 0), Place(0, 8)), commit())
    assert events == {"DECIDED": [(7, "COMMITTED", "DIRECT")]}


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
