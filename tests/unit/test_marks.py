"""Marks in the logs of Delta tables: who comes first decides, and it stays so."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from commitlake.clients.delta.marks import FENCED, PREFIX, WRITTEN, decision, fence, mark, put, reached
from commitlake.errors import WarehouseError

T = f"{PREFIX}t"


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    made = [str(tmp_path / name) for name in ("orders", "lines")]
    for place in made:
        write_deltalake(place, pa.table({"id": [0]}))
    return made


def write(place: str, name: str) -> None:
    marks = CommitProperties(app_transactions=[Transaction(name, WRITTEN)], max_commit_retries=0)
    write_deltalake(place, pa.table({"id": [1]}), mode="append", commit_properties=marks)


def test_a_table_without_a_mark_is_open_until_it_is_fenced(places: list[str]) -> None:
    assert mark(places[0], T) is None
    assert decision(places, T, is_over=False) is None
    assert decision(places, T, is_over=True) == "ROLLBACK"
    assert [mark(place, T) for place in places] == [FENCED, FENCED]
    assert DeltaTable(places[0]).to_pyarrow_table().num_rows == 1


def test_rows_in_all_tables_commit_also_after_the_deadline(places: list[str]) -> None:
    for place in places:
        write(place, T)
    assert decision(places, T, is_over=False) == "COMMIT"
    assert decision(places, T, is_over=True) == "COMMIT"
    assert fence(places[0], T) == WRITTEN


def test_rows_in_one_of_two_tables_roll_back_once_it_is_over_and_it_stays_so(places: list[str]) -> None:
    write(places[0], T)
    assert decision(places, T, is_over=False) is None
    assert decision(places, T, is_over=True) == "ROLLBACK"
    assert [mark(place, T) for place in places] == [WRITTEN, FENCED]
    assert decision(places, T, is_over=False) == "ROLLBACK"


def test_one_fence_that_a_kill_left_is_enough_to_roll_back(places: list[str]) -> None:
    fence(places[1], T)
    assert decision(places, T, is_over=False) == "ROLLBACK"


def test_a_writer_and_a_fence_at_the_same_time_have_one_winner(places: list[str]) -> None:
    for number in range(20):
        name, barrier = f"t{number}", threading.Barrier(2)
        wrote: list[bool] = []

        def writer(name: str = name, barrier: threading.Barrier = barrier, wrote: list[bool] = wrote) -> None:
            marks = CommitProperties(app_transactions=[Transaction(name, WRITTEN)], max_commit_retries=0)
            table = DeltaTable(places[0])
            barrier.wait()
            try:
                write_deltalake(table, pa.table({"id": [1]}), mode="append", commit_properties=marks)
                wrote.append(True)
            except CommitFailedError:
                wrote.append(False)

        thread = threading.Thread(target=writer)
        thread.start()
        barrier.wait()
        won = fence(places[0], name)
        thread.join()
        assert wrote == [won == WRITTEN], name


def test_several_transactions_are_marked_together_once_and_only_once(places: list[str]) -> None:
    place = places[0]
    assert put(place, ["a", "b"], WRITTEN, after=("sink", 0))
    assert ([mark(place, name) for name in "ab"], reached(place, "sink")) == ([WRITTEN, WRITTEN], 0)
    assert not put(place, ["c"], WRITTEN, after=("sink", 0))
    assert mark(place, "c") is None
    assert put(place, ["c", "d"], FENCED)
    assert not put(place, ["d", "e"], WRITTEN, after=("sink", 1))
    assert (mark(place, "e"), reached(place, "sink"), reached(place, "other")) == (None, 0, -1)
    assert put(place, [], WRITTEN, after=("sink", 1))


def test_a_table_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match="there is no table at"):
        mark(str(tmp_path / "nothing"), "t")


def test_under_an_id_that_is_not_ours_nothing_is_written_and_what_is_there_counts(places: list[str]) -> None:
    before = [DeltaTable(place).version() for place in places]
    assert decision(places, "somebodys-stream", is_over=True) is None
    assert [DeltaTable(place).version() for place in places] == before
    for place in places:
        write(place, "of an older job")
    assert decision(places, "of an older job", is_over=True) == "COMMIT"
    assert fence(places[0], "refused by an older coordinator") == FENCED
    assert decision(places, "refused by an older coordinator", is_over=False) == "ROLLBACK"
    assert mark(places[1], "refused by an older coordinator") is None


def test_a_sink_goes_on_where_it_came_to_before_its_name_had_a_prefix(places: list[str]) -> None:
    old = CommitProperties(app_transactions=[Transaction("export", 7)])
    write_deltalake(places[0], pa.table({"id": [1]}), mode="append", commit_properties=old)
    assert reached(places[0], "export") == 7
    assert not put(places[0], ["a"], WRITTEN, after=("export", 7))
    assert put(places[0], ["a"], WRITTEN, after=("export", 8))
    assert (reached(places[0], "export"), DeltaTable(places[0]).transaction_version("export")) == (8, 7)
