"""`async with producer.begin_transaction(database=...)`: SQLAlchemy's asynchronous sessions and connections, SQLite."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from tests.support.databases import LiteDatabase
from tests.support.memory_kafka import Kafka, producer

from commitlake import AsyncTransactionMQProducer, DatabaseListener, LocalTransactionState, Message, MessageExt
from commitlake.errors import FailedSendError, ProducerError
from commitlake.protocol.clock import now_ms
from commitlake.protocol.database_row import COMMITTED, NAME, REVOKED, TABLE
from commitlake.testing.codecs import decode_op

ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE


class Shop(LiteDatabase):
    """A database, an asynchronous session or connection to it, and a producer."""

    def __init__(self, place: Path, kind: str) -> None:
        super().__init__(place, "sqlite3", "CREATE TABLE orders (id TEXT)", timeout_s=0.1)
        self.kind, self.kafka = kind, Kafka()
        self.listener = DatabaseListener(self.connect, create=True)
        self.sender: AsyncTransactionMQProducer
        self.database: Any

    def serve(self, block: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async def served() -> Any:
            async with self.opened():
                return await block()

        return asyncio.run(served())

    @asynccontextmanager
    async def opened(self, **options: Any) -> AsyncIterator[None]:
        self.sender = producer(self.kafka, self.listener, threads=4)
        engine = create_async_engine(f"sqlite+aiosqlite:///{self.place}", **options)
        self.database = AsyncSession(engine) if self.kind == "session" else await engine.connect()
        await self.sender.start()
        try:
            yield
        finally:
            await self.database.close()
            await engine.dispose()
            await self.sender.shutdown(1)

    async def order(self, name: str = "17") -> None:
        await self.database.execute(text(f"INSERT INTO orders VALUES ('{name}')"))

    def begin(self) -> Any:
        return self.sender.begin_transaction(database=self.database)

    def orders(self) -> list[str]:
        return self.column("SELECT id FROM orders ORDER BY id")

    def states(self) -> list[str]:
        return self.column(f"SELECT state FROM {TABLE} WHERE id <> 'database'")

    def decisions(self) -> list[str]:
        return [decode_op(op).decision for op in self.kafka.sent("op")]  # type: ignore[union-attr]


@pytest.fixture(params=["session", "connection"])
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db", request.param)
    with closing(shop.made):
        yield shop


def test_rows_and_messages_commit_together(shop: Shop) -> None:
    async def block() -> None:
        async with shop.begin() as transaction:
            await shop.order()
            await asyncio.gather(*(transaction.send(Message("orders", body)) for body in ("a", "b")))
            assert (shop.orders(), shop.decisions()) == ([], [])
        async with shop.begin() as transaction:  # the connection goes on
            await transaction.send(Message("orders", "c"))

    shop.serve(block)
    assert (shop.orders(), shop.states()) == (["17"], [COMMITTED] * 2)
    assert (sorted(shop.kafka.sent("half")), shop.decisions()) == ([b"a", b"b", b"c"], ["COMMIT"] * 2)


def test_an_error_rolls_both_back_and_so_does_a_cancelled_block(shop: Shop) -> None:
    async def failing() -> None:
        async with shop.begin() as transaction:
            await shop.order()
            await transaction.send(Message("orders", "a"))
            raise ValueError("sold out")

    async def cancelled() -> None:
        waits = asyncio.Event()

        async def order() -> None:
            async with shop.begin() as transaction:
                await shop.order()
                await transaction.send(Message("orders", "a"))
                waits.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(order())
        await waits.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with pytest.raises(ValueError, match="sold out"):
        shop.serve(failing)
    shop.serve(cancelled)
    assert (shop.orders(), shop.states(), shop.decisions()) == ([], [], ["ROLLBACK"] * 2)


def test_a_cancel_while_the_block_commits_leaves_rows_and_messages_of_one_mind(shop: Shop) -> None:
    """The session of the cancelled task is closed at once, and must not be while it commits."""

    async def order(steps: int) -> None:
        async def place() -> None:
            async with shop.begin() as transaction:
                await shop.order(str(steps))
                await transaction.send(Message("orders", str(steps)))

        task = asyncio.create_task(place())
        while not shop.kafka.sent("half"):
            await asyncio.sleep(0)
        for _ in range(steps):  # to each step of the commit
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    for steps in range(0, 60, 3):
        shop.kafka.records.clear()
        shop.serve(lambda steps=steps: order(steps))  # type: ignore[misc]
        assert shop.decisions() == ["COMMIT" if str(steps) in shop.orders() else "ROLLBACK"]


def test_a_block_that_ends_after_a_shutdown_ends_its_transaction(shop: Shop) -> None:
    async def block() -> None:
        for fails in (True, False):
            with suppress(ValueError):
                async with shop.begin() as transaction:
                    await shop.order(str(fails))
                    await transaction.send(Message("orders", str(fails)))
                    await shop.sender.shutdown(1)
                    if fails:
                        raise ValueError
            await shop.sender.start()

    shop.serve(block)
    assert (shop.orders(), shop.states()) == (["False"], [COMMITTED])


def test_a_savepoint_with_a_message_that_is_rolled_back_rolls_back_all(shop: Shop) -> None:
    async def block() -> None:
        async with shop.begin() as transaction:
            await shop.order("kept")
            savepoint = await shop.database.begin_nested()
            await shop.order("lost")
            await transaction.send(Message("orders", "a"))
            await savepoint.rollback()

    with pytest.raises(ProducerError, match="a savepoint of the database"):
        shop.serve(block)
    assert (shop.orders(), shop.decisions()) == ([], ["ROLLBACK"])


def test_what_a_check_has_revoked_can_not_commit(shop: Shop) -> None:
    """The block has committed in its middle, so its row is open for all to see."""

    async def block() -> None:
        async with shop.begin() as transaction:
            await transaction.send(Message("orders", "a"))
            await shop.database.commit()
            await asyncio.to_thread(check, shop)

    def check(shop: Shop) -> None:
        (name,) = shop.column(f"SELECT id FROM {TABLE} WHERE id <> 'database'")
        (own,) = shop.column(f"SELECT state FROM {TABLE} WHERE id = 'database'")
        asked = MessageExt(topic="orders", body=b"a", half_queue=0, half_offset=0, born_timestamp=None,
                           store_timestamp=now_ms(), check_times=1, check_id="0-0-0-1",
                           properties={NAME: f"{own}/{name}"})  # fmt: skip
        assert shop.listener.check_local_transaction(asked) is ROLLBACK

    with pytest.raises(ProducerError, match="has lost its rows"):
        shop.serve(block)
    assert (shop.states(), shop.decisions()) == ([REVOKED], ["ROLLBACK"])


def test_what_can_not_be_used_is_refused_before_anything_is_sent(shop: Shop, tmp_path: Path) -> None:
    async def other_kinds() -> None:
        for given in (shop.connect(), object(), shop.database.sync_session if shop.kind == "session" else 7):
            with pytest.raises(ProducerError, match="AsyncSession or an AsyncConnection"):
                shop.sender.begin_transaction(database=given)
        with pytest.raises(ProducerError, match="finds only transactions that have a row"):
            shop.sender.begin_transaction()
        begun = shop.begin()
        with pytest.raises(ProducerError, match="use it as `async with`"):
            await begun.send(Message("orders", "a"))

    async def other_listener() -> None:
        shop.sender.set_transaction_listener(type("Own", (), {"check_local_transaction": print})())
        with pytest.raises(ProducerError, match="needs a listener that looks at its rows"):
            await shop.begin().__aenter__()

    async def autocommit() -> None:
        async with shop.opened(isolation_level="AUTOCOMMIT"):
            with pytest.raises(ProducerError, match="autocommit"):
                await shop.begin().__aenter__()

    shop.serve(other_kinds)
    shop.serve(other_listener)
    asyncio.run(autocommit())
    assert shop.kafka.records == []


def test_a_send_that_fails_sends_nothing_and_the_block_goes_on(shop: Shop) -> None:
    async def block() -> None:
        async with shop.begin() as transaction:
            await shop.order()
            with pytest.raises(FailedSendError):
                await transaction.send(Message("orders", b"x" * 10_000_000))
            await transaction.send(Message("orders", "a"))

    shop.serve(block)
    assert (shop.orders(), shop.kafka.sent("half"), shop.decisions()) == (["17"], [b"a"], ["COMMIT"])


class Example:
    """The how-to's snippets for asyncio, in a directory with their database."""

    def __init__(self) -> None:
        with closing(sqlite3.connect("shop.db")) as database:
            database.execute("CREATE TABLE orders (item TEXT)")
        page = (Path(__file__).parents[2] / "docs" / "how-to" / "databases.md").read_text()
        self._snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        self.names: dict[str, Any] = {}
        self.run("AsyncSession")
        self.kafka = Kafka()
        self.names["producer"] = producer(self.kafka, self.names["listener"])

    def run(self, word: str) -> None:
        exec(next(text for text in self._snippets if word in text), self.names)

    def placed(self) -> tuple[list[Any], list[Any], int]:
        with closing(sqlite3.connect("shop.db")) as database:
            rows = [row[0] for row in database.execute("SELECT item FROM orders")]
        return rows, self.kafka.sent("half"), len(self.kafka.sent("op"))


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    monkeypatch.chdir(tmp_path)
    return Example()


def test_the_snippet_of_the_how_to_places_an_order(example: Example) -> None:
    asyncio.run(example.names["main"]())
    assert example.placed() == (["three espressos"], [b"three espressos"], 1)


def test_the_snippet_for_fastapi_places_an_order_in_a_request(example: Example) -> None:
    pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install -e '.[dev]' -c constraints.txt")
    example.run("FastAPI")
    app, sent = example.names["app"], []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def request() -> None:
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/orders/tea", "root_path": "",
                 "scheme": "http", "query_string": b"", "headers": [], "server": ("shop", 80)}  # fmt: skip
        async with app.router.lifespan_context(app):
            await app(scope, receive, send)

    asyncio.run(request())
    assert sent[0]["status"] == 200
    assert example.placed() == (["tea"], [b"tea"], 1)
