"""Messages that end as the transaction of Django's connection does, on SQLite; the coordinator is in memory."""

from __future__ import annotations

import re
import threading
import unittest
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as searching
from hypothesis import strategies as st
from tests.support.databases import LiteDatabase

from commitlake import CommitLakeError, DatabaseListener, Message
from commitlake.clients.consumer.once import Once
from commitlake.clients.sql import is_wait_over
from commitlake.errors import ConsumerError, ProducerError
from commitlake.protocol.database_row import CREATE, HANDLED, TABLE
from commitlake.testing import Crash, Fault, InMemoryCoordinator

pytest.importorskip("django", reason="Django is not installed: pip install -e '.[dev]' -c constraints.txt")

import django
from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.db import DatabaseError, IntegrityError, OperationalError, connection, connections, models, transaction
from django.test import RequestFactory, TestCase
from django.urls import path

DEFAULT = {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {"timeout": 0.1}, "ATOMIC_REQUESTS": True}
settings.configure(DATABASES={"default": DEFAULT}, ALLOWED_HOSTS=["testserver"], ROOT_URLCONF="")
django.setup()


class Order(models.Model):  # type: ignore[misc]
    """A table of the application."""

    item = models.TextField(primary_key=True)

    class Meta:
        app_label, db_table = "shop", "orders"


class Shop(LiteDatabase):
    """A database of Django, and a coordinator with a producer."""

    def __init__(self, place: Path) -> None:
        own = f"INSERT INTO {TABLE} VALUES ('database', 'shop', 0)"
        super().__init__(place, "sqlite3", "CREATE TABLE orders (item TEXT PRIMARY KEY)", CREATE, own, timeout_s=0.1)
        connections.settings["default"]["NAME"] = str(place)
        self.lake = InMemoryCoordinator({"transaction.timeout": "10s"})
        self.producer = self.join()

    def join(self) -> Any:
        return self.lake.producer("shop", DatabaseListener(opened))

    def begin(self) -> Any:
        return self.producer.begin_transaction(database=connection)

    def place_order(self, name: str = "17") -> Message:
        """An order and its message, in a block."""
        with self.begin() as block:
            return self.order(block, name)

    def order(self, block: Any, name: str = "17") -> Message:
        Order.objects.create(item=name)
        message = Message("orders", name)
        block.send(message)
        return message

    def orders(self) -> list[str]:
        return self.column("SELECT item FROM orders ORDER BY item")

    def shown(self) -> list[str]:
        return sorted(message.body.decode() for message in self.lake.messages("orders"))

    def checked(self) -> tuple[list[str], list[str]]:
        """Orders and messages when all checks are answered."""
        self.lake.advance("10m")
        assert self.lake.pending == []
        return self.orders(), self.shown()

    def end(self, message: Message) -> tuple[str, str | None]:
        outcome = self.lake.outcome(str(message.transaction_id))
        return outcome.state, outcome.reason


def opened() -> Any:
    return connections.create_connection("default")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    with closing(shop.made), closing(connection):
        yield shop
        assert (connection.in_atomic_block, connection.savepoint_ids, connection.get_autocommit()) == (False, [], True)


def test_without_a_transaction_the_block_is_one(shop: Shop) -> None:
    with shop.begin() as block:
        message = shop.order(block)
        assert (shop.orders(), shop.shown(), connection.in_atomic_block) == ([], [], True)
    assert (shop.orders(), shop.shown(), shop.end(message)) == (["17"], ["17"], ("COMMITTED", "DIRECT"))
    with shop.producer.begin_transaction(database=connections["default"]) as block:  # the connection goes on
        shop.order(block, "18")
    assert shop.shown() == ["17", "18"]


def test_an_error_in_the_block_rolls_both_back(shop: Shop) -> None:
    with pytest.raises(ValueError, match="sold out"), shop.begin() as block:
        message = shop.order(block)
        raise ValueError("sold out")
    assert (shop.orders(), shop.end(message)) == ([], ("ROLLED_BACK", "DIRECT"))


@pytest.mark.parametrize("outer", [nullcontext, transaction.atomic])
@pytest.mark.parametrize("fault", Fault)
def test_whatever_befalls_messages_are_visible_exactly_when_the_rows_are_there(
    shop: Shop, fault: Fault, outer: Callable[[], Any]
) -> None:
    shop.producer.fault = fault
    with suppress(Crash, CommitLakeError), outer():
        shop.place_order()
    connection.close()  # as the end of a process does
    shop.join()
    orders, shown = shop.checked()
    assert orders == shown


def test_what_was_sent_within_a_transaction_ends_with_the_outermost_one(shop: Shop) -> None:
    with transaction.atomic(durable=True):
        Order.objects.create(item="16")
        with transaction.atomic():
            message = shop.place_order()
        assert shop.end(message) == ("PENDING", None)
        shop.lake.advance("15s")  # a check waits in vain, and decides nothing
        assert shop.end(message) == ("PENDING", None)
    assert (shop.orders(), shop.end(message)) == (["16", "17"], ("COMMITTED", "DIRECT"))


