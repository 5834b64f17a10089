"""Messages that end as a transaction of a real PostgreSQL does, also by psycopg; the coordinator is in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from threading import Thread
from typing import Any, NamedTuple

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import orm
from tests.support import databases, savepoints
from tests.support.polling import wait_for

from commitlake import DatabaseListener, Message
from commitlake.errors import ProducerError
from commitlake.testing import InMemoryCoordinator
from commitlake.testing.producer import InMemoryProducer

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
