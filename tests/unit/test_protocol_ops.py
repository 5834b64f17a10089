"""Which op decides, which waits, which is refused (contract 4.1, 4.2, 4.6), several half messages (4.8), kept rows."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.support.one_segment import H, OneSegment, T, commit, delayed, half, part, refused, reopened, resume, rollback

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


P, Q = Place(1, 3), Place(2, 4)
ALL_COMMITTED = [(3, "COMMITTED", "DIRECT"), (4, "COMMITTED", "DIRECT"), (7, "COMMITTED", "DIRECT")]


@pytest.mark.parametrize("order", list(permutations([half(), part(P), part(Q), commit(listed=(H, P, Q))])))
def test_the_order_in_which_a_transaction_arrives_does_not_matter(order: tuple[Rows, ...]) -> None:
    segment = OneSegment()
    decided = [
        entry
        for now, row in enumerate(order)
        for entry in segment.batch(T + now, row, watermark=T - 1).get("DECIDED", [])
    ]
    assert sorted(decided) == ALL_COMMITTED
    assert segment.open() == 0


def test_an_op_waits_until_all_it_lists_have_landed_then_applies_whole() -> None:
    segment = OneSegment()
    assert segment.batch(T, half(), part(P), commit(listed=(H, P, Q))) == {}
    assert sorted(segment.batch(T + 1, part(Q))["DECIDED"]) == ALL_COMMITTED


def test_an_op_also_decides_landed_parts_that_it_does_not_list() -> None:
    events = OneSegment().batch(T, half(), part(P), part(Q), rollback())
    assert sorted(events["DECIDED"]) == [
        (3, "ROLLED_BACK", "DIRECT"),
        (4, "ROLLED_BACK", "DIRECT"),
        (7, "ROLLED_BACK", "DIRECT"),
    ]


def test_a_part_of_another_transaction_does_not_complete_an_op() -> None:
    other = Place(0, 8)
    assert OneSegment().batch(T, half(), half(other), part(P, other), commit(listed=(H, P))) == {}


def test_a_complete_op_decides_while_an_earlier_one_waits_for_its_part() -> None:
    segment = OneSegment()
    events = segment.batch(T, half(), commit(0, listed=(H, P)), rollback(1))
    assert events == {"DECIDED": [(7, "ROLLED_BACK", "DIRECT")]}
    assert segment.batch(T + PARK) == {"UNMATCHED_OP": [(0, 1)]}
    assert segment.open() == 0, "nor is anything left of what the op listed"


def test_deadlines_run_while_an_op_waits_for_a_part() -> None:
    segment = OneSegment(check_max=0)
    segment.batch(T, half(), commit(listed=(H, P)))
    assert segment.batch(T + 6_001) == {"DECIDED": [(7, "DISCARDED", "CHECK_MAX")]}
    assert segment.batch(T + PARK) == {"UNMATCHED_OP": [(0, 1)]}


def test_a_discard_takes_all_parts_with_it() -> None:
    segment = OneSegment(check_max=0)
    segment.batch(T, half(), part(P))
    assert sorted(segment.batch(T + 6_001)["DECIDED"]) == [(3, "DISCARDED", "CHECK_MAX"), (7, "DISCARDED", "CHECK_MAX")]
    assert segment.open() == 0


def test_a_part_has_no_deadline_of_its_own() -> None:
    segment = OneSegment()
    segment.batch(T, part(P, due=0))
    assert segment.batch(T + PARK - 1) == {}


def test_a_part_without_open_first_is_unmatched_when_all_has_landed_and_after_park_time() -> None:
    segment = OneSegment()
    assert segment.batch(T, part(P), watermark=T - 1) == {}
    assert segment.next_due == T
    assert segment.batch(T, watermark=T) == {"UNMATCHED_PART": [(1, 3, 0)]}
    assert segment.open() == 0
    assert segment.batch(T, part(P, due=0)) == {}
    assert segment.next_due == T + PARK
    assert segment.batch(T + PARK) == {"UNMATCHED_PART": [(1, 3, 1)]}
    assert segment.open() == 0


@pytest.mark.parametrize("wrong", [{"tid": 2}, {"group": 2}])
def test_a_part_of_another_id_or_group_is_an_orphan_at_once(wrong: dict[str, Any]) -> None:
    segment = OneSegment()
    segment.batch(T, half())
    assert segment.batch(T, part(P, **wrong)) == {"DECIDED": [(3, "DISCARDED", "ORPHAN")]}
    assert segment.batch(T, commit()) == {"DECIDED": [(7, "COMMITTED", "DIRECT")]}


def test_a_stranger_that_waited_is_an_orphan_when_its_first_comes() -> None:
    segment = OneSegment()
    segment.batch(T, part(P, tid=2), watermark=T - 1)
    assert segment.batch(T, half()) == {"DECIDED": [(3, "DISCARDED", "ORPHAN")]}
    assert segment.open() == 1


def test_parts_of_two_transactions_in_one_segment_stay_apart() -> None:
    other = Place(0, 8)
    segment = OneSegment()
    segment.batch(T, half(), half(other), part(P), part(Q, other))
    events = segment.batch(T, commit(0), rollback(1, listed=(other, Q)))
    assert sorted(events["DECIDED"]) == [
        (3, "COMMITTED", "DIRECT"),
        (4, "ROLLED_BACK", "DIRECT"),
        (7, "COMMITTED", "DIRECT"),
        (8, "ROLLED_BACK", "DIRECT"),
    ]
    assert segment.open() == 0


ALL_DISCARDED = [(3, "DISCARDED", "REFUSED_PART"), (7, "DISCARDED", "REFUSED_PART")]


@pytest.mark.parametrize("order", list(permutations([half(), part(P), refused(Q), commit(listed=(H, P, Q))])))
def test_a_refused_part_discards_its_transaction_in_whatever_order_it_comes(order: tuple[Rows, ...]) -> None:
    segment = OneSegment()
    decided = [
        entry
        for now, row in enumerate(order)
        for entry in segment.batch(T + now, row, watermark=T - 1).get("DECIDED", [])
    ]
    # What comes when its first has ended follows it by the tables.
    assert decided in (ALL_DISCARDED, ALL_DISCARDED[::-1], ALL_DISCARDED[1:])


@pytest.mark.parametrize("admin", [False, True])
def test_no_commit_applies_beside_a_refused_part_but_a_rollback_does(admin: bool) -> None:
    segment = OneSegment()
    events = segment.batch(T, half(), refused(Q), commit(0, admin=admin), watermark=T - 1)
    assert events == {"DECIDED": [(7, "DISCARDED", "REFUSED_PART")]}
    events = OneSegment().batch(T, half(), refused(Q), commit(0, admin=admin), rollback(1))
    assert events == {"DECIDED": [(7, "ROLLED_BACK", "DIRECT")]}


def test_a_refused_part_counts_whatever_the_clock_says_by_which_it_was_refused() -> None:
    events = OneSegment().batch(T, half(), refused(Q, stored=T - 1), commit(), watermark=T - 1)
    assert events == {"DECIDED": [(7, "DISCARDED", "REFUSED_PART")]}


@pytest.mark.parametrize("other", [{"tid": 2}, {"group": 2}])
def test_a_refused_record_that_is_no_part_of_the_transaction_changes_nothing(other: dict[str, Any]) -> None:
    segment = OneSegment()
    assert segment.batch(T, half(), refused(Q, **other)) == {}
    assert segment.batch(T, commit()) == {"DECIDED": [(7, "COMMITTED", "DIRECT")]}
    assert segment.batch(T + PARK) == {}
    assert segment.open() == 0, "a refused part is kept as long as it may have to wait for its first"
