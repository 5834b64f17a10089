"""How many records a round may have, by the bytes of those that were seen, and where a part of a batch ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlake.coordinator.landing.parts import MOST_BYTES, Sizes, cut
from commitlake.kafka.log_ends import Offsets

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
