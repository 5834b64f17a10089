"""Landed time: up to when everything has landed that decides on a transaction."""

from __future__ import annotations

from commitlake.landing.landed_time import LandedTime
from commitlake.landing.positions import Position


def at(half: int, op: int) -> Position:
    return Position(1, {"half": {0: half}, "op": {0: op}, "admin": {0: 3}})


def held(half: int, op: int, admin: int = 3) -> dict[str, dict[int, int]]:
    return {"half": {0: half}, "op": {0: op}, "admin": {0: admin}}


def test_it_is_unknown_until_all_has_landed_that_kafka_held_at_the_start() -> None:
    time = LandedTime()
    time.ask(1_000, held(10, 5))
    assert time.landed(at(10, 4)) == -1
    assert time.landed(at(10, 5)) == 1_000


def test_it_is_when_kafka_was_asked_and_not_when_its_answer_has_landed() -> None:
    """Each round takes a part of a backlog: what was asked later does not count before that has landed."""
    time = LandedTime()
    time.ask(1_000, held(10, 5))
    time.ask(2_000, held(40, 20))
    assert time.landed(at(10, 5)) == 1_000
    assert time.landed(at(39, 20)) == 1_000
    assert time.landed(at(40, 20)) == 2_000


def test_a_clock_that_was_a_day_ahead_for_a_moment_is_forgotten_with_the_next_answer() -> None:
    time = LandedTime()
    time.ask(86_400_000, held(0, 0))
    assert time.landed(at(1, 1)) == 86_400_000
    time.ask(1_000, held(0, 0))
    assert time.landed(at(1, 1)) == 1_000


def test_a_silent_partition_holds_it_back_only_until_it_has_landed() -> None:
    time = LandedTime()
    time.ask(1_000, held(0, 0, admin=4))
    assert time.landed(at(100, 100)) == -1
    assert time.landed(at(100, 100).advanced({"admin": {0: 4}})) == 1_000


def test_of_a_long_backlog_it_goes_on_in_coarser_steps() -> None:
    time = LandedTime()
    for n in range(2_000):
        time.ask(n, held(n, n))
    steps = [time.landed(at(n, n)) for n in range(2_000)]
    assert all(landed <= n for n, landed in enumerate(steps))
    assert steps[0] == 0
    assert steps[-1] > 1_900
