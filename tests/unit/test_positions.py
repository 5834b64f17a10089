"""Positions: how far landing has come in each partition."""

from __future__ import annotations

from dataclasses import replace

from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.kafka.log_ends import LogEnd

SOME = LandingPosition(3, {("half", 0): 5, ("half", 1): 7})


def test_a_landing_moves_the_partitions_that_it_read_and_no_others() -> None:
    assert SOME.advanced({("half", 1): 9, ("op", 0): 2}) == LandingPosition(
        4, {("half", 0): 5, ("half", 1): 9, ("op", 0): 2}
    )


def test_it_never_goes_back_since_an_offset_names_one_message() -> None:
    """A log that is shorter than before: its offsets come a second time."""
    assert SOME.advanced({("half", 0): 3, ("half", 1): 8}).offsets == {("half", 0): 5, ("half", 1): 8}


def test_a_partition_that_never_landed_anything_goes_on_at_its_begin() -> None:
    known = SOME.with_partitions({("half", 0): 1, ("half", 2): 4, ("op", 0): 0})
    assert known.offsets == {("half", 0): 5, ("half", 1): 7, ("half", 2): 4, ("op", 0): 0}


def test_a_position_is_past_what_lies_below_all_its_offsets() -> None:
    assert SOME.is_past({("half", 0): 5, ("half", 1): 6})
    assert not SOME.is_past({("half", 0): 6})
    assert not SOME.is_past({("op", 0): 1})
    assert SOME.records() == 12


def test_a_log_that_lost_its_end_is_read_again_up_to_where_landing_goes_on() -> None:
    cut = SOME.cut("half", 0, 2)
    assert (cut.next("half", 0), cut.reads("half", 0), cut.reads("half", 1)) == (5, 2, 7)
    further = cut.advanced({("half", 0): 4, ("half", 1): 9, ("op", 0): 1})
    assert further == LandingPosition(4, {("half", 0): 5, ("half", 1): 9, ("op", 0): 1}, {("half", 0): 4})
    assert further.advanced({("op", 0): 2}).again == {("half", 0): 4}, "a landing that does not read it"
    assert further.cut("half", 0, 0).again == {("half", 0): 0}, "it lost its end once more"
    assert further.advanced({("half", 0): 5}).again == {}


def test_what_is_read_again_delays_no_deadline_since_it_changes_nothing() -> None:
    assert SOME.cut("half", 0, 2).is_past({("half", 0): 3, ("half", 1): 7})


def test_where_the_logs_ended_goes_from_landing_to_landing() -> None:
    held = {("half", 0): LogEnd(9, 4)}
    assert replace(SOME, held=held).advanced({("half", 0): 8}).held == held
