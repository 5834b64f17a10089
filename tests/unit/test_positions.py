"""How far landing has come: positions, landed time, and how much a round takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.test_config import load

from commitlake.coordinator.landing.parts import MOST_BYTES, Sizes, cut
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.landing.watermark import Watermark
from commitlake.coordinator.scheduler import Scheduler
from commitlake.errors import KafkaError
from commitlake.kafka.log_ends import LogEnd, Offsets
from commitlake.kafka.topics import log_ends

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


def at(half: int, op: int) -> LandingPosition:
    return LandingPosition(1, {("half", 0): half, ("op", 0): op, ("admin", 0): 3})


def held(half: int, op: int, admin: int = 3) -> Offsets:
    return {("half", 0): half, ("op", 0): op, ("admin", 0): admin}


def test_it_is_unknown_until_all_has_landed_that_kafka_held_at_the_start() -> None:
    time = Watermark()
    time.ask(1_000, held(10, 5))
    assert time.at(at(10, 4)) == -1
    assert time.at(at(10, 5)) == 1_000


def test_it_is_when_kafka_was_asked_and_not_when_its_answer_has_landed() -> None:
    """Each round takes a part of a backlog: what was asked later does not count before that has landed."""
    time = Watermark()
    time.ask(1_000, held(10, 5))
    time.ask(2_000, held(40, 20))
    assert time.at(at(10, 5)) == 1_000
    assert time.at(at(39, 20)) == 1_000
    assert time.at(at(40, 20)) == 2_000


def test_a_clock_that_was_a_day_ahead_for_a_moment_is_forgotten_with_the_next_answer() -> None:
    time = Watermark()
    time.ask(86_400_000, held(0, 0))
    assert time.at(at(1, 1)) == 86_400_000
    time.ask(1_000, held(0, 0))
    assert time.at(at(1, 1)) == 1_000


def test_a_silent_partition_holds_it_back_only_until_it_has_landed() -> None:
    time = Watermark()
    time.ask(1_000, held(0, 0, admin=4))
    assert time.at(at(100, 100)) == -1
    assert time.at(at(100, 100).advanced({("admin", 0): 4})) == 1_000


def test_of_a_long_backlog_it_goes_on_in_coarser_steps() -> None:
    time = Watermark()
    for n in range(2_000):
        time.ask(n, held(n, n))
    steps = [time.at(at(n, n)) for n in range(2_000)]
    assert all(landed <= n for n, landed in enumerate(steps))
    assert steps[0] == 0
    assert steps[-1] > 1_900


def scheduler(clock: Any, time: Watermark, held: Callable[[], Offsets]) -> Scheduler:
    """One that only asks Kafka what it holds."""
    context, landing = SimpleNamespace(config=load(), clock=clock), SimpleNamespace(position=at(0, 0))
    return Scheduler(cast(Any, context), cast(Any, landing), time, held, cast(Any, None), 0)


def test_the_time_is_taken_before_kafka_is_asked() -> None:
    """What comes between the two is below the ends, and later than the watermark."""
    times = [1_000]
    clock = SimpleNamespace(now_ms=lambda: times[-1])

    def asked() -> Offsets:
        times.append(2_000)
        return held(10, 5)

    time = Watermark()
    scheduler(clock, time, asked)._ask()
    assert time.at(at(10, 5)) == 1_000


def test_without_traffic_kafka_is_asked_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else nobody would hear of an outage before something is due."""

    def away() -> Offsets:
        raise KafkaError("away")

    idle = scheduler(SimpleNamespace(now_ms=lambda: 1_000), Watermark(), away)
    idle.tick()
    assert caplog.text == ""
    monkeypatch.setattr(idle, "_asked_at", float("-inf"))
    idle.tick()
    assert "nothing is decided while Kafka is away" in caplog.text


def test_while_kafka_is_away_it_stands_still() -> None:
    clock = SimpleNamespace(now_ms=lambda: 1_000)

    def away() -> Offsets:
        raise KafkaError("away")

    time = Watermark()
    scheduler(clock, time, away)._ask()
    assert time.at(at(10, 5)) == -1


