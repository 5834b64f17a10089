"""`commitlake iceberg` on real tables: rows by pyiceberg, kills, compaction, columns that come later, old snapshots."""

from __future__ import annotations

import importlib.util
import re
import shlex
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support import topic_table
from tests.support.topic_table import AT, compact, message, table, write, written
from typer.testing import CliRunner

from commitlake.errors import CommitLakeError, ConfigError, SetupError
from commitlake.reading.table import Snapshot
from commitlake.tools.cli.app import app

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install -e '.[iceberg]' -c constraints.txt")

from pyiceberg.catalog.sql import SqlCatalog
from tests.support.as_iceberg import AsIceberg, in_order

from commitlake.tools import iceberg

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "iceberg.md"


@pytest.fixture
def lake(tmp_path: Path) -> AsIceberg:
    """A topic of two commits, with three files in two queues."""
    warehouse = tmp_path / "warehouse"
    write(warehouse, "orders", [message(n, batch=0, queue=n % 2, tags="new", properties={"a": "b"}) for n in range(6)])
    write(warehouse, "orders", [message(9)])
    written(warehouse, "destinations", {"topic": "orders", "table": "topics/orders", "created_at": AT})
    return AsIceberg(warehouse, tmp_path)


def append(lake: AsIceberg, *numbers: int, batch: int = 1) -> None:
    write(lake.warehouse, "orders", [message(n, batch=batch, queue=n % 3) for n in numbers])


def same(lake: AsIceberg) -> bool:
    return lake.rows() == lake.delta_rows() and lake.files() == lake.delta_files()


def test_a_reader_of_iceberg_finds_the_rows_with_their_queue(lake: AsIceberg) -> None:
    assert lake.run() == "orders: version 2 of Delta's table, 3 files added, 0 removed\n"
    assert same(lake)
    assert [row["message_id"] for row in lake.rows(row_filter="queue_id = 1")] == ["m1", "m3", "m5"]
    assert [row["queue_id"] for row in lake.rows(row_filter="message_id in ('m1', 'm2')")] == [1, 0]
    first = lake.rows()[0]
    assert (first["body"], first["properties"]) == (b"0", [("a", "b")])
    assert first["visible_at"] == datetime(2026, 1, 1, tzinfo=UTC)


def test_a_run_with_nothing_new_commits_nothing_and_the_next_one_what_came(lake: AsIceberg) -> None:
    lake.run()
    before = lake.table().metadata_location
    assert lake.run() == "orders: version 2 of Delta's table, 0 files added, 0 removed\n"
    assert lake.table().metadata_location == before
    append(lake, 20, 21, 22)
    append(lake, 23)
    assert lake.run() == "orders: version 4 of Delta's table, 4 files added, 0 removed\n"
    assert same(lake)
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert (str(snapshot.summary.operation), snapshot.summary["commitlake.delta-version"]) == ("Operation.APPEND", "4")
    assert snapshot.summary["total-records"] == "11"


def test_files_that_delta_removes_go_in_the_same_commit(lake: AsIceberg) -> None:
    lake.run()
    append(lake, 20, 21)
    compact(lake.warehouse, "orders")
    append(lake, 30)
    assert re.search(r"version 5 of Delta's table, \d files added, \d removed", lake.run())
    assert same(lake)
    assert len(lake.table().snapshots()) == 2
    place = DeltaTable(f"{lake.warehouse}/topics/orders")
    place.alter.set_table_properties({"delta.appendOnly": "false"})
    place.delete("queue_id = 1")
    lake.run()
    assert same(lake)
    assert {row["queue_id"] for row in lake.rows()} == {0, 2}
    place.delete()
    lake.run()
    assert lake.rows() == []


