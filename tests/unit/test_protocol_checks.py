"""When checks are due and when a transaction is discarded (contract 4.3 to 4.5)."""

from __future__ import annotations

import pytest
from tests.support.one_segment import OneSegment, Readable, T, commit, half, part
from tests.support.records import Place

CHECK_MAX = {"DECIDED": [(7, "DISCARDED", "CHECK_MAX")]}
EXPIRED = {"DECIDED": [(7, "DISCARDED", "EXPIRED")]}


def test_the_first_check_is_due_when_age_exceeds_the_timeout() -> None:
    segment = OneSegment()
    segment.batch(T, half())
    assert segment.batch(T + 6_000) == {}
    assert segment.batch(T + 6_001) == {"CHECK": [(7, 0, 1)]}


@pytest.mark.parametrize(
    ("seconds", "due"),
    [(-1, 6_001), (0, 6_001), (5, 6_001), (6, 6_001), (7, 7_001), (2**31 - 1, (2**31 - 1) * 1000 + 1)],
)
def test_immunity_can_only_lengthen_the_timeout(seconds: int, due: int) -> None:
    segment = OneSegment(retention_ms=2**50)
    segment.batch(T, half(immunity=seconds))
    assert segment.wake_at == T + due


def test_immunity_never_uses_up_checks() -> None:
    segment = OneSegment()
    segment.batch(T, half(immunity=100))
    assert all(segment.batch(now) == {} for now in range(T, T + 100_001, 10_000))
    assert segment.batch(T + 100_001) == {"CHECK": [(7, 0, 1)]}
    assert segment.batch(T + 130_001) == {"CHECK": [(7, 0, 2)]}


def test_immunity_equal_to_age_is_checked_one_millisecond_later() -> None:
    segment = OneSegment()
    segment.batch(T, half(immunity=10))
    assert segment.batch(T + 10_000) == {}
    assert segment.batch(T + 10_001) == {"CHECK": [(7, 0, 1)]}


def test_further_checks_come_an_interval_after_the_last_and_not_earlier() -> None:
    segment = OneSegment()
    segment.batch(T, half())
    segment.batch(T + 8_000)
    assert segment.wake_at == T + 38_000
    assert segment.batch(T + 37_999) == {}
    assert segment.batch(T + 38_000) == {"CHECK": [(7, 0, 2)]}


def test_an_interval_after_check_max_checks_it_is_discarded() -> None:
    segment = OneSegment(check_max=1)
    segment.batch(T, half())
    assert segment.batch(T + 6_001) == {"CHECK": [(7, 0, 1)]}
    assert segment.batch(T + 36_000) == {}
    assert segment.batch(T + 36_001) == CHECK_MAX
    assert segment.open() == 0


def test_an_answer_in_the_last_interval_still_decides() -> None:
    segment = OneSegment(check_max=1)
    segment.batch(T, half())
    segment.batch(T + 6_001)
    assert segment.batch(T + 36_001, commit(from_check=True)) == {"DECIDED": [(7, "COMMITTED", "CHECK")]}


def test_with_no_checks_allowed_it_is_discarded_at_the_first_due_time() -> None:
    segment = OneSegment(check_max=0)
    segment.batch(T, half())
    assert segment.batch(T + 6_000) == {}
    assert segment.batch(T + 6_001) == CHECK_MAX


def test_after_a_long_stop_one_check_is_sent() -> None:
    segment = OneSegment()
    segment.batch(T, half())
    assert segment.batch(T + 900_000) == {"CHECK": [(7, 0, 1)]}
    assert segment.batch(T + 900_001) == {}


def test_older_than_the_retention_it_expires_and_is_not_checked_again() -> None:
    segment = OneSegment(retention_ms=20_000, check_max=9)
    segment.batch(T, half())
    assert segment.batch(T + 20_000) == {"CHECK": [(7, 0, 1)]}
    assert segment.wake_at == T + 20_001
    assert segment.batch(T + 20_001) == EXPIRED


def test_an_immune_message_still_expires() -> None:
    segment = OneSegment(retention_ms=20_000)
    segment.batch(T, half(immunity=100))
    assert segment.batch(T + 20_001) == EXPIRED


@pytest.mark.parametrize(("retention_ms", "outcome"), [(6_000, EXPIRED), (6_001, CHECK_MAX), (5_999, EXPIRED)])
def test_of_two_passed_deadlines_the_earlier_gives_the_reason(
    retention_ms: int, outcome: dict[str, list[Readable]]
) -> None:
    segment = OneSegment(check_max=0, retention_ms=retention_ms)
    segment.batch(T, half())
    assert segment.batch(T + 500_000) == outcome


def test_an_op_in_the_batch_of_a_passed_deadline_comes_first() -> None:
    assert OneSegment(check_max=0).batch(T + 2_000_000, half(), commit()) == {"DECIDED": [(7, "COMMITTED", "DIRECT")]}


def test_a_clock_that_goes_backwards_neither_checks_early_nor_twice() -> None:
    segment = OneSegment()
    segment.batch(T, half())
    segment.batch(T + 6_001)
    assert segment.batch(T - 100_000) == {}
    assert segment.batch(T + 36_000) == {}
    assert segment.batch(T + 36_001) == {"CHECK": [(7, 0, 2)]}


def test_a_check_names_every_part_that_has_landed() -> None:
    segment = OneSegment()
    segment.batch(T, part(Place(1, 3)), half(), part(Place(0, 9)), half(Place(0, 10), stored=T + 9_000))
    events = segment.batch(T + 6_001)
    assert events["CHECK"] == [(7, 0, 1)]
    assert sorted(events["CHECK_PART"]) == [(0, 9), (1, 3)]


def test_the_state_may_be_read_only_memory_and_is_never_changed() -> None:
    segment = OneSegment()
    segment.batch(T, half(), part(Place(1, 3)))
    before = segment.state
    before.setflags(write=False)
    kept = before.copy()
    first = segment.batch(T + 6_001)
    assert (before == kept).all()
    segment.state = before
    assert segment.batch(T + 6_001) == first, "a replayed batch says the same"