def test_an_answer_without_a_topic_is_an_error_and_not_an_empty_topic() -> None:
    """A broker that has just started may not know a topic for a moment: its records would count as landed."""
    known = {"commitlake.half": 1, "commitlake.admin": 1}

    class Client:
        def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
            return [
                {"name": name, "error_code": 0 if name in known else 3, "partitions": [0] if name in known else []}
                for name in names
            ]

        def list_partition_offsets(self, wanted: dict[Any, Any]) -> dict[Any, Any]:
            return {partition: SimpleNamespace(offset=10, leader_epoch=3) for partition in wanted}

    with pytest.raises(KafkaError, match=r"commitlake\.op"):
        log_ends(cast(Any, Client()), load())


MIB = 1 << 20
LARGEST = 4 * MIB


def rounds(waiting: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Records and bytes of each round, given runs of records and their size."""
    sizes, left = Sizes(LARGEST), [*waiting]
    while left:
        if sizes.wants_look(sum(count for count, _ in left)):
            look = min(left[0][0], 1_000)
            sizes.looked(look, look * left[0][1])
        room, records, size = sizes.most(), 0, 0
        while room and left:
            count, each = left.pop(0)
            took = min(count, room)
            records, size, room = records + took, size + took * each, room - took
            if took < count:
                left.insert(0, (count - took, each))
        sizes.note(records, size)
        yield records, size


@pytest.mark.parametrize(
    ("count", "each", "most"),
    [(1_000, 4_000_000, 20), (40_000, 40_000, 12), (2_000_000, 1_000, 14), (1_000_000, 256, 4)],
    ids=["4 MB", "40 kB", "1 kB", "empty"],
)
def test_rounds_of_a_backlog_are_few_and_none_is_too_large(count: int, each: int, most: int) -> None:
    played = list(rounds([(count, each)]))
    assert sum(records for records, _ in played) == count
    assert max(size for _, size in played) <= MOST_BYTES
    assert len(played) <= most


def test_large_records_after_many_small_ones_are_looked_at_first() -> None:
    played = list(rounds([(100_000, 300), (1_000_000, 400_000)]))
    assert max(size for _, size in played) <= MOST_BYTES


def test_large_records_behind_an_outage_of_a_small_load_fill_none() -> None:
    sizes = Sizes(LARGEST)
    for _ in range(1_000):
        sizes.note(50, 50 * 300)
    assert not sizes.wants_look(100)
    assert sizes.wants_look(101)
    sizes.looked(101, 101 * 4_000_000)
    assert sizes.most() == MOST_BYTES // 4_000_000


COUNTS = st.lists(st.integers(0, 1_000), min_size=1, max_size=6)


@given(COUNTS, COUNTS, st.integers(1, 3_000))
def test_a_part_takes_the_same_share_of_each_partition_and_the_last_one_ends_where_the_batch_does(
    begins: list[int], counts: list[int], most: int
) -> None:
    begin: Offsets = {("half", number): low for number, low in enumerate(begins)}
    ends = {("half", number): begin.get(("half", number), 0) + count for number, count in enumerate(counts)}
    total, at, parts = sum(counts), begin, 0
    while at != ends:
        until = cut(at, ends, most)
        took = {place: end - at.get(place, 0) for place, end in until.items()}
        assert all(end <= ends[place] for place, end in until.items())
        assert min(took.values(), default=0) >= 0
        assert sum(took.values()) <= most + len(counts)
        at, parts = until, parts + 1
        assert parts <= total // most + 1


def test_what_an_administrator_forces_lands_in_the_last_parts() -> None:
    """With few records in the first part of a start, a ROLLBACK overtook the COMMIT that was acknowledged before it."""
    begin: Offsets = {("op", 0): 100, ("admin", 0): 5}
    ends: Offsets = {("op", 0): 300, ("op", 1): 7, ("admin", 0): 8}
    ways: list[tuple[int, int]] = []
    at = begin
    while at != ends:
        at = cut(at, ends, 64)
        ways.append((at["op", 0], at["admin", 0]))
        assert len(ways) < 9
    assert [admin for op, admin in ways if op < 300] == [5] * (len(ways) - 1)
    assert 5 < cut(begin, {("op", 0): 100, ("admin", 0): 200}, 64)["admin", 0] < 100