class Killed(BaseException):
    """A kill, as far as the process can tell."""


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_is_killed_at_a_commit_comes_right_with_the_next(
    lake: AsIceberg, monkeypatch: pytest.MonkeyPatch, at: int, when: str
) -> None:
    """The commits make the table, append, and replace files."""
    real: Callable[..., Any] = SqlCatalog.commit_table
    left = at

    def killed(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and when == "before":
            raise Killed
        found = real(*arguments)
        if left == 0:
            raise Killed
        return found

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", killed)
        with pytest.raises(Killed):
            for _ in range(2):
                CliRunner().invoke(app, ["iceberg", f"--catalog={lake.uri}", f"--set=warehouse={lake.warehouse}"])
                append(lake, 20, 21)
                compact(lake.warehouse, "orders")
    append(lake, 40)
    lake.run()
    assert same(lake)
    assert len({row["message_id"] for row in lake.rows()}) == len(lake.rows())


def test_two_runs_at_a_time_add_no_file_twice(lake: AsIceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.run()
    append(lake, 20, 21)
    real: Callable[..., Any] = SqlCatalog.commit_table

    def later(*arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", real)
        lake.run()
        return real(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", later)
    assert "orders: " in lake.run(code=1)
    assert same(lake)
    lake.run()
    assert same(lake)


def test_a_run_that_has_looked_at_delta_before_another_one_undoes_nothing(
    lake: AsIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.run()
    real = Snapshot

    def slow(*arguments: Any) -> Any:
        found = real(*arguments)
        monkeypatch.setattr(iceberg, "Snapshot", real)
        append(lake, 20, 21)
        lake.run()
        append(lake, 30)
        return found

    append(lake, 10)
    monkeypatch.setattr(iceberg, "Snapshot", slow)
    assert "the next run does the rest" in lake.run(code=1)
    assert [row["message_id"] for row in lake.rows()].count("m21") == 1
    lake.run()
    assert same(lake)


def test_columns_that_come_later_are_there(lake: AsIceberg) -> None:
    lake.run()
    place, rows = f"{lake.warehouse}/topics/orders", table([message(30, batch=3)])
    for value in ({"id": 1}, {"id": 2, "who": {"name": "ann", "tags": ["a"]}}):
        typed = rows.append_column("value", pa.array([value])).append_column("value_error", pa.array(["UNFIT"]))
        write_deltalake(place, typed, mode="append", schema_mode="merge")
        lake.run()
        assert same(lake)
    found = lake.rows(row_filter="value_error = 'UNFIT'")
    assert sorted((row["value"] for row in found), key=str) == [
        {"id": 1, "who": None},
        {"id": 2, "who": {"name": "ann", "tags": ["a"]}},
    ]
    assert len([row for row in lake.rows() if row["value"] is None]) == 7


def test_a_topic_without_a_row_is_a_table_without_one(lake: AsIceberg) -> None:
    new = lake.warehouse / "topics" / "new"
    there = DeltaTable(lake.warehouse / "topics" / "orders")
    DeltaTable.create(new, there.schema(), partition_by=["queue_id"])
    assert lake.run("--topic=new") == "new: version 0 of Delta's table, 0 files added, 0 removed\n"
    assert lake.rows("new") == []
    write(lake.warehouse, "new", [message(1)])
    lake.run("--topic=new", "--topic=orders")
    assert [row["message_id"] for row in lake.rows("new")] == ["m1"]
    assert same(lake)


def test_bounds_leave_files_out_and_no_row(lake: AsIceberg) -> None:
    """Delta's bounds of a time are cut to milliseconds."""
    late = AT + 3_600_000_999
    write(lake.warehouse, "orders", [message(50, batch=7, visible_at=late)])
    lake.run()
    moment = datetime.fromtimestamp(late // 1_000_000, UTC).replace(microsecond=999).isoformat()
    for condition in (f"visible_at = '{moment}'", f"visible_at >= '{moment}'", "batch_id > 6", "source_offset = 50"):
        scan = lake.table().scan(condition)
        assert scan.to_arrow()["message_id"].to_pylist() == ["m50"], condition
        assert len(list(scan.plan_files())) == 1, condition
    assert lake.table().scan("batch_id is null").to_arrow()["message_id"].to_pylist() == ["m9"]


def test_vacuum_leaves_the_metadata_alone(lake: AsIceberg) -> None:
    lake.run()
    compact(lake.warehouse, "orders")
    lake.run()
    place = DeltaTable(f"{lake.warehouse}/topics/orders")
    assert place.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert same(lake)
    lake.run()
    assert same(lake)


def test_old_snapshots_are_forgotten_with_their_metadata(lake: AsIceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        append(lake, 60 + number)
        lake.run()
    tagged = lake.table().snapshots()[1]
    lake.table().manage_snapshots().create_tag(tagged.snapshot_id, "kept").commit()
    compact(lake.warehouse, "orders")
    lake.run()
    folder = lake.warehouse / "topics" / "orders" / "_iceberg"
    lists = len([*folder.glob("*/snap-*.avro")])
    assert lists == len(lake.table().snapshots()) == 4
    monkeypatch.setattr(iceberg, "now_ms", lambda: int(time.time() * 1_000) + 86_400_000 - 60_000)
    append(lake, 70)
    lake.run()
    assert len(lake.table().snapshots()) == 5, "no commit for less than an hour's worth"
    monkeypatch.setattr(iceberg, "now_ms", lambda: int(time.time() * 1_000) + 2 * 86_400_000)
    lake.run()
    newest = lake.table().current_snapshot()
    assert newest is not None
    assert [each.snapshot_id for each in lake.table().snapshots()] == [tagged.snapshot_id, newest.snapshot_id]
    assert len([*folder.glob("*/snap-*.avro")]) == 2
    assert same(lake)
    assert len([*lake.table().scan(snapshot_id=tagged.snapshot_id).plan_files()]) > 0
    metadata = lake.table().metadata_location
    lake.run()
    assert lake.table().metadata_location == metadata


def in_days(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    monkeypatch.setattr(iceberg, "now_ms", lambda: int(time.time() * 1_000) + days * 86_400_000)


def metadata(lake: AsIceberg) -> tuple[set[str], set[str]]:
    """Names of all files of metadata, and of those that the table needs."""
    table = lake.table()
    needed = [table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)]
    for each in table.snapshots():
        needed += [each.manifest_list, *(one.manifest_path for one in each.manifests(table.io))]
    there = (lake.warehouse / "topics" / "orders" / "_iceberg").rglob("*")
    return {path.name for path in there if path.is_file()}, {path.rpartition("/")[2] for path in needed}


def test_metadata_of_a_run_that_was_killed_go_after_a_day(lake: AsIceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.run()
    append(lake, 20)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(SqlCatalog, "commit_table", killed)
        CliRunner().invoke(app, ["iceberg", f"--catalog={lake.uri}", f"--set=warehouse={lake.warehouse}"])
    there, needed = metadata(lake)
    left = there - needed
    assert left
    lake.run()
    in_days(monkeypatch, 1)
    lake.run()
    assert left < metadata(lake)[0], "a run beside this one may need them"
    in_days(monkeypatch, 3)
    append(lake, 30)
    lake.run()
    there, needed = metadata(lake)
    assert there == needed
    assert same(lake)


def killed(*_: object) -> None:
    raise Killed


def test_a_table_of_another_catalog_keeps_its_metadata(
    lake: AsIceberg, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = AsIceberg(lake.warehouse, tmp_path / "other")
    for each in (lake, other):
        append(lake, 20)
        each.run()
    in_days(monkeypatch, 3)
    append(lake, 30)
    lake.run()
    in_days(monkeypatch, 6)
    append(lake, 40)
    lake.run()
    assert len(lake.table().snapshots()) == 1
    other.run()
    assert same(other)


def test_a_table_of_another_warehouse_is_left_alone(lake: AsIceberg, tmp_path: Path) -> None:
    lake.run()
    other = AsIceberg(tmp_path / "other", tmp_path)
    write(other.warehouse, "orders", [message(1)])
    told = other.run("--topic=orders", code=1)
    assert re.search(r"Iceberg table commitlake.orders is of file:///.*/warehouse/.*; give another --namespace", told)
    assert same(lake)
    other.run("--topic=orders", "--namespace=shop")


def test_what_iceberg_can_not_read_is_refused_and_others_go_on(lake: AsIceberg) -> None:
    write(lake.warehouse, "vectors", [message(n) for n in range(3)])
    topic_table.delete(lake.warehouse / "topics" / "vectors", [1])
    told = lake.run("--topic=vectors", "--topic=nosuch", "--topic=orders", code=1)
    assert "vectors: the table at " in told and "has deletion vectors or renamed columns" in told
    assert "nosuch: there is no table at" in told
    assert same(lake)


def test_a_warehouse_without_a_topic_has_nothing_to_do(tmp_path: Path) -> None:
    written(tmp_path, "destinations")
    AsIceberg(tmp_path, tmp_path).run(code=3)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--catalog=nosuch://me:hunter2@host/db"], r"--catalog: .*nosuch://me:\*\*\*@host/db.*; give what pyiceberg"),
        (["--catalog=sqlite:////no/such/place.db"], r"--catalog: .*unable to open database file"),
        (["--catalog=env:NO_SUCH"], "--catalog: the environment variable NO_SUCH is not set"),
        (["--catalog=sqlite://", "--property=hunter2"], "--property hunter2: '=' is missing"),
    ],
)
def test_a_catalog_that_can_not_be_used_is_told_without_its_password(
    lake: AsIceberg, words: list[str], told: str
) -> None:
    done = CliRunner().invoke(app, ["iceberg", f"--set=warehouse={lake.warehouse}", *words])
    assert isinstance(done.exception, ConfigError)
    assert re.search(told, str(done.exception)), done.exception
    assert "me:hunter2" not in str(done.exception)


def test_without_pyiceberg_the_extra_is_named(lake: AsIceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = CliRunner().invoke(app, ["iceberg", f"--catalog={lake.uri}"])
    assert isinstance(done.exception, SetupError)
    assert "clone[iceberg]" in str(done.exception)


def test_duckdb_finds_the_same_rows(lake: AsIceberg) -> None:
    lake.run()
    compact(lake.warehouse, "orders")
    append(lake, 20)
    lake.run()
    with duckdb.connect() as db:
        try:
            db.execute("SET autoinstall_known_extensions = false; LOAD iceberg")
        except duckdb.Error as error:
            pytest.skip(f"DuckDB's extension is not installed: {error}")
        db.execute("SET TimeZone = 'UTC'")
        found = db.sql(f"SELECT * FROM iceberg_scan('{lake.table().metadata_location}')").to_arrow_table()
    assert in_order(found.cast(lake.table().scan().to_arrow().schema)) == lake.delta_rows()


@pytest.fixture
def snippets(lake: AsIceberg, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The page's command and program, on the test's warehouse and catalog."""
    text = PAGE.read_text().replace("sqlite:///iceberg.db", lake.uri)
    (tmp_path / "conf.yaml").write_text(f"warehouse: {lake.warehouse}\n")
    command, program = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)[0] for kind in ("bash", "python"))
    yield command.replace("conf/local.yaml", str(tmp_path / "conf.yaml")), program


def test_the_snippets_of_the_page_work(snippets: tuple[str, str]) -> None:
    command, program = snippets
    words = shlex.split(command)
    assert words[0] == ".venv/bin/commitlake"
    done = CliRunner().invoke(app, words[1:])
    assert (done.exit_code, done.exception) == (0, None), done.output
    names: dict[str, Any] = {}
    exec(program, names)
    assert sorted(names["orders"]["keys"].to_pylist()) == [f"k{n}" for n in range(6)]
    assert names["orders"].column_names == ["keys", "body"]


def test_an_error_of_the_store_is_told_and_the_table_stays(lake: AsIceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.run()
    append(lake, 20)

    def fails(*_: object) -> None:
        msg = "the store\nis away"
        raise OSError(msg)

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", fails)
        assert "orders: the store is away; the next run does the rest" in lake.run(code=1)
    lake.run()
    assert same(lake)
    assert issubclass(SetupError, CommitLakeError)
