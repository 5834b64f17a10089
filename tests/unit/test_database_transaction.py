"""Messages that end as a transaction of a real PostgreSQL does, and the command; the coordinator is in memory."""

from __future__ import annotations

import logging
import sqlite3
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import orm
from tests.support import databases, savepoints
from tests.support.polling import wait_for
from typer.testing import CliRunner, Result

from commitlake import DatabaseListener, Message
from commitlake.clients.proof_rows import ProofRows, opened_rows
from commitlake.clients.sql import sql_of
from commitlake.errors import ArgumentError, ConfigError, DatabaseError, ProducerError, SetupError
from commitlake.protocol.clock import now_ms
from commitlake.protocol.database_row import COMMITTED, HANDLING, TABLE
from commitlake.protocol.durations import DAY_MS
from commitlake.testing import InMemoryCoordinator
from commitlake.testing.producer import InMemoryProducer
from commitlake.tools.cli import app

GROUP = "orders"
INSERT = "INSERT INTO orders VALUES ('17')"


@pytest.fixture(scope="module")
def server() -> Iterator[databases.Server]:
    with databases.shop() as found:
        yield found


class Shop(NamedTuple):
    """A server without orders, a connection to it, and a producer."""

    server: databases.Server
    database: Any
    lake: InMemoryCoordinator
    producer: InMemoryProducer

    def begin(self) -> Any:
        return self.producer.begin_transaction(database=self.database)

    def ids(self) -> list[str]:
        with psycopg.connect(self.server.url()) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]

    def end(self, message: Message) -> tuple[str, str | None]:
        assert message.transaction_id is not None
        outcome = self.lake.outcome(message.transaction_id)
        return outcome.state, outcome.reason

    def checked(self, message: Message) -> tuple[str, str | None]:
        self.lake.advance("15s")
        return self.end(message)


@pytest.fixture
def shop(server: databases.Server) -> Iterator[Shop]:
    lake = InMemoryCoordinator({"transaction.timeout": "10s"})
    listener = DatabaseListener(lambda: psycopg.connect(server.url()), create=True)
    with psycopg.connect(server.url()) as connection, lake.producer(GROUP, listener) as producer:
        connection.execute("DELETE FROM orders")
        connection.commit()
        yield Shop(server, connection, lake, producer)
        if not connection.closed:
            connection.rollback()


def sold_out(_: Any) -> None:
    raise ValueError("sold out")


def with_a_swallowed_error(database: Any) -> None:
    with suppress(psycopg.Error):
        database.execute("SELECT nothing")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (sold_out, ValueError),
        (lambda database: database.execute("INSERT INTO points VALUES ('17')"), psycopg.errors.UniqueViolation),
        (with_a_swallowed_error, psycopg.errors.InFailedSqlTransaction),
    ],
    ids=["an exception in the block", "a commit that the database refuses", "an error that the block has swallowed"],
)
def test_what_goes_wrong_in_the_block_rolls_both_back(shop: Shop, wrong: Any, error: type[Exception]) -> None:
    message = Message("orders", "a book")
    with pytest.raises(error), shop.begin() as transaction:
        shop.database.execute(INSERT)
        transaction.send(message)
        wrong(shop.database)
    assert shop.ids() == []
    assert shop.end(message) == ("ROLLED_BACK", "DIRECT")


def test_a_connection_lost_before_its_commit_leaves_the_answer_to_the_database(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    message = Message("orders", "a book")
    caplog.set_level(logging.WARNING, logger="commitlake")
    with pytest.raises(psycopg.OperationalError), shop.begin() as transaction:
        shop.database.execute(INSERT)
        transaction.send(message)
        with psycopg.connect(shop.server.url()) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (shop.database.info.backend_pid,))
    assert shop.end(message) == ("PENDING", None)
    assert "left to its check" in caplog.text
    assert shop.checked(message) == ("ROLLED_BACK", "CHECK")


def test_a_connection_lost_after_its_commit_leaves_the_answer_to_the_database(shop: Shop) -> None:
    message = Message("orders", "a book")

    def terminate() -> None:
        waits = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
        with psycopg.connect(shop.server.url(), autocommit=True) as other:
            wait_for(lambda: other.execute(waits, (shop.database.info.backend_pid,)).fetchone())
            other.execute("SELECT pg_terminate_backend(%s)", (shop.database.info.backend_pid,))

    shop.database.execute("SET synchronous_commit TO on")
    shop.database.commit()
    killer = Thread(target=terminate)
    with pytest.raises(psycopg.OperationalError), shop.begin() as transaction:
        shop.database.execute(INSERT)
        transaction.send(message)
        killer.start()
    killer.join()
    assert shop.ids() == ["17"]
    assert shop.end(message) == ("PENDING", None)
    assert shop.checked(message) == ("COMMITTED", "CHECK")


class Client:
    """A connection of psycopg, or a session of SQLAlchemy."""

    def __init__(self, kind: str, shop: Shop) -> None:
        address = shop.server.url()
        engine = sqlalchemy.create_engine(address.replace(":", "+psycopg:", 1), poolclass=sqlalchemy.pool.NullPool)
        makers: dict[str, Callable[[], Any]] = {
            "psycopg": lambda: psycopg.connect(address),
            "session": lambda: orm.Session(engine),
        }
        self.made = makers[kind]()
        self.savepoint = getattr(self.made, "begin_nested", None) or self.made.transaction
        self.producer = shop.producer

    def order(self, name: str = "17") -> None:
        self.run(f"INSERT INTO orders VALUES ('{name}')")

    def run(self, sql: str) -> None:
        self.made.execute(sql if isinstance(self.made, psycopg.Connection) else sqlalchemy.text(sql))


@pytest.mark.parametrize("kind", ["psycopg", "session"])
@pytest.mark.parametrize(("steps", "error"), savepoints.EVERY_ORDER)
def test_messages_end_as_their_rows_in_every_order_of_block_savepoint_and_send(
    shop: Shop, kind: str, steps: savepoints.Steps, error: str | None
) -> None:
    client = Client(kind, shop)
    expected = nullcontext() if error is None else pytest.raises((ValueError, ProducerError), match=error)
    with closing(client.made), expected, shop.producer.begin_transaction(database=client.made) as transaction:
        steps(client, lambda topic="orders": transaction.send(Message(topic, "a book")))
    assert shop.ids() == ([] if error else ["17"])
    assert bool(shop.lake.messages("orders")) == (error is None)
    assert shop.lake.pending == []


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