def test_a_transaction_that_rolls_back_after_the_block_leaves_the_answer_to_the_row(shop: Shop) -> None:
    with pytest.raises(ValueError, match="sold out"), transaction.atomic():
        message = shop.place_order()
        raise ValueError("sold out")
    assert shop.end(message) == ("PENDING", None)
    assert shop.checked() == ([], [])
    assert shop.end(message) == ("ROLLED_BACK", "CHECK")


def test_a_block_that_fails_within_a_transaction_rolls_back_what_it_has_done(shop: Shop) -> None:
    with transaction.atomic():
        kept = shop.place_order("16")
        with suppress(ValueError), shop.begin() as block:
            lost = shop.order(block)
            raise ValueError
        assert shop.end(lost) == ("ROLLED_BACK", "DIRECT")
        shop.place_order("18")
    assert (shop.checked(), shop.end(kept)[1]) == ((["16", "18"], ["16", "18"]), "DIRECT")


def by_atomic(shop: Shop) -> None:
    with suppress(ValueError), transaction.atomic():
        shop.place_order()
        raise ValueError


def by_savepoint(shop: Shop) -> None:
    savepoint = transaction.savepoint()
    shop.place_order()
    transaction.savepoint_rollback(savepoint)


def by_sql(shop: Shop) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT here")
        shop.place_order()
        cursor.execute("ROLLBACK TO here")


ROLLS_BACK = [by_atomic, by_savepoint, by_sql]


@pytest.mark.parametrize("rolled_back", ROLLS_BACK)
def test_a_block_in_a_savepoint_that_is_rolled_back_sends_no_commit(
    shop: Shop, rolled_back: Callable[[Shop], None]
) -> None:
    with transaction.atomic():
        shop.place_order("16")
        rolled_back(shop)
    assert shop.shown() == ["16"]
    assert shop.checked() == (["16"], ["16"])


@pytest.mark.parametrize("outer", [nullcontext, transaction.atomic])
def test_a_savepoint_in_the_block_in_which_a_message_was_sent(shop: Shop, outer: Callable[[], Any]) -> None:
    lost = "a savepoint of the database in which a message was sent was rolled back"
    with outer():
        with pytest.raises(ProducerError, match=lost), shop.begin() as block:
            shop.order(block, "16")
            with suppress(ValueError), transaction.atomic():
                shop.order(block)
                raise ValueError
        with shop.begin() as block, transaction.atomic():
            shop.order(block, "18")
    assert shop.checked() == (["18"], ["18"])


def test_an_error_of_the_database_that_the_block_swallows_rolls_back_all(shop: Shop) -> None:
    Order.objects.create(item="16")
    with pytest.raises(DatabaseError, match="An error occurred in the current transaction"), shop.begin() as block:
        shop.order(block)
        with suppress(IntegrityError):
            Order.objects.create(item="16")
    assert shop.checked() == (["16"], [])


def fails() -> None:
    raise ValueError("of a hook")


@pytest.mark.parametrize("end", ["COMMITTED", "ROLLED_BACK"])
@pytest.mark.parametrize("outer", [nullcontext, transaction.atomic])
def test_a_hook_of_the_application_that_raises_loses_no_message(shop: Shop, outer: Callable[[], Any], end: str) -> None:
    with pytest.raises(ValueError, match="of a hook"), outer(), shop.begin() as block:
        transaction.on_commit(fails)
        message = shop.order(block)
        if end == "ROLLED_BACK":
            fails()
    assert bool(shop.orders()) == (end == "COMMITTED")
    shop.checked()
    assert shop.end(message)[0] == end


def test_a_decision_that_is_lost_is_found_by_the_row_and_does_not_fail_other_hooks(shop: Shop) -> None:
    called = []
    shop.producer.fault = Fault.DECISION_LOST
    with transaction.atomic():
        message = shop.place_order()
        transaction.on_commit(lambda: called.append(shop.end(message)))
    assert called == [("PENDING", None)]
    shop.checked()
    assert shop.end(message) == ("COMMITTED", "CHECK")


