"""Messages that end as a transaction of PostgreSQL does, by the drivers of asyncio themselves; Kafka is a list."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from tests.support import databases
from tests.support.memory_kafka import Kafka, producer
from tests.support.polling import wait_for

from commitlake import DatabaseListener, Message
from commitlake.clients.consumer.once import Once
from commitlake.errors import ArgumentError, ConsumerError, ProducerError
from commitlake.protocol.database_row import COMMITTED, TABLE
from commitlake.testing.codecs import decode_op

CONNECT: dict[str, Callable[..., Any]] = {"psycopg": psycopg.AsyncConnection.connect, "asyncpg": asyncpg.connect}
LOST = (psycopg.OperationalError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError)


@pytest.fixture(scope="module")
def server() -> Iterator[databases.Server]:
    with databases.shop() as found:
        yield found


class Shop:
    """A database without orders, a connection to it, and a producer that answers no checks."""

    def __init__(self, server: databases.Server, driver: str) -> None:
        self.url, self.driver, self.kafka = server.url(), driver, Kafka()
        self.sender = producer(self.kafka, DatabaseListener(lambda: psycopg.connect(self.url), create=True))
        self.database: Any
        self.run("DELETE FROM orders", f"DELETE FROM {TABLE} WHERE id <> 'database'")

    def serve(self, block: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async def served() -> Any:
            async with self.sender, self.opened() as self.database:
                return await block()

        return asyncio.run(served())

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Any]:
        connection = await CONNECT[self.driver](self.url)
        try:
            yield connection
        finally:
            await connection.close()

    def begin(self) -> Any:
        return self.sender.begin_transaction(database=self.database)

    async def order(self, name: str = "17") -> None:
        await self.database.execute(f"INSERT INTO orders VALUES ('{name}')")

    async def place(self, name: str = "17", then: str = "SELECT 1") -> None:
        async with self.begin() as transaction:
            await self.order(name)
            await transaction.send(Message("orders", name))
            await self.database.execute(then)

    @property
    def pid(self) -> int:
        return int(self.database.get_server_pid() if self.driver == "asyncpg" else self.database.info.backend_pid)

    def run(self, *statements: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for each in statements:
                found = connection.execute(each)
            return [row[0] for row in found] if found.description else []

    def orders(self) -> list[str]:
        return self.run("SELECT id FROM orders ORDER BY id")

    def states(self) -> list[str]:
        return self.run(f"SELECT state FROM {TABLE} WHERE id <> 'database'")

    def decisions(self) -> list[str]:
        return [decode_op(op).decision for op in self.kafka.sent("op")]  # type: ignore[union-attr]


@pytest.fixture(params=CONNECT)
def shop(server: databases.Server, request: pytest.FixtureRequest) -> Shop:
    return Shop(server, request.param)


def test_rows_and_messages_commit_together_or_not_at_all(shop: Shop) -> None:
    async def block() -> None:
        async with shop.begin() as transaction, shop.database.transaction():
            await shop.order()
            await asyncio.gather(*(transaction.send(Message("orders", body)) for body in ("a", "b")))
            assert (shop.orders(), shop.kafka.sent("op")) == ([], [])
        with pytest.raises(ValueError, match="sold out"):
            async with shop.begin() as transaction:
                await shop.order("18")
                await transaction.send(Message("orders", "c"))
                raise ValueError("sold out")
        await shop.place("19")  # the connection goes on

    shop.serve(block)
    assert (shop.orders(), shop.decisions()) == (["17", "19"], ["COMMIT", "ROLLBACK", "COMMIT"])


def test_a_savepoint_with_a_message_that_is_rolled_back_rolls_back_all(shop: Shop) -> None:
    async def block() -> None:
        async with shop.begin() as transaction:
            await shop.order()
            with suppress(ValueError):
                async with shop.database.transaction():
                    await shop.order("18")
                    await transaction.send(Message("orders", "a"))
                    raise ValueError

    with pytest.raises(ProducerError, match="a savepoint of the database"):
        shop.serve(block)
    assert (shop.orders(), shop.decisions()) == ([], ["ROLLBACK"])


def test_an_error_that_the_block_swallows_and_a_commit_that_is_refused_roll_both_back(shop: Shop) -> None:
    async def block() -> None:
        with pytest.raises((psycopg.errors.UniqueViolation, asyncpg.UniqueViolationError)):
            await shop.place(then="INSERT INTO points VALUES ('17')")
        with pytest.raises((psycopg.errors.InFailedSqlTransaction, asyncpg.InFailedSQLTransactionError)):
            async with shop.begin() as transaction:
                await transaction.send(Message("orders", "a"))
                with suppress(psycopg.Error, asyncpg.PostgresError):
                    await shop.database.execute("SELECT nothing")
        await shop.place("18")

    shop.serve(block)
    assert (shop.orders(), shop.decisions()) == (["18"], ["ROLLBACK", "ROLLBACK", "COMMIT"])


def test_a_connection_lost_before_its_commit_leaves_the_answer_to_the_database(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    async def block() -> None:
        async with shop.begin() as transaction:
            await shop.order()
            await transaction.send(Message("orders", "17"))
            shop.run(f"SELECT pg_terminate_backend({shop.pid}, 10000)")

    with pytest.raises(LOST):
        shop.serve(block)
    assert (shop.orders(), shop.states(), shop.decisions()) == ([], [], [])
    assert "left to its check" in caplog.text


def test_a_connection_lost_at_its_commit_leaves_the_answer_to_the_database(shop: Shop) -> None:
    waits = "SELECT 1 FROM pg_stat_activity WHERE pid = {} AND wait_event = 'SyncRep'"

    async def block() -> None:
        def terminate(pid: int = shop.pid) -> None:
            wait_for(lambda: shop.run(waits.format(pid)))
            shop.run(f"SELECT pg_terminate_backend({pid})")

        killer = threading.Thread(target=terminate)
        killer.start()
        try:
            await shop.place(then="SET LOCAL synchronous_commit TO on")  # the commit waits for a replica
        finally:
            await asyncio.to_thread(killer.join)

    with pytest.raises(LOST):
        shop.serve(block)
    assert (shop.orders(), shop.states(), shop.decisions()) == (["17"], [COMMITTED], [])


def test_a_cancel_at_any_time_leaves_rows_and_messages_of_one_mind(shop: Shop) -> None:
    """The connection of the cancelled task is closed at once."""

    async def order(name: str, after_s: float) -> None:
        async def place() -> None:
            async with shop.opened() as shop.database:
                await shop.place(name, then="SELECT pg_sleep(0.003)")

        task = asyncio.create_task(place())
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.wait([task])

    for number in range(40):
        shop.kafka.records.clear()
        shop.serve(lambda number=number: order(str(number), number * 0.001))  # type: ignore[misc]
        is_placed = str(number) in shop.orders()
        assert shop.decisions() == ["COMMIT" if is_placed else "ROLLBACK"] * len(shop.kafka.sent("half"))


def test_a_connection_in_a_transaction_is_refused_before_anything_is_sent(shop: Shop) -> None:
    async def block() -> None:
        async with shop.database.transaction():
            with pytest.raises(ArgumentError, match=r"ends its(elf| transaction)"):
                await shop.begin().__aenter__()
            with pytest.raises(ArgumentError, match=r"ends its(elf| transaction)"):
                await Once(shop.database, "m1", create=False).__aenter__()
        await shop.place()

    shop.serve(block)
    assert (shop.orders(), shop.decisions()) == (["17"], ["COMMIT"])


def test_a_connection_out_of_asyncpg_s_pool_does(server: databases.Server) -> None:
    shop = Shop(server, "asyncpg")

    async def block() -> None:
        async with asyncpg.create_pool(shop.url, min_size=1, max_size=2) as pool:

            async def place(number: int) -> None:
                async with pool.acquire() as database, shop.sender.begin_transaction(database=database) as transaction:
                    await database.execute("INSERT INTO orders VALUES ($1)", str(number))
                    await transaction.send(Message("orders", str(number)))

            await asyncio.gather(*map(place, range(5)))
            with pytest.raises(ArgumentError, match=r"asyncpg\.pool\.Pool; .* or a connection of psycopg 3 or asyncpg"):
                shop.sender.begin_transaction(database=pool)

    shop.serve(block)
    assert (len(shop.orders()), shop.decisions()) == (5, ["COMMIT"] * 5)


def test_a_message_is_handled_once(shop: Shop) -> None:
    async def handle(error: type[Exception] | None = None) -> bool:
        async with Once(shop.database, "m1", create=True) as is_new:
            await shop.database.execute("INSERT INTO orders VALUES ('17') ON CONFLICT DO NOTHING")
            if error:
                raise error
            async with shop.opened() as other:
                if is_new:
                    with pytest.raises(ConsumerError, match="the message comes again"):
                        await Once(other, "m1", create=False).__aenter__()
        return is_new

    async def block() -> list[bool]:
        with suppress(ValueError):
            await handle(ValueError)
        assert shop.orders() == []
        return [await handle(), await handle()]

    shop.run(f"DROP TABLE {TABLE}")
    assert shop.serve(block) == [True, False]
    assert shop.orders() == ["17"]


def test_a_listener_refuses_an_engine_of_asyncio(server: databases.Server) -> None:
    engine = create_async_engine(server.url().replace("://", "+psycopg://"))
    with pytest.raises(ArgumentError, match="a listener takes an ordinary engine"):
        DatabaseListener(engine)


def test_a_listener_refuses_a_pool_whose_connections_belong_to_another_loop(server: databases.Server) -> None:
    async def give() -> None:
        with pytest.raises(ArgumentError, match="a listener takes an ordinary engine"):
            DatabaseListener(asyncpg.create_pool(server.url()).acquire)

    asyncio.run(give())


def test_the_snippet_of_the_how_to_places_an_order(server: databases.Server) -> None:
    shop = Shop(server, "asyncpg")
    names: dict[str, Any] = {}
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "databases.md").read_text()
    text = page.split("### asyncpg")[1].split("```python\n")[1].split("```")[0]
    exec(text.replace("postgresql://shop@db/shop", shop.url), names)
    names["producer"] = shop.sender

    async def block() -> None:
        async with asyncpg.create_pool(shop.url, min_size=1) as pool:
            await names["place_order"](pool, "17")

    shop.serve(block)
    assert (shop.orders(), shop.decisions()) == (["17"], ["COMMIT"])
