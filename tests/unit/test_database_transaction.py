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
from tests.support import postgres
from tests.support.polling import wait_for

from commitlake import DatabaseListener, FailedSendError, Message
from commitlake.errors import ProducerError
from commitlake.testing import Fault, InMemoryCoordinator
from commitlake.testing.producer import InMemoryProducer

GROUP = "orders"
INSERT = "INSERT INTO orders VALUES ('17')"


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    with postgres.shop() as found:
        yield found


class Shop(NamedTuple):
    """A server without orders, a connection to it, and a producer."""

    server: postgres.Server
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
def shop(server: postgres.Server) -> Iterator[Shop]:
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
    """A connection of psycopg, or of SQLAlchemy: a statement, a savepoint of the client's own, a transaction."""

    def __init__(self, kind: str, server: postgres.Server) -> None:
        engine = sqlalchemy.create_engine(server.url().replace(":", "+psycopg:", 1), poolclass=sqlalchemy.pool.NullPool)
        makers: dict[str, Callable[[], Any]] = {
            "psycopg": lambda: psycopg.connect(server.url()),
            "session": lambda: orm.Session(engine),
        }
        self.made = makers[kind]()
        self.savepoint = getattr(self.made, "begin_nested", None) or self.made.transaction

    def insert(self, name: str = "17") -> None:
        self.sql(f"INSERT INTO orders VALUES ('{name}')")

    def sql(self, text: str) -> None:
        self.made.execute(text if isinstance(self.made, psycopg.Connection) else sqlalchemy.text(text))


Steps = Callable[[Client, Callable[[], object]], None]


def released(client: Client, send: Callable[[], object]) -> None:
    with client.savepoint():
        client.insert()
    send()


def released_with_a_send(client: Client, send: Callable[[], object]) -> None:
    with client.savepoint(), client.savepoint():
        client.insert()
        send()


def raised_after(client: Client, send: Callable[[], object]) -> None:
    released(client, send)
    raise ValueError("sold out")


def raised_before_the_send(client: Client, send: Callable[[], object]) -> None:
    with client.savepoint():
        client.insert()
    raise ValueError("sold out")


def sent_and_rolled_back(client: Client, send: Callable[[], object]) -> None:
    with suppress(ValueError), client.savepoint():
        client.insert()
        send()
        raise ValueError


def sent_and_rolled_back_from_outside(client: Client, send: Callable[[], object]) -> None:
    send()
    with suppress(ValueError), client.savepoint():
        with client.savepoint():
            client.insert()
            send()
        raise ValueError


def sent_and_rolled_back_by_sql(client: Client, send: Callable[[], object]) -> None:
    client.sql("SAVEPOINT here")
    client.insert()
    send()
    client.sql("ROLLBACK TO here")


def failed_outside_and_rolled_back(client: Client, send: Callable[[], object]) -> None:
    with suppress(FailedSendError):
        send()
    sent_and_rolled_back(client, send)


def sent_after_what_was_rolled_back(client: Client, send: Callable[[], object]) -> None:
    sent_and_rolled_back(client, send)
    send()


def rolled_back_without_a_send(client: Client, send: Callable[[], object]) -> None:
    send()
    client.insert()
    with suppress(ValueError), client.savepoint():
        client.insert("18")
        raise ValueError
    send()


LOST = "a savepoint of the database in which a message was sent was rolled back"


@pytest.mark.parametrize("kind", ["psycopg", "session"])
@pytest.mark.parametrize(
    ("steps", "rows", "error"),
    [
        (released, ["17"], None),
        (released_with_a_send, ["17"], None),
        (raised_after, [], "sold out"),
        (raised_before_the_send, [], "sold out"),
        (sent_and_rolled_back, [], LOST),
        (sent_and_rolled_back_from_outside, [], LOST),
        (sent_and_rolled_back_by_sql, [], LOST),
        (sent_after_what_was_rolled_back, [], LOST),
        (failed_outside_and_rolled_back, [], LOST),
        (rolled_back_without_a_send, ["17"], None),
    ],
)
def test_messages_end_as_their_rows_in_every_order_of_block_savepoint_and_send(
    shop: Shop, kind: str, steps: Steps, rows: list[str], error: str | None
) -> None:
    client = Client(kind, shop.server)
    if steps is failed_outside_and_rolled_back:
        shop.producer.fault = Fault.KAFKA_AWAY
    expected = nullcontext() if error is None else pytest.raises((ValueError, ProducerError), match=error)
    with closing(client.made), expected, shop.producer.begin_transaction(database=client.made) as transaction:
        steps(client, lambda: transaction.send(Message("orders", "a book")))
    assert shop.ids() == rows
    assert bool(shop.lake.messages("orders")) == (rows == ["17"] and error is None)
    assert shop.lake.pending == []
