"""Several half messages in one transaction (contract 4.8)."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from tests.support.one_segment import H, OneSegment, T, commit, half, part, refused, rollback

from commitlake.protocol.encoding import Position as Place
from commitlake.protocol.statemachine.rows import Rows

P, Q = Place(1, 3), Place(2, 4)
PARK = 600_000
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
