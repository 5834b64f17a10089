"""`commitlake database`: the table is made, printed and tidied; no secret is shown. SQLite."""

from __future__ import annotations

import sqlite3
import sys
import traceback
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from commitlake import DatabaseListener
from commitlake.clients.proof_rows import ProofRows, opened_rows
from commitlake.clients.sql import sql_of
from commitlake.errors import ArgumentError, ConfigError, DatabaseError, SetupError
from commitlake.protocol.clock import now_ms
from commitlake.protocol.database_row import COMMITTED, HANDLING, TABLE
from commitlake.protocol.durations import DAY_MS
from commitlake.tools.cli import app


def command(*words: str) -> Result:
    return CliRunner().invoke(app.app, ["database", *words])


def listener(place: Path) -> DatabaseListener:
    return DatabaseListener(lambda: sqlite3.connect(place))


def test_the_table_is_made_once_and_then_a_listener_starts(tmp_path: Path) -> None:
    place, url = tmp_path / "shop.db", f"sqlite:///{tmp_path}/shop.db"
    first, second = command("create", url), command("create", url)
    assert (first.exit_code, first.output) == (0, second.output)
    assert first.output.startswith(f"the table {TABLE} is there; the name of the database is ")
    listener(place)


def test_the_printed_sql_makes_what_the_command_makes(tmp_path: Path) -> None:
    made = [tmp_path / "printed.db", tmp_path / "made.db"]
    with closing(sqlite3.connect(made[0])) as database:
        database.executescript(command("create", "--print").output)
    command("create", f"sqlite:///{made[1]}")
    shapes = []
    for place in made:
        listener(place)
        with closing(sqlite3.connect(place)) as database:
            shapes.append(database.execute("SELECT sql FROM sqlite_master").fetchall())
            assert database.execute(f"SELECT id, length(state) FROM {TABLE}").fetchall() == [("database", 32)]
    assert shapes[0] == shapes[1]
    assert command("create", "--print").output != command("create", "--print").output, "each database has its own name"


def test_old_rows_go_and_a_younger_age_is_refused_with_what_it_would_lose(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    command("create", url)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        rows = [("a", COMMITTED, 100), ("b", COMMITTED, 40), ("c", COMMITTED, 30), ("d", HANDLING, 100)]
        for name, state, days in rows:
            database.execute(f"INSERT INTO {TABLE} VALUES (?, ?, ?)", (name, state, now_ms() - days * DAY_MS))
    refused = command("tidy", url, "--older-than", "7d")
    assert isinstance(refused.exception, ArgumentError)
    assert "messages of a transaction that has committed would be lost; give 31d or more" in str(refused.exception)
    assert command("tidy", url, "--older-than", "60d").output == "1 row deleted\n"
    assert [command("tidy", url).output for _ in range(2)] == ["1 row deleted\n", "0 rows deleted\n"]
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        assert {row[0] for row in database.execute(f"SELECT id FROM {TABLE}")} == {"database", "c", "d"}


def test_tidy_looks_at_each_row_once_whatever_its_id() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        rows, steps = ProofRows(sql_of(database)), list[int]()
        rows.create()
        others = ["", "!", "00", "ff", "FF", "order-1", "zzz", "\U0001f600"]
        old = [*others, *(f"a0{number:x}" for number in range(1_500)), *(f"{number:032x}" for number in range(100))]
        young = [uuid.uuid4().hex for _ in range(5_000)]
        values = [*((name, COMMITTED, 1) for name in old), *((name, COMMITTED, now_ms()) for name in young)]
        database.executemany(f"INSERT INTO {TABLE} VALUES (?, ?, ?)", values)
        database.commit()
        database.set_progress_handler(lambda: steps.append(100), 100)  # called each 100 steps of SQLite's machine
        assert rows.tidy() == len(old)
        assert sum(steps) < 100 * len(values), "not each row for each that goes"
        assert {name for (name,) in database.execute(f"SELECT id FROM {TABLE}")} == {"database", *young}


def test_a_missing_table_is_told_and_is_not_made_by_tidy(tmp_path: Path) -> None:
    found = command("tidy", f"sqlite:///{tmp_path}/shop.db")
    assert isinstance(found.exception, DatabaseError)
    assert f"no such table: {TABLE}" in str(found.exception)


def test_why_the_table_can_not_be_made_is_told(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "shop.db").close()
    found = command("create", f"sqlite:///file:{tmp_path}/shop.db?mode=ro&uri=true")
    assert isinstance(found.exception, DatabaseError)
    assert "attempt to write a readonly database" in str(found.exception), "not that there is no table"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["postgresql://shop:hunter2@127.0.0.1:1/shop"], "a password is not allowed in it; say where the password is"),
        (["postgresql://127.0.0.1:1/shop?password=hunter2"], "a password is not allowed in it"),
        (["env:SHOP_URL"], "; check postgresql+psycopg://shop:***@127.0.0.1:1/shop"),
        (
            ["postgresql://127.0.0.1:1/shop", "--user=shop", "--password=env:SHOP"],
            "; check postgresql+psycopg://shop:***@",
        ),
        (["postgresql://127.0.0.1:1/shop", "--password=hunter2"], "password: a secret is not allowed here"),
        (["env:NO_URL"], "the environment variable NO_URL is not set"),
        (["hunter2"], "it is no address of SQLAlchemy; write postgresql://HOST/DATABASE"),
        (["nothing://host/shop"], "load plugin: sqlalchemy.dialects:nothing"),
    ],
)
def test_what_can_not_be_reached_is_told_without_secrets(
    monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.setenv("SHOP_URL", "postgresql://shop:hunter2@127.0.0.1:1/shop")
    monkeypatch.setenv("SHOP", "hunter2")
    found = command("create", *words)
    assert isinstance(found.exception, ConfigError | DatabaseError)
    assert told in str(found.exception)
    assert "hunter2" not in "".join(traceback.format_exception(found.exception))


def test_a_package_that_is_missing_is_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    found = command("create", "sqlite://")
    assert isinstance(found.exception, SetupError)
    assert str(found.exception).endswith("install it with pip install '/path/to/clone[database]'")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with (
        pytest.raises(SetupError, match="the driver psycopg is missing"),
        opened_rows("URL", "postgresql://"),
    ):
        pass
