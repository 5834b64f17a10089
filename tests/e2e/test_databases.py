"""Messages that end as a transaction of PostgreSQL or MariaDB does, by its row; the coordinator is in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only, greenlet_spawn
from tests.support import databases

from commitlake import CommitLakeError, DatabaseListener, Message
from commitlake.clients.asyncio_sql import awaited
from commitlake.clients.consumer.once import Once
from commitlake.clients.proof_rows import ProofRows
from commitlake.clients.sql import Awaited, sql_of
from commitlake.errors import ConsumerError
from commitlake.protocol.database_row import COMMITTED, HANDLED, REVOKED, TABLE, RowName
from commitlake.testing import Crash, Fault, InMemoryCoordinator
from commitlake.testing.producer import InMemoryProducer

MANY = 20
KINDS = ["connection", "session", "psycopg", "asyncpg"]
DRIVERS = ("psycopg", "asyncpg")
WAITS = {
    "mysql": ("SELECT @@innodb_lock_wait_timeout", "SET innodb_lock_wait_timeout = 7"),
    "postgresql": ("SHOW lock_timeout", "SET lock_timeout = '7s'"),
}
"""How long a session waits for others: the question, and a change to seven seconds."""


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "mariadb":
        with databases.mariadb() as url:
            yield create_engine(url, pool_size=2 * MANY)
    else:
        with databases.cluster() as server:
            yield create_engine(server.url().replace("://", "+psycopg://"), pool_size=2 * MANY)


class Asyncpg(Awaited):
    """A connection of asyncpg with the methods of a plain one, for a test that `where_it_can_wait` runs."""

    def __init__(self, **login: Any) -> None:
        given = await_only(asyncpg.connect(**login))
        super().__init__(given, awaited(given).sql)

    def execute(self, sql: str) -> list[Any]:
        found: list[Any] = await_only(self.given.fetch(sql))
        return found

    def commit(self) -> None:
        pass  # each statement has, outside of a block

    def close(self) -> None:
        await_only(self.given.close())

    def __enter__(self) -> Asyncpg:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def where_it_can_wait(test: Callable[..., None]) -> Callable[..., None]:
    """Runs what is about asyncpg as the clients run their code for plain connections: in a greenlet."""

    @wraps(test)
    def run(**given: Any) -> None:
        if given["kind"] != "asyncpg":
            test(**given)
        else:
            asyncio.run(greenlet_spawn(test, **given))

    return run


class Shop:
    """A database with orders, and a coordinator with a producer whose local transactions are there."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.lake = engine, InMemoryCoordinator({"transaction.timeout": "10s"})
        with engine.begin() as connection:
            for table in ("orders", TABLE):
                connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
            connection.execute(text("CREATE TABLE orders (id VARCHAR(40) PRIMARY KEY)"))
        self.producer = self.join()

    def join(self) -> InMemoryProducer:
        return self.lake.producer("shop", DatabaseListener(self.engine, create=True))

    def opened(self, kind: str) -> Any:
        """A connection of SQLAlchemy, psycopg or asyncpg, or a session, as a context."""
        if kind not in DRIVERS:
            return self.engine.connect() if kind == "connection" else Session(self.engine)
        if self.engine.dialect.name != "postgresql":
            pytest.skip(f"{kind} is for PostgreSQL")
        if kind == "asyncpg":
            return Asyncpg(database=self.engine.url.database, **self.login)
        return psycopg.connect(dbname=self.engine.url.database, **self.login)

    @property
    def login(self) -> dict[str, Any]:
        """Arguments of the drivers; both take the database by a name of their own, and the user's by default."""
        url = self.engine.url
        return {"host": url.host, "port": url.port, "user": url.username, "password": url.password}

    def order(self, connection: Any, name: str = "17") -> None:
        sql = f"INSERT INTO orders VALUES ('{name}')"
        connection.execute(sql if isinstance(connection, psycopg.Connection | Asyncpg) else text(sql))

    def begin(self, connection: Any) -> Any:
        return self.producer.begin_transaction(database=connection)

    def orders(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT id FROM orders ORDER BY id")).scalars())

    def shown(self) -> list[str]:
        return sorted(message.body.decode() for message in self.lake.messages("orders"))

    def state(self, message: Message) -> str:
        return self.lake.outcome(str(message.transaction_id)).state


@pytest.fixture
def shop(engine: Engine) -> Shop:
    return Shop(engine)


@pytest.mark.parametrize("kind", KINDS)
@where_it_can_wait
def test_rows_and_messages_commit_together_or_not_at_all(shop: Shop, kind: str) -> None:
    with shop.opened(kind) as connection:
        with shop.begin(connection) as transaction:
            shop.order(connection)
            transaction.send(Message("orders", "17"))
            assert (shop.orders(), shop.shown()) == ([], [])
        with pytest.raises(ValueError, match="sold out"), shop.begin(connection) as transaction:
            shop.order(connection, "18")
            transaction.send(Message("orders", "18"))
            raise ValueError("sold out")
    assert (shop.orders(), shop.shown(), shop.lake.pending) == (["17"], ["17"], [])


@pytest.mark.parametrize("kind", ["connection", *DRIVERS])
@pytest.mark.parametrize("fault", Fault)
@where_it_can_wait
def test_whatever_befalls_messages_are_visible_exactly_when_the_rows_are_there(
    shop: Shop, fault: Fault, kind: str
) -> None:
    shop.producer.fault = fault
    with shop.opened(kind) as connection:
        with suppress(Crash, CommitLakeError), shop.begin(connection) as transaction:
            shop.order(connection)
            transaction.send(Message("orders", "17"))
        (connection.close if kind in DRIVERS else connection.invalidate)()  # as the end of a process does
    shop.join()
    shop.lake.advance("10m")
    assert (shop.shown(), shop.lake.pending) == (shop.orders(), [])


def test_a_check_waits_a_second_for_an_open_transaction_and_holds_up_nobody(shop: Shop) -> None:
    """Others write meanwhile, and the check leaves the engine's connections as they were."""
    message = Message("orders", "17")
    with shop.engine.connect() as connection, shop.begin(connection) as transaction:
        shop.order(connection)
        transaction.send(message)
        checking = threading.Thread(target=shop.lake.advance, args=["15s"])
        checking.start()
        for number in range(MANY):
            with shop.engine.begin() as other:
                shop.order(other, f"other {number:02}")
        checking.join(10)
        assert not checking.is_alive()
        assert shop.state(message) == "PENDING"
    assert (shop.state(message), len(shop.orders())) == ("COMMITTED", MANY + 1)
    with shop.engine.connect() as connection:
        assert str(connection.execute(text(WAITS[shop.engine.dialect.name][0])).scalar()) in ("50", "0")


def test_a_row_that_a_tombstone_precedes_can_not_be_inserted(shop: Shop) -> None:
    message = Message("orders", "17")
    with (
        pytest.raises(CommitLakeError, match="has lost its rows"),
        shop.engine.connect() as connection,
        shop.begin(connection) as transaction,
    ):
        shop.order(connection)
        transaction.send(message)
        connection.rollback()
        shop.lake.advance("15s")
        assert shop.state(message) == "ROLLED_BACK"
    assert (shop.orders(), shop.shown()) == ([], [])


def test_many_checks_beside_many_transactions_make_none_of_them_fail(shop: Shop) -> None:
    """Tombstones wait in gaps of the index beside inserts of others, where MySQL knows deadlocks."""
    begun, checked = threading.Barrier(MANY + 1), threading.Event()

    def serve(number: int) -> None:
        with shop.engine.connect() as connection, shop.begin(connection) as transaction:
            shop.order(connection, f"{number:02}")
            transaction.send(Message("orders", f"{number:02}"))
            begun.wait(60)
            checked.wait(60)
            if number % 2:
                raise ValueError("sold out")

    with ThreadPoolExecutor(MANY) as pool:
        served = [pool.submit(serve, number) for number in range(MANY)]
        begun.wait(60)
        checking = threading.Thread(target=shop.lake.advance, args=["15s"])
        checking.start()
        checking.join(1.5)
        checked.set()
        checking.join(120)
    assert [type(each.exception()) for each in served] == [type(None), ValueError] * (MANY // 2)
    shop.lake.advance("10m")
    assert (shop.orders(), shop.shown()) == ([f"{number:02}" for number in range(0, MANY, 2)],) * 2


def test_a_savepoint_of_psycopg_with_a_message_that_is_rolled_back_rolls_back_all(shop: Shop) -> None:
    with shop.opened("psycopg") as connection:
        with shop.begin(connection) as transaction, connection.transaction():
            shop.order(connection)
            transaction.send(Message("orders", "17"))
        with (
            pytest.raises(CommitLakeError, match="a savepoint of the database"),
            shop.begin(connection) as transaction,
            connection.transaction(),
        ):
            shop.order(connection, "18")
            transaction.send(Message("orders", "18"))
            raise psycopg.Rollback
        with pytest.raises(CommitLakeError, match="ends its transaction itself"), connection.transaction():
            shop.begin(connection)
        connection.autocommit = True
        with pytest.raises(CommitLakeError, match="autocommit"):
            shop.begin(connection)
    assert (shop.orders(), shop.shown(), shop.lake.pending) == (["17"], ["17"], [])


def test_a_pipeline_of_psycopg_is_refused_where_it_would_hide_what_a_statement_does(shop: Shop) -> None:
    with shop.opened("psycopg") as connection:
        with (
            pytest.raises(CommitLakeError, match="in a pipeline"),
            shop.begin(connection) as transaction,
            connection.pipeline(),
        ):
            shop.order(connection, "17")
            transaction.send(Message("orders", "17"))
        with (
            pytest.raises(CommitLakeError, match="in a pipeline"),
            connection.pipeline(),
            Once(connection, "m1", False),
        ):
            pass
        with shop.begin(connection) as transaction:
            with connection.pipeline():
                shop.order(connection, "18")
            transaction.send(Message("orders", "18"))
    assert (shop.orders(), shop.shown(), shop.lake.pending) == (["18"], ["18"], [])


@pytest.mark.parametrize("connect", [psycopg.connect, psycopg.AsyncConnection.connect, asyncpg.connect])
def test_a_listener_may_connect_by_a_driver_alone(shop: Shop, connect: Callable[..., Any]) -> None:
    shop.opened("psycopg").close()
    url = shop.engine.url.set(drivername="postgresql").render_as_string(hide_password=False).replace(" ", "%20")
    listener = DatabaseListener(lambda: connect(url), create=True)
    shop.producer.set_transaction_listener(listener)
    shop.producer.fault = Fault.DECISION_LOST
    with shop.opened("psycopg") as connection, shop.begin(connection) as transaction:
        shop.order(connection)
        transaction.send(Message("orders", "17"))
        begun = time.monotonic()
        shop.lake.advance("15s")
        assert (shop.lake.pending != [], time.monotonic() - begun < 5) == (True, True)
    with suppress(Crash), shop.opened("psycopg") as connection, shop.begin(connection) as transaction:
        transaction.send(Message("orders", "18"))
        shop.producer.crash()
    shop.join().set_transaction_listener(listener)
    shop.lake.advance("10m")
    assert (shop.shown(), shop.lake.pending, listener.tidy()) == (["17"], [], 0)


def decided(engine: Engine, names: list[str]) -> dict[str, str]:
    """The decisions of a coordinator's rule, by id."""
    with engine.connect() as connection:
        rows = ProofRows(sql_of(connection))
        here = rows.database()
        connection.rollback()
        told = rows.decide_all({RowName(here, name): 0 for name in names})
    return {name.id: why for name, why in told.items() if isinstance(why, str)}


def inserted(shop: Shop, *states: tuple[str, str]) -> None:
    with shop.engine.begin() as connection:
        for name, state in states:
            connection.execute(text(f"INSERT INTO {TABLE} VALUES ('{name}', '{state}', 0)"))


def test_a_rule_decides_many_at_once_and_waits_a_second_for_what_is_open(shop: Shop) -> None:
    inserted(shop, ("committed", COMMITTED), ("revoked", REVOKED), ("in its middle", "OPEN 1"))
    dead = [f"dead {number:04}" for number in range(1_500)]
    with shop.engine.connect() as connection:
        connection.execute(text(f"INSERT INTO {TABLE} VALUES ('open', '{COMMITTED}', 0)"))
        begun = time.monotonic()
        found = decided(shop.engine, ["committed", "open", "revoked", "in its middle", "x" * 65, *dead])
        assert time.monotonic() - begun < 20
        shop.order(connection)
        connection.commit()
    rolled_back = dict.fromkeys([*dead, "revoked", "in its middle"], "ROLLBACK")
    assert found == {"committed": "COMMIT"} | rolled_back
    assert decided(shop.engine, ["open"]) == {"open": "COMMIT"}
    assert shop.orders() == ["17"]


def test_a_rule_decides_two_thousand_a_second(shop: Shop) -> None:
    names = [f"{number:06}" for number in range(10_000)]
    inserted(shop, *((name, COMMITTED) for name in names[::2]))
    begun = time.monotonic()
    found = decided(shop.engine, names)
    took = time.monotonic() - begun
    print(f"{shop.engine.dialect.name}: {len(names) / took:,.0f} decisions a second")
    assert found == {name: ("ROLLBACK", "COMMIT")[number % 2 == 0] for number, name in enumerate(names)}
    assert took < len(names) / 2_000


def test_two_rules_and_the_transactions_themselves_agree(shop: Shop) -> None:
    """Each row is inserted by its transaction and by two that check, in whatever order they come."""
    names = [f"{number:04}" for number in range(400)]

    def commit(name: str) -> None:
        with suppress(IntegrityError), shop.engine.begin() as connection:
            connection.execute(text(f"INSERT INTO {TABLE} VALUES ('{name}', '{COMMITTED}', 0)"))
            shop.order(connection, name)

    with ThreadPoolExecutor(10) as pool:
        checks = [pool.submit(decided, shop.engine, names[at::2]) for at in (0, 1) for _ in range(2)]
        for each in [pool.submit(commit, name) for name in names]:
            each.result()
        found = [check.result() for check in checks]
    orders = set(shop.orders())
    for told in found:
        assert all((decision == "COMMIT") == (name in orders) for name, decision in told.items())
    assert decided(shop.engine, names) == {name: "COMMIT" if name in orders else "ROLLBACK" for name in names}


def test_old_rows_go_by_a_rule_but_those_of_consumers(shop: Shop) -> None:
    inserted(shop, ("a", COMMITTED), ("b", REVOKED), ("c", "OPEN 1"), ("d", HANDLED))
    with shop.engine.connect() as connection:
        rows = ProofRows(sql_of(connection))
        assert [rows.tidy(only_proofs=True), rows.tidy(), rows.tidy()] == [3, 1, 0]


def test_a_replica_answers_nothing(shop: Shop) -> None:
    if shop.engine.dialect.name != "postgresql":
        pytest.skip("a replica of PostgreSQL")
    inserted(shop, ("committed", COMMITTED))
    with databases.cluster(f"{shop.engine.url.host}:{shop.engine.url.port}") as replica:
        engine = create_engine(replica.url().replace("://", "+psycopg://"), poolclass=NullPool)
        assert decided(engine, ["committed", "absent"]) == {}
    assert decided(shop.engine, ["committed", "absent"]) == {"committed": "COMMIT", "absent": "ROLLBACK"}


@pytest.mark.parametrize("kind", KINDS)
@where_it_can_wait
def test_of_two_consumers_with_a_message_the_second_waits_and_finds_it_handled(shop: Shop, kind: str) -> None:
    found: list[bool] = []

    @where_it_can_wait
    def second(kind: str) -> None:
        with shop.opened(kind) as session, Once(session, "m1", create=False) as is_new:
            found.append(is_new)

    other = threading.Thread(target=second, kwargs={"kind": kind})
    with shop.opened(kind) as connection, Once(connection, "m1", create=False) as is_new:
        found.append(is_new)
        other.start()
        shop.order(connection)
        other.join(0.5)
        assert found == [True]
    other.join(10)
    assert (found, shop.orders()) == ([True, False], ["17"])


@pytest.mark.parametrize("kind", ["connection", *DRIVERS])  # a session changes its connection
@where_it_can_wait
def test_a_consumer_waits_a_second_for_another_one_s_open_row_and_then_says_so(shop: Shop, kind: str) -> None:
    """The message comes again; the wait for all other locks, which the session has set, is as before."""
    ask, change = WAITS[shop.engine.dialect.name]
    with shop.opened(kind) as first, shop.opened(kind) as second:
        run = second.execute if kind in DRIVERS else lambda sql: second.execute(text(sql))
        run(change)
        second.commit()
        with Once(first, "m1", create=False):
            begun = time.monotonic()
            with pytest.raises(ConsumerError, match="the message comes again"), Once(second, "m1", create=False):
                pass
            assert time.monotonic() - begun < 5
        with Once(second, "m2", create=False) as is_new:
            assert is_new
            assert str(next(iter(run(ask)))[0]) in ("7", "7s")
        with Once(second, "m1", create=False) as is_new:
            assert not is_new
        assert str(next(iter(run(ask)))[0]) in ("7", "7s")
