"""How far landing has come, as a value."""

from __future__ import annotations

from commitlake.landing.positions import UNKNOWN, Position

SOME = Position(3, {"half": {0: 5, 1: 7}}, landed_until=1_000)


def test_a_landing_moves_only_the_partitions_that_it_brought() -> None:
    after = SOME.advanced({"half": {1: 9}, "op": {0: 2}}, landed_until=2_000)
    assert after == Position(4, {"half": {0: 5, 1: 9}, "op": {0: 2}}, landed_until=2_000)


def test_landed_time_never_goes_back() -> None:
    assert SOME.advanced({}, landed_until=500).landed_until == 1_000
    assert Position(0, {}).landed_until == UNKNOWN


def test_a_partition_that_never_landed_anything_goes_on_at_its_begin() -> None:
    known = SOME.with_partitions({"half": {0: 1, 2: 4}, "op": {0: 0}})
    assert known.offsets == {"half": {0: 5, 1: 7, 2: 4}, "op": {0: 0}}


def test_a_position_is_past_what_lies_below_all_its_offsets() -> None:
    assert SOME.is_past({"half": {0: 5, 1: 6}})
    assert not SOME.is_past({"half": {0: 6}})
    assert not SOME.is_past({"op": {0: 1}})
    assert SOME.landed() == 12