def test_a_commit_that_the_database_refuses_rolls_both_back(shop: Shop) -> None:
    shop.sql("CREATE TABLE points (id TEXT REFERENCES orders (item) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(IntegrityError, match=r"(?i)foreign key"), shop.begin() as block:
        message = shop.order(block)
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO points VALUES ('18')")
    assert (shop.orders(), shop.end(message)) == ([], ("ROLLED_BACK", "DIRECT"))


def test_a_commit_that_raises_though_it_has_taken_effect_is_decided_by_the_row(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, inserts = connection._commit, list[bool]()

    def lost() -> None:
        monkeypatch.undo()
        commit()
        raise OperationalError("the connection was lost")

    def note(execute: Callable[..., Any], sql: str, *given: Any) -> Any:
        inserts.extend([connection.in_atomic_block] * sql.startswith(f"INSERT INTO {TABLE}"))
        return execute(sql, *given)

    monkeypatch.setattr(connections["default"], "_commit", lost)
    with pytest.raises(OperationalError), connection.execute_wrapper(note), shop.begin() as block:
        message = shop.order(block)
    assert (shop.orders(), shop.end(message)) == (["17"], ("COMMITTED", "DIRECT"))
    assert inserts == [True, True]  # the tombstone too: PostgreSQL ends a short wait with the transaction


def test_a_savepoint_that_can_not_be_released_rolls_back_its_block_only(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: str) -> None:
        monkeypatch.undo()
        raise OperationalError("refused")

    with transaction.atomic():
        shop.place_order("16")
        with pytest.raises(OperationalError), shop.begin() as block:
            message = shop.order(block)
            monkeypatch.setattr(connections["default"], "savepoint_commit", lost)
        assert shop.end(message) == ("ROLLED_BACK", "DIRECT")
    assert shop.checked() == (["16"], ["16"])


def test_while_a_hook_finds_no_database_the_message_waits_for_a_check(shop: Shop) -> None:
    called = []
    with transaction.atomic():
        transaction.on_commit(lambda: shop.sql(f"ALTER TABLE {TABLE} RENAME TO away"))
        message = shop.place_order()
        transaction.on_commit(lambda: called.append(shop.end(message)))
    shop.sql(f"ALTER TABLE away RENAME TO {TABLE}")
    assert called == [("PENDING", None)]
    shop.checked()
    assert shop.end(message) == ("COMMITTED", "CHECK")


def test_a_test_case_of_django_runs_what_would_follow_the_commit(shop: Shop) -> None:
    ends = list[Any]()

    class Case(TestCase):  # type: ignore[misc]
        def runTest(self) -> None:
            with self.captureOnCommitCallbacks(execute=True) as callbacks:
                message = shop.place_order()
                ends.append(shop.end(message)[0])
            ends.append((len(callbacks), shop.end(message)[0]))

    result = unittest.TestResult()
    unittest.TestSuite([Case()]).run(result)
    assert (result.errors, result.failures, ends) == ([], [], ["PENDING", (1, "COMMITTED")])
    assert shop.orders() == []


def test_what_can_not_be_used_is_refused_before_anything_is_sent(shop: Shop) -> None:
    others: list[Any] = []
    thread = threading.Thread(target=lambda: others.append(connections["default"]))
    thread.start()
    thread.join()
    with pytest.raises(DatabaseError, match="can only be used in that same thread"):
        shop.producer.begin_transaction(database=others[0])
    assert others[0].connection is None
    with closing(opened()) as other, pytest.raises(ProducerError, match=r"Django's `atomic` can't begin"):
        shop.producer.begin_transaction(database=other)
    transaction.set_autocommit(False)
    with pytest.raises(ProducerError, match="switch its autocommit on"):
        shop.begin()
    transaction.rollback()
    transaction.set_autocommit(True)
    with pytest.raises(ProducerError, match=r"keeps a row that was rolled back; .*create_connection"):
        DatabaseListener(lambda: connection)
    for each in (connection, connections["default"]):
        with pytest.raises(ProducerError, match=r"connect= is a connection; give a function"):
            DatabaseListener(each)
    assert shop.lake.pending == []


def test_a_transaction_does_not_end_within_an_atomic_that_began_after_it(shop: Shop) -> None:
    begun = shop.begin()
    message = Message("orders", "17")
    with suppress(ValueError), transaction.atomic():
        begun.send(message)
        with pytest.raises(ProducerError, match="end that one first"):
            begun.commit()
        raise ValueError
    assert (connection.in_atomic_block, shop.end(message)) == (True, ("PENDING", None))
    connection.close()
    connection.connect()
    assert shop.checked() == ([], [])


class Books(Shop):
    """Consumes."""

    def handle(self, name: str = "m1", **options: Any) -> bool:
        with Once(connection, name, create=False, **options) as is_new:
            if is_new:
                Order.objects.create(item=name)
        return is_new


@pytest.fixture
def books(shop: Shop) -> Books:
    shop.__class__ = Books
    assert isinstance(shop, Books)
    return shop


def test_a_message_has_its_effect_once(books: Books) -> None:
    assert [books.handle(), books.handle(), books.handle("m2")] == [True, False, True]
    with pytest.raises(ValueError, match="of a hook"), Once(connection, "m3", create=False):
        Order.objects.create(item="m3")
        fails()
    with Once(connection, "m1", create=False) as is_new:
        Order.objects.create(item="m3")
    assert not is_new
    assert books.orders() == ["m1", "m2"]
    assert books.column(f"SELECT state FROM {TABLE} WHERE id <> 'database'") == [HANDLED, HANDLED]


def test_a_wait_for_another_block_is_known_by_the_error_of_the_driver() -> None:
    error = OperationalError("canceling statement due to lock timeout")
    error.__cause__ = type("LockNotAvailable", (Exception,), {"sqlstate": "55P03"})()
    assert is_wait_over(error)
    assert not is_wait_over(OperationalError("no such table"))


def test_an_effect_has_a_transaction_of_its_own_and_makes_its_table(books: Books) -> None:
    with transaction.atomic(), pytest.raises(ConsumerError, match="is in a transaction"):
        books.handle()
    books.sql(f"DROP TABLE {TABLE}")
    with pytest.raises(ProducerError, match="CREATE TABLE"):
        books.handle()
    with Once(connection, "m1", create=True) as is_new:
        assert is_new
    assert not books.handle()


def test_the_view_of_the_how_to_sends_with_its_request(shop: Shop) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "databases.md").read_text()
    text = next(each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "django" in each)
    kafka = ', bootstrap_servers="127.0.0.1:19092"'
    assert kafka in text
    names: dict[str, Any] = {"lake": shop.lake, "Order": Order, "__name__": "views"}
    exec(text.replace(" TransactionalProducer(", " lake.producer(").replace(kafka, ""), names)

    def failing(request: Any) -> None:
        names["place_order"](request)
        fails()

    assert (status(failing), shop.orders()) == (500, [])
    assert (status(names["place_order"]), shop.orders(), shop.shown()) == (200, ["17"], ["17"])


def status(view: Callable[[Any], Any]) -> int:
    """Of the answer to a request, which has a transaction by `ATOMIC_REQUESTS`."""
    request = RequestFactory().post("/", {"item": "17"})
    request.urlconf = (path("", view),)
    handler = BaseHandler()
    handler.load_middleware()
    return int(handler.get_response(request).status_code)


class Program:
    """A random program of nested transactions; each write has a message, and is in a block."""

    def __init__(self, shop: Shop, draw: Callable[[Any], Any]) -> None:
        self.shop, self.draw, self.written = shop, draw, 0

    def run(self, depth: int = 0, block: Any = None) -> None:
        for _ in range(self.draw(st.integers(1, 3))):
            kinds: list[Callable[[int, Any], None]] = [self.atomic, self.block, self.savepoint] if depth < 4 else []
            if block:
                kinds += [self.write, self.write, self.swallow]
            if kinds:
                self.draw(st.sampled_from(kinds))(depth + 1, block)

    def write(self, _: int, block: Any) -> None:
        self.written += 1
        self.shop.producer.fault = self.draw(st.sampled_from([None, None, None, Fault.KAFKA_AWAY, Fault.DECISION_LOST]))
        self.shop.order(block, str(self.written))
        if self.draw(st.integers(0, 9)) == 0:
            transaction.on_commit(fails)

    def swallow(self, _: int, __: Any) -> None:
        """Errors after which PostgreSQL, and Django, take no more statements."""
        with suppress(DatabaseError), connection.cursor() as cursor:
            cursor.execute("SELECT nothing")
        with suppress(ValueError), transaction.mark_for_rollback_on_error():
            fails()

    def atomic(self, depth: int, block: Any) -> None:
        with suppress(*self.swallowed()), transaction.atomic(savepoint=self.draw(st.booleans())):
            self.run(depth, block)
            self.may_fail()

    def block(self, depth: int, _: Any) -> None:
        with suppress(*self.swallowed()), self.shop.begin() as begun:
            self.run(depth, begun)
            self.may_fail()

    def savepoint(self, depth: int, block: Any) -> None:
        savepoint = transaction.savepoint()
        self.run(depth, block)
        if savepoint and self.draw(st.booleans()):
            transaction.savepoint_rollback(savepoint)

    def swallowed(self) -> list[type[Exception]]:
        return [ValueError, CommitLakeError, DatabaseError] if self.draw(st.booleans()) else []

    def may_fail(self) -> None:
        if self.draw(st.integers(0, 3)) == 0:
            fails()


@searching(max_examples=50, deadline=None)
@given(data=st.data())
def test_in_no_nesting_of_transactions_a_message_ends_otherwise_than_its_rows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    shop = Shop(tmp_path_factory.mktemp("random") / "shop.db")
    with closing(shop.made), closing(connection):
        with suppress(ValueError, CommitLakeError, DatabaseError):
            Program(shop, data.draw).run()
        assert (connection.in_atomic_block, connection.get_autocommit()) == (False, True)
        assert set(shop.shown()) <= set(shop.orders())
        orders, shown = shop.checked()
        assert orders == shown
