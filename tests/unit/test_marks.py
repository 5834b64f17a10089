"""Marks in the logs of Delta tables: where they may be, who comes first decides, and it stays so."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from commitlake.clients.delta import delta_transaction
from commitlake.clients.delta.allowed_places import AllowedPlaces
from commitlake.clients.delta.marks import FENCED, PREFIX, WRITTEN, decision, fence, mark, put, reached
from commitlake.config import from_mapping
from commitlake.errors import ConfigError, RecordError, WarehouseError

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


def test_rows_in_one_of_two_tables_roll_back_once_it_is_over_and_it_stays_so(places: list[str]) -> None:
    write(places[0], T)
    assert decision(places, T, is_over=False) is None
    assert decision(places, T, is_over=True) == "ROLLBACK"
    assert [mark(place, T) for place in places] == [WRITTEN, FENCED]
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


def allowed_places(warehouse: str, *allowed: str) -> AllowedPlaces:
    rule = {"table": "delta-log", "places": [*allowed]}
    own = {"warehouse": warehouse, "checkpoints": "s3://other/checkpoints"}
    conf = from_mapping({**own, "checks": {"g": rule}})
    return AllowedPlaces(conf, "g", conf.checks["g"]["places"])


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name in ("orders", "wh/transactions", "victim"):
        (tmp_path / "lake" / name).mkdir(parents=True)
    return tmp_path / "lake"


def test_local_places_in_every_spelling(lake: Path) -> None:
    allowed = allowed_places(f"{lake}/wh", f"{lake}/orders", f"{lake}/wh_more")
    for place in (f"{lake}/orders", f"file:{lake}/orders/", f"FILE://{lake}/orders", f"{lake}/wh/../orders"):
        assert allowed.check(place) == f"{lake}/orders"
    assert allowed.check(f"{lake}/orders/of/today") == f"{lake}/orders/of/today"
    assert allowed.check(f"{lake}/wh_more") == f"{lake}/wh_more"
    for place in (f"{lake}/victim", f"{lake}/orders/../victim", f"{lake}/orders2", f"{lake}", "orders", "", "a\0b"):
        with pytest.raises(RecordError, match=r"is not allowed.*"):
            allowed.check(place)


def test_the_coordinators_own_tables_are_never_allowed_however_they_are_named(lake: Path) -> None:
    allowed = allowed_places(f"{lake}/wh", str(lake))
    (lake / "link").symlink_to(lake / "wh")
    (lake / "circle").symlink_to(lake / "circle")
    own = ["wh", "wh/transactions", "orders/../wh/half", "link/transactions", "WH/Transactions", "wh_receipts/groups"]
    for place in [*(f"{lake}/{name}" for name in own), f"file://{lake}/wh/transactions", f"File:{lake}/wh/x"]:
        with pytest.raises(RecordError, match="outside the warehouse"):
            allowed.check(place)
    with pytest.raises(RecordError):
        allowed.check(f"{lake}/circle/x")
    assert allowed.check(f"{lake}/victim") == f"{lake}/victim"


def test_a_place_behind_a_link_is_used_without_it(lake: Path) -> None:
    (lake / "link").symlink_to(lake / "victim")
    with pytest.raises(RecordError):
        allowed_places(f"{lake}/wh", f"{lake}/orders").check(f"{lake}/link")
    assert allowed_places(f"{lake}/wh", f"{lake}/link").check(f"{lake}/link/t") == f"{lake}/victim/t"


def test_a_log_that_is_a_link_to_another_tables_is_refused(lake: Path) -> None:
    (lake / "orders/x").mkdir()
    (lake / "orders/x/_delta_log").symlink_to(lake / "wh/transactions/_delta_log")
    with pytest.raises(RecordError, match="is not allowed"):
        allowed_places(f"{lake}/wh", f"{lake}/orders").check(f"{lake}/orders/x")


def test_the_table_of_sinks_needs_no_place(lake: Path) -> None:
    assert allowed_places(f"{lake}/wh").check(f"{lake}/wh_receipts/sinks") == f"{lake}/wh_receipts/sinks"
    with pytest.raises(RecordError):
        allowed_places(f"{lake}/wh").check(f"{lake}/wh_receipts/sinks/more")


@pytest.mark.parametrize(
    ("place", "is_allowed"),
    [
        ("s3://lake/orders", True),
        ("S3A://lake/orders/today/", True),
        ("s3://lake/orders2", False),
        ("s3://lake2/orders", False),
        ("s3://lake/wh/transactions", False),
        ("s3a://lake/WH", False),
        ("s3://other/checkpoints/x", False),
        ("s3://lake/orders/../wh/transactions", False),
        ("s3://lake/orders/%2e%2e/wh", False),
        ("s3://lake/orders/./x", False),
        ("s3://lake//orders", False),
        ("s3://lake/orders\\..\\wh", False),
        ("s3://lake/orders?x=1", False),
        ("s3://", False),
        ("memory:///orders", False),
        ("/lake/orders", False),
    ],
)
def test_places_in_a_bucket(place: str, is_allowed: bool) -> None:
    allowed = allowed_places("s3a://lake/wh", "s3a://lake/orders", "s3://lake/wh", "s3://other/")
    if is_allowed:
        assert allowed.check(place) == place
    else:
        with pytest.raises(RecordError, match="is not allowed"):
            allowed.check(place)


def test_a_place_that_can_be_read_in_several_ways_is_no_rule() -> None:
    with pytest.raises(ConfigError, match=r"checks.g.places: 's3://lake/%77h'.*write it without escapes"):
        allowed_places("s3://lake/wh", "s3://lake/%77h")


def test_the_coordinators_own_places_may_be_of_any_kind() -> None:
    for own in ("hdfs:///lake/wh", "dbfs:/lake/wh", "schema:main.lake", "s3a://lake/a%20b", "s3://lake/x/../wh"):
        allowed = allowed_places(own, "s3://lake/orders")
        assert allowed.check("s3://lake/orders/t") == "s3://lake/orders/t"
    with pytest.raises(RecordError):
        allowed_places("s3://lake/x/../wh", "s3://lake").check("s3://lake/wh/transactions")


def test_places_are_a_list_of_texts_for_logs_only() -> None:
    for wrong in ("s3://lake/orders", [1], [""], {"a": "b"}):
        with pytest.raises(ConfigError, match="places is a list of directories or URIs"):
            from_mapping({"checks": {"g": {"table": "delta-log", "places": wrong}}})


def test_a_delta_transaction_refuses_with_an_error_that_is_a_name_of_the_package(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^delta_transaction: delta\.tables: '/elsewhere' is not allowed"):
        delta_transaction._check(allowed_places(f"{tmp_path}/warehouse", "/lake"), "/elsewhere")
