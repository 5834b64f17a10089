"""`message.once`: a message that comes again has its effect in a database once. SQLite, by each kind of connection."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from tests.support.databases import KINDS, LiteDatabase
from tests.support.topic_table import consumer, message, write

from commitlake import DatabaseListener
from commitlake.clients.consumer.message import ReceivedMessage
from commitlake.clients.consumer.once import Once, row_id
from commitlake.errors import ArgumentError, ConsumerError, ProducerError
from commitlake.protocol.database_row import CREATE, DATABASE, HANDLED, HANDLING, TABLE


class Books(LiteDatabase):
    """A database of points, and a connection of some kind to it."""

    def __init__(self, place: Path, kind: str = "sqlite3", *, has_table: bool = True) -> None:
        own = [CREATE, f"INSERT INTO {TABLE} VALUES ('{DATABASE}', 'books', 0)"] if has_table else []
        super().__init__(place, kind, "CREATE TABLE points (keys TEXT)", *own, timeout_s=5)

    def book(self, keys: str = "k1") -> None:
        self.run(f"INSERT INTO points VALUES ('{keys}')")

    def handle(self, name: str = "m1") -> bool:
        with Once(self.made, name, create=False) as is_new:
            if is_new:
                self.book()
        return is_new

    def booked(self) -> list[str]:
        return self.column("SELECT keys FROM points ORDER BY keys")

    def states(self) -> list[str]:
        return self.column(f"SELECT state FROM {TABLE} WHERE id <> '{DATABASE}'")


@pytest.fixture(params=KINDS)
def books(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Books]:
    made = Books(tmp_path / "books.db", request.param)
    with closing(made.made):
        yield made


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Books]:
    made = Books(tmp_path / "books.db")
    with closing(made.made):
        yield made


def test_a_message_that_comes_again_has_its_effect_once(books: Books) -> None:
    assert [books.handle(), books.handle(), books.handle("m2")] == [True, False, True]
    assert books.booked() == ["k1", "k1"]


def test_an_error_in_the_block_leaves_nothing_so_the_next_attempt_is_new(books: Books) -> None:
    with pytest.raises(ValueError, match="no such customer"), Once(books.made, "m1", create=False):
        books.book()
        raise ValueError("no such customer")
    assert (books.booked(), books.states()) == ([], [])
    assert books.handle()


def test_what_a_block_does_for_a_message_that_was_handled_is_rolled_back(books: Books) -> None:
    books.handle()
    with Once(books.made, "m1", create=False):  # it does not look whether the message is new
        books.book("again")
    assert books.booked() == ["k1"]


def test_a_connection_in_a_transaction_is_refused_and_stays_as_it_is(books: Books) -> None:
    books.book("earlier")
    with pytest.raises(ConsumerError, match="is in a transaction"), Once(books.made, "m1", create=False):
        pass
    books.made.commit()
    assert (books.booked(), books.states()) == (["earlier"], [])


def test_a_block_that_rolls_back_in_its_middle_is_an_error(books: Books) -> None:
    with pytest.raises(ConsumerError, match="has rolled back"), Once(books.made, "m1", create=False):
        books.book("first")
        books.made.rollback()
        books.book("second")
    assert (books.booked(), books.states()) == ([], [])


def test_a_block_that_commits_in_its_middle_and_ends_is_handled(books: Books) -> None:
    with Once(books.made, "m1", create=False):
        books.book("first")
        books.made.commit()
        books.book("second")
    assert (books.booked(), books.handle()) == (["first", "second"], False)


def test_a_block_that_committed_in_its_middle_and_died_is_neither_repeated_nor_taken_for_handled(books: Books) -> None:
    with suppress(ValueError), Once(books.made, "m1", create=False):
        books.book("first")
        books.made.commit()
        raise ValueError
    for _ in range(2):
        with pytest.raises(ConsumerError, match=r"committed in its middle.*delete the row"):
            books.handle()
    assert (books.booked(), books.states()) == (["first"], [HANDLING])
    books.sql(f"DELETE FROM {TABLE} WHERE id = 'm1'")
    assert books.handle()


def test_the_error_of_another_constraint_is_not_taken_for_a_message_that_was_handled(books: Books) -> None:
    books.sql("CREATE UNIQUE INDEX once ON points (keys)")
    books.handle()
    for _ in range(2):
        with pytest.raises(Exception, match="UNIQUE"):
            books.handle("m2")
    assert books.booked() == ["k1"]
    books.sql(f"DROP INDEX once; CREATE TRIGGER no BEFORE INSERT ON {TABLE} BEGIN SELECT RAISE(ABORT, 'never'); END")
    with pytest.raises(Exception, match="never"):
        books.handle("m3")


def test_of_two_instances_with_the_message_the_second_waits_and_finds_it_handled(plain: Books) -> None:
    found: list[bool] = []

    def second() -> None:
        with closing(plain.connect()) as database, Once(database, "m1", create=False) as is_new:
            found.append(is_new)

    other = threading.Thread(target=second)
    with Once(plain.made, "m1", create=False):
        other.start()
        plain.book()
        assert not found
    other.join(10)
    assert (found, plain.booked()) == ([False], ["k1"])


def test_an_outage_is_told_as_what_it_is_and_not_as_a_missing_table(tmp_path: Path) -> None:
    books = Books(tmp_path / "books.db")
    with closing(sqlite3.connect(books.place, timeout=0)) as busy, closing(sqlite3.connect(books.place)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for create in (False, True):
            with pytest.raises(sqlite3.OperationalError, match="locked"), Once(busy, "m1", create=create):
                pass
    books.made.close()


def test_rows_of_blocks_that_did_not_end_are_not_tidied(plain: Books) -> None:
    plain.sql(f"INSERT INTO {TABLE} VALUES ('m1', '{HANDLING}', 1), ('m2', '{HANDLED}', 1)")
    assert DatabaseListener(plain.connect).tidy() == 1
    assert plain.states() == [HANDLING]


def test_autocommit_and_other_objects_are_refused(plain: Books) -> None:
    with closing(sqlite3.connect(plain.place, isolation_level=None)) as database:
        for made, told in [(database, "autocommit"), (object(), "allowed are")]:
            with pytest.raises(ProducerError, match=told), Once(made, "m1", create=True):
                pass
    assert plain.states() == []


def test_a_missing_table_is_an_error_with_its_sql_or_is_made(tmp_path: Path) -> None:
    books = Books(tmp_path / "books.db", has_table=False)
    with closing(books.made):
        with pytest.raises(ProducerError, match=f"CREATE TABLE {TABLE}"):
            books.handle()
        for is_new in (True, False):
            with Once(books.made, "m1", create=True) as found:
                assert found is is_new
    assert HANDLED in books.states()


def test_two_that_make_the_table_at_once_both_find_it(tmp_path: Path) -> None:
    books = Books(tmp_path / "books.db", has_table=False)
    books.made.close()
    begin, failures = threading.Barrier(4), []

    def handle(number: int) -> None:
        try:
            with closing(books.connect()) as database:
                begin.wait()
                with Once(database, f"m{number}", create=True):
                    pass
        except Exception as error:  # shown by the assertion
            failures.append(error)

    threads = [threading.Thread(target=handle, args=[number]) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (failures, books.states().count(HANDLED)) == ([], 4)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["before", "within", "after", "none"]), max_size=8))
def test_whenever_deliveries_crash_the_effect_is_there_once_when_one_has_ended(
    tmp_path_factory: pytest.TempPathFactory, crashes: list[str]
) -> None:
    books = Books(tmp_path_factory.mktemp("crashes") / "books.db")
    for crash in [*crashes, "none"]:
        with closing(books.connect()) as books.made:  # a process that ends closes its connections
            found = Once(books.made, "m1", create=False)
            if crash != "before" and found.__enter__():
                books.book()
            if crash in ("after", "none"):
                found.__exit__(None, None, None)
    assert (books.booked(), books.states()) == (["k1"], [HANDLED])


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_in_asyncio_too_a_message_has_its_effect_once(plain: Books, kind: str) -> None:
    """Also after an error, and after a task that is cancelled in its block."""

    async def handle(database: Any, ends: Callable[[], Awaitable[None]] | None = None) -> bool:
        async with Once(database, "m1", create=False) as is_new:
            await database.execute(text("INSERT INTO points VALUES ('k1')"))
            if ends:
                await ends()
        return is_new

    async def fails() -> None:
        raise ValueError(kind)

    async def stays(reached: asyncio.Event) -> None:
        reached.set()
        await asyncio.sleep(60)

    async def serve() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{plain.place}")
        async with AsyncSession(engine) if kind == "session" else engine.connect() as database:
            with pytest.raises(ValueError, match=kind):
                await handle(database, fails)
            reached = asyncio.Event()
            task = asyncio.create_task(handle(database, lambda: stays(reached)))
            await reached.wait()
            task.cancel()
            await asyncio.wait([task])
            assert [await handle(database) for _ in range(2)] == [True, False]
            with pytest.raises(ArgumentError, match="none of asyncio's"), Once(database, "m2", create=False):
                pass
        await engine.dispose()
        with pytest.raises(ArgumentError, match="AsyncSession or an AsyncConnection"):
            await handle(plain.made)

    asyncio.run(serve())
    assert (plain.booked(), plain.states()) == (["k1"], [HANDLED])


def received(warehouse: Path, **arguments: Any) -> list[ReceivedMessage]:
    with consumer(warehouse, follow=False, **arguments) as messages:
        return list(messages)


def test_a_message_is_once_by_group_place_and_id(tmp_path: Path) -> None:
    """In a new warehouse messages have the places of others before; their ids tell them apart."""
    books, old, new = Books(tmp_path / "books.db"), tmp_path / "old", tmp_path / "new"
    write(old, "orders", [message(1, batch=0), message(2, batch=0)])
    write(new, "orders", [message(1, batch=0, message_id="other")])
    found = [*received(old), *received(old), *received(old, group="mail"), *received(new)]
    with closing(books.made):
        for each in found:
            with each.once(books.made) as is_new:
                if is_new:
                    books.book(f"{each.topic} {each.position} {each.message_id}")
    first, second = "orders half-0-1-0 m1", "orders half-0-2-0 m2"
    assert books.booked() == sorted([first, second, first, second, "orders half-0-1-0 other"])


def test_the_snippet_of_the_how_to_books_each_message_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "warehouse", "orders", [message(1, batch=0), message(2)])
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "consume.md").read_text()
    snippet = next(text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if ".once(" in text)
    exec(snippet, {})
    exec(snippet.replace('group="points"', 'group="points", start="first"'), {})
    with closing(sqlite3.connect("points.db")) as database:
        assert database.execute("SELECT customer FROM points").fetchall() == [("k1",), ("k2",)]


def test_a_name_of_any_length_and_any_text_has_a_row() -> None:
    assert len(row_id("g" * 255, "t" * 249, "half-0-1-0", "\udcff")) == 64
    assert row_id("a", "bc") != row_id("ab", "c")
