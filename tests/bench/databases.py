"""What the row that proves a local transaction costs, by database.

    .venv/bin/python -m tests.bench.databases --seconds 4

One thread, one connection; a transaction is a row and a message of 256 B. Kafka is a list, so that its time does not
hide the database's, and no server waits for its disk. The ways take turns.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import asyncpg
import numpy as np
from sqlalchemy import Connection, create_engine, text
from tests.bench import rig
from tests.support import databases, memory_kafka

from commitlake import AsyncTransactionMQProducer, DatabaseListener, Message, TransactionMQProducer

BODY = b"." * 256
INSERT = "INSERT INTO orders VALUES ('an espresso')"
TURNS = 5
Ways = dict[str, Callable[[], object]]
ALONE, BESIDE, WITHIN = "the rows alone", "with a message that nothing proves", "proven by a row"


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="for each database, way and turn")
    given = parser.parse_args()
    databases: dict[str, Callable[[], AbstractContextManager[Ways]]] = {
        "SQLite": in_sqlite, "PostgreSQL": in_postgresql, "MariaDB": in_mariadb, "asyncpg": by_asyncpg,
    }  # fmt: skip
    figures: dict[str, dict[str, Any]] = {}
    for name, opened in databases.items():
        with opened() as ways:
            took: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(TURNS):
                for way, call in ways.items():
                    took[way] += timed(call, given.seconds)
        figures |= {f"{name}, {way}": summed_up(each) for way, each in took.items()}
    rig.report("databases", given, figures)


@contextmanager
def in_sqlite() -> Iterator[Ways]:
    """A file, by SQLAlchemy."""
    with tempfile.TemporaryDirectory() as place, by_sqlalchemy(f"sqlite:///{place}/shop.db") as ways:
        yield ways


@contextmanager
def in_postgresql() -> Iterator[Ways]:
    with databases.cluster() as server, by_sqlalchemy(server.url().replace("://", "+psycopg://")) as ways:
        yield ways


@contextmanager
def in_mariadb() -> Iterator[Ways]:
    with databases.mariadb() as url, by_sqlalchemy(url) as ways:
        yield ways


@contextmanager
def by_sqlalchemy(url: str) -> Iterator[Ways]:
    """The ways of a connection of SQLAlchemy."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (item TEXT)"))
    proven = TransactionMQProducer("group", DatabaseListener(engine, create=True), bootstrap_servers="memory:9092")
    memory_kafka.connect(proven, memory_kafka.Kafka())
    with engine.connect() as connection, proven:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA synchronous=OFF")
            connection.commit()
        yield {
            ALONE: lambda: order(connection),
            BESIDE: lambda: beside(proven, connection),
            WITHIN: lambda: within(proven, connection),
        }


def order(connection: Connection) -> None:
    with connection.begin():
        connection.execute(text(INSERT))


def beside(given: TransactionMQProducer, connection: Connection) -> None:
    """A message whose decision the program sends, which a crash between both loses."""
    with given.begin_transaction(is_answered=True) as transaction:
        transaction.send(Message("orders", BODY))
        order(connection)


def within(given: TransactionMQProducer, connection: Connection) -> None:
    """A message that ends as the local transaction."""
    with given.begin_transaction(database=connection) as transaction:
        connection.execute(text(INSERT))
        transaction.send(Message("orders", BODY))


@contextmanager
def by_asyncpg() -> Iterator[Ways]:
    """PostgreSQL, by asyncpg and the producer for asyncio."""
    with databases.cluster() as server, asyncio.Runner() as runner:
        databases.execute(server.address, "CREATE TABLE orders (item TEXT)")
        listener = DatabaseListener(lambda: asyncpg.connect(server.url()), create=True)
        proven, run = memory_kafka.producer(memory_kafka.Kafka(), listener), runner.get_loop().run_until_complete
        connection = run(asyncpg.connect(server.url()))
        run(proven.start())
        yield {
            ALONE: lambda: run(asyncio_order(connection)),
            BESIDE: lambda: run(asyncio_beside(proven, connection)),
            WITHIN: lambda: run(asyncio_within(proven, connection)),
        }
        run(connection.close())
        run(proven.shutdown())


async def asyncio_order(connection: Any) -> None:
    async with connection.transaction():
        await connection.execute(INSERT)


async def asyncio_beside(given: AsyncTransactionMQProducer, connection: Any) -> None:
    async with given.begin_transaction(is_answered=True) as transaction:
        await transaction.send(Message("orders", BODY))
        await asyncio_order(connection)


async def asyncio_within(given: AsyncTransactionMQProducer, connection: Any) -> None:
    async with given.begin_transaction(database=connection) as transaction:
        await connection.execute(INSERT)
        await transaction.send(Message("orders", BODY))


def timed(call: Callable[[], object], seconds: float) -> list[float]:
    """The ms of each call; the first tenth is not counted."""
    took, end = [], time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        call()
        took.append(1_000 * (time.perf_counter() - begun))
    return took[len(took) // 10 :]


def summed_up(took: list[float]) -> dict[str, Any]:
    """Times in ms, and transactions a second of the one thread."""
    p50, p99 = np.percentile(took, [50, 99])
    return {"p50_ms": p50, "p99_ms": p99, "per_s": 1_000 / np.mean(took)}


if __name__ == "__main__":
    main()
