"""Messages that end as a transaction of any database does, by a row: SQLite's here; the coordinator is in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import DeclarativeBase, Session, scoped_session, sessionmaker
from tests.support import savepoints
from tests.support.databases import KINDS, LiteDatabase

from commitlake import (
    COMMIT,
    CommitLakeError,
    DatabaseListener,
    LocalTransactionState,
    Message,
    MessageExt,
    TransactionListener,
)
from commitlake.clients.proof_rows import ProofRows
from commitlake.errors import ArgumentError, ProducerError, RecordError, UncertainSendError
from commitlake.protocol.clock import now_ms
from commitlake.protocol.database_row import COMMITTED, CREATE, NAME, REVOKED, TABLE, decision_of, row_name_of
from commitlake.protocol.durations import DAY_MS
from commitlake.protocol.wire import Settings
from commitlake.testing import Crash, Fault, InMemoryCoordinator
from commitlake.testing.producer import InMemoryProducer

GROUP = "shop"


class Shop(LiteDatabase):
    """A database, a connection of some kind to it, and a coordinator with a producer."""

    def __init__(self, place: Path, kind: str = "sqlite3") -> None:
        own = f"INSERT INTO {TABLE} VALUES ('database', 'shop', 0)"
        super().__init__(place, kind, "CREATE TABLE orders (id TEXT PRIMARY KEY)", CREATE, own, timeout_s=0.1)
        self.lake = InMemoryCoordinator({"transaction.timeout": "10s"})
        self.producer = self.join()

    def join(self, **options: Any) -> InMemoryProducer:
        return self.lake.producer(GROUP, DatabaseListener(self.connect, **options))

    def order(self, name: str = "17") -> None:
        self.run(f"INSERT INTO orders VALUES ('{name}')")

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """One of SQLAlchemy's own, or by SQL."""
        if not isinstance(self.made, sqlite3.Connection):
            with self.made.begin_nested():
                yield
            return
        self.run("SAVEPOINT here")
        try:
            yield
        except Exception:
            self.run("ROLLBACK TO here")
            raise
        self.run("RELEASE here")

    def begin(self) -> Any:
        return self.producer.begin_transaction(database=self.made)

    def orders(self) -> list[str]:
        return self.column("SELECT id FROM orders ORDER BY id")

    def shown(self) -> list[bytes]:
        return [message.body for message in self.lake.messages("orders")]

    def state(self, message: Message) -> str:
        return self.lake.outcome(str(message.transaction_id)).state


@pytest.fixture(params=KINDS)
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = Shop(tmp_path / "shop.db", request.param)
    with closing(made.made):
        yield made


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "shop.db")
    with closing(made.made):
        yield made


def test_messages_become_visible_with_the_rows_of_the_block(shop: Shop) -> None:
    with shop.begin() as transaction:
        shop.order()
        transaction.send(Message("orders", "a book"))
        transaction.send(Message("orders", "two points"))
        assert (shop.orders(), shop.shown()) == ([], [])
    assert (shop.orders(), shop.shown()) == (["17"], [b"a book", b"two points"])
    with shop.begin() as transaction:  # the connection goes on
        transaction.send(Message("orders", "later"))
    assert shop.shown()[2:] == [b"later"]


def test_an_error_in_the_block_rolls_both_back(shop: Shop) -> None:
    message = Message("orders", "a book")
    with pytest.raises(ValueError, match="sold out"), shop.begin() as transaction:
        shop.order()
        transaction.send(message)
        raise ValueError("sold out")
    assert (shop.orders(), shop.state(message)) == ([], "ROLLED_BACK")


@pytest.mark.parametrize("fault", Fault)
def test_whatever_befalls_messages_are_visible_exactly_when_the_rows_are_there(shop: Shop, fault: Fault) -> None:
    shop.producer.fault = fault
    with suppress(Crash, CommitLakeError), shop.begin() as transaction:
        shop.order()
        transaction.send(Message("orders", "a book"))
    shop.made.close()  # as the end of a process does
    shop.join()
    shop.lake.advance("10m")
    assert shop.shown() == [b"a book"] * len(shop.orders())
    assert shop.lake.pending == []


def test_a_check_of_an_open_transaction_decides_nothing_and_blocks_it_for_a_moment_only(shop: Shop) -> None:
    message = Message("orders", "a book")
    with shop.begin() as transaction:
        shop.order()
        transaction.send(message)
        shop.lake.advance("15s")  # SQLite has one writer: the check waits 0.1 s, and answers UNKNOW
        assert shop.lake.outcome(str(message.transaction_id)).checks == 1
        assert shop.state(message) == "PENDING"
    assert (shop.orders(), shop.state(message)) == (["17"], "COMMITTED")


def test_what_a_check_has_revoked_can_never_commit(shop: Shop) -> None:
    message = Message("orders", "a book")
    with pytest.raises(ProducerError, match="has lost its rows"), shop.begin() as transaction:
        shop.order()
        transaction.send(message)
        shop.made.rollback()  # the row is gone
        shop.lake.advance("15s")
        assert shop.state(message) == "ROLLED_BACK"
        shop.order()
        transaction.send(Message("orders", "again"))
    assert (shop.orders(), shop.shown()) == ([], [])


@pytest.mark.parametrize("end", ["commits", "raises", "dies"])
def test_messages_end_as_the_last_transaction_of_a_block_that_commits_before(shop: Shop, end: str) -> None:
    with suppress(ValueError, Crash), shop.begin() as transaction:
        shop.order("1")
        transaction.send(Message("orders", "first"))
        shop.made.commit()
        shop.order("2")
        transaction.send(Message("orders", "second"))
        if end == "raises":
            raise ValueError
        if end == "dies":
            shop.producer.crash()
    shop.made.close()
    shop.join()
    shop.lake.advance("10m")
    found = (shop.orders(), shop.shown())
    assert found == ((["1", "2"], [b"first", b"second"]) if end == "commits" else (["1"], []))
    assert shop.lake.pending == []


def test_what_a_check_has_revoked_in_the_middle_of_a_block_is_told_at_its_end(shop: Shop) -> None:
    with (
        pytest.raises(ProducerError, match=r"revoked|has lost its rows"),
        shop.begin() as transaction,
    ):
        transaction.send(Message("orders", "first"))
        shop.made.commit()
        shop.lake.advance("15s")
        shop.order()
    assert (shop.orders(), shop.shown()) == ([], [])


@pytest.mark.parametrize(("steps", "error"), savepoints.EVERY_ORDER)
def test_messages_end_as_their_rows_in_every_order_of_block_savepoint_and_send(
    shop: Shop, steps: savepoints.Steps, error: str | None
) -> None:
    expected = nullcontext() if error is None else pytest.raises((ValueError, ProducerError), match=error)
    with expected, shop.begin() as transaction:
        steps(shop, lambda topic="orders": transaction.send(Message(topic, "a book")))
    assert shop.orders() == ([] if error else ["17"])
    assert bool(shop.shown()) == (error is None)
    assert shop.lake.pending == []


@pytest.mark.parametrize("fault", [Fault.UNACKNOWLEDGED, Fault.LOST])
def test_a_send_without_acknowledgement_that_the_block_swallows_rolls_both_back(plain: Shop, fault: Fault) -> None:
    plain.producer.fault = fault
    with pytest.raises(ProducerError, match="may or may not be in Kafka"), plain.begin() as transaction:
        plain.order()
        with suppress(UncertainSendError):
            transaction.send(Message("orders", "a book"))
    assert (plain.orders(), plain.shown()) == ([], [])


def test_a_block_without_messages_ends_the_database_alone(shop: Shop) -> None:
    with shop.begin():
        shop.order()
    with suppress(ValueError), shop.begin():
        shop.order("18")
        raise ValueError
    assert shop.orders() == ["17"]


def test_a_transaction_of_sqlalchemy_s_own_around_the_block(plain: Shop) -> None:
    engine = create_engine(f"sqlite:///{plain.place}")
    with engine.begin() as connection, plain.producer.begin_transaction(database=connection) as transaction:
        connection.execute(text("INSERT INTO orders VALUES ('17')"))
        transaction.send(Message("orders", "a book"))
    with (  # SQLAlchemy itself refuses one within
        pytest.raises(InvalidRequestError),
        engine.connect() as connection,
        plain.producer.begin_transaction(database=connection),
        connection.begin(),
    ):
        pass
    assert (plain.orders(), plain.shown()) == (["17"], [b"a book"])


@pytest.mark.parametrize(
    ("state", "end"), [(COMMITTED, "COMMITTED"), (REVOKED, "ROLLED_BACK"), ("OPEN 1", "ROLLED_BACK")]
)
def test_a_row_that_is_there_when_the_tombstone_comes_decides(
    plain: Shop, monkeypatch: pytest.MonkeyPatch, state: str, end: str
) -> None:
    message, insert = checked(plain), ProofRows.insert

    def late(rows: ProofRows, name: str, _: str) -> None:
        plain.sql(f"INSERT INTO {TABLE} VALUES ('{name}', '{state}', 0)")
        insert(rows, name, REVOKED)

    monkeypatch.setattr(ProofRows, "insert", late)
    plain.lake.advance("15s")
    assert plain.state(message) == end


def checked(shop: Shop) -> Message:
    """A message whose process died after its half message."""
    message = Message("orders", "a book")
    shop.producer.fault = Fault.CRASH_AFTER_HALF
    with suppress(Crash), shop.begin() as transaction:
        transaction.send(message)
    shop.made.close()
    shop.join()
    return message


def test_another_database_is_not_believed(plain: Shop, caplog: pytest.LogCaptureFixture) -> None:
    message = checked(plain)
    plain.sql(f"UPDATE {TABLE} SET state = 'copy' WHERE id = 'database'")
    plain.lake.advance("20s")
    assert plain.state(message) == "PENDING"
    assert "its row is in the database shop, and this one is copy" in caplog.text
    plain.sql(f"UPDATE {TABLE} SET state = 'shop' WHERE id = 'database'")
    plain.lake.advance("10m")
    assert plain.state(message) == "ROLLED_BACK"


def test_while_a_database_is_away_nothing_is_answered_so_nothing_is_discarded(plain: Shop) -> None:
    message = checked(plain)
    plain.place.rename(plain.place.with_name("away"))
    plain.lake.advance("5h")
    assert plain.state(message) == "PENDING"
    plain.place.unlink()  # SQLite has made an empty one
    plain.place.with_name("away").rename(plain.place)
    plain.lake.advance("2h")
    assert plain.state(message) == "ROLLED_BACK"


def test_rows_go_a_day_after_their_age_and_older_checks_get_no_decision(plain: Shop) -> None:
    for name, days in (("old", 32), ("young", 30.5)):
        plain.sql(f"INSERT INTO {TABLE} VALUES ('{name}', '{REVOKED}', {now_ms() - int(days * DAY_MS)})")
    assert DatabaseListener(plain.connect).tidy() == 1
    with closing(plain.connect()) as connection:
        assert {row[0] for row in connection.execute(f"SELECT id FROM {TABLE}")} == {"database", "young"}
    plain.lake.now -= 31 * DAY_MS
    message = checked(plain)
    plain.lake.advance("20s")
    assert plain.state(message) == "PENDING"


def test_the_table_is_made_once_and_a_missing_one_is_an_error_with_its_sql(tmp_path: Path) -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "new.db")

    with pytest.raises(ProducerError, match=r"no such table.*CREATE TABLE commitlake_transactions"):
        DatabaseListener(connect)
    for _ in range(2):
        DatabaseListener(connect, create=True)
    engine = create_engine(f"sqlite:///{tmp_path / 'new.db'}")
    DatabaseListener(engine)
    DatabaseListener(engine, create=True)
    with closing(connect()) as connection:
        assert connection.execute(f"SELECT count(*), max(length(state)) FROM {TABLE}").fetchall() == [(1, 32)]


def test_a_table_that_has_lost_its_key_is_refused(plain: Shop) -> None:
    """As by a copy: a tombstone would go in beside the row."""
    plain.sql(f"CREATE TABLE copy AS SELECT * FROM {TABLE}; DROP TABLE {TABLE}; ALTER TABLE copy RENAME TO {TABLE}")
    for connect in (plain.connect, create_engine(f"sqlite:///{plain.place}")):
        with pytest.raises(ProducerError, match="takes an id twice"):
            DatabaseListener(connect)
    assert plain.column(f"SELECT id FROM {TABLE}") == ["database"]


class Orders(TransactionListener):
    """A listener of the application."""

    def execute_local_transaction(self, message: Message, arg: Any) -> None: ...

    def check_local_transaction(self, message: Message) -> None: ...


def test_what_can_not_be_used_is_refused_before_anything_is_sent(plain: Shop, tmp_path: Path) -> None:
    begin = plain.producer.begin_transaction
    with pytest.raises(ProducerError, match=r"database= is a builtins.str; allowed are"):
        begin(database="shop.db")
    of_asyncio = type("AsyncSession", (), {"__module__": "sqlalchemy.ext.asyncio"})
    with pytest.raises(ProducerError, match="none of asyncio's"):
        begin(database=of_asyncio())
    for isolation in (
        sqlite3.connect(plain.place, isolation_level=None),
        create_engine(f"sqlite:///{plain.place}", isolation_level="AUTOCOMMIT").connect(),
    ):
        with closing(isolation), pytest.raises(ProducerError, match="autocommit on"):
            begin(database=isolation)
    with closing(sqlite3.connect(tmp_path / "other.db")) as other, pytest.raises(ProducerError, match="CREATE"):
        begin(database=other)
    with pytest.raises(ProducerError, match=r"give the producer commitlake.DatabaseListener\(connect\)"):
        plain.lake.producer("others", Orders()).begin_transaction(database=plain.made)
    with pytest.raises(ProducerError, match="connect= is a connection; give a function that opens one"):
        DatabaseListener(plain.made)
    unlike = type("Recorder", (), {"in_atomic_block": False})()
    with pytest.raises(ProducerError, match=r"Recorder; allowed are"):
        begin(database=unlike)
    with pytest.raises(ProducerError, match="runs no local transaction"):
        DatabaseListener(plain.connect).execute_local_transaction(Message("orders", ""), None)


def test_a_connection_that_was_lost_is_told_by_its_own_error(plain: Shop) -> None:
    """A pool gives connections of before a restart, and applications try again by SQLAlchemy's error."""
    engine = create_engine(f"sqlite:///{plain.place}")
    plain.sql(f"DROP TABLE {TABLE}")
    event.listen(engine, "handle_error", lambda context: setattr(context, "is_disconnect", True))
    with engine.connect() as lost, pytest.raises(DBAPIError):
        plain.producer.begin_transaction(database=lost)


def test_a_session_that_may_commit_elsewhere_than_it_writes_is_refused(plain: Shop) -> None:
    engine = create_engine(f"sqlite:///{plain.place}")

    class Routing(Session):
        def get_bind(self, *given: Any, **named: Any) -> Any:
            return engine

    class Base(DeclarativeBase):
        """Of the application."""

    with engine.connect() as around:
        for session in (Session(around), Session(binds={Base: engine}), Routing()):
            with session, pytest.raises(ProducerError, match="a message can only follow one transaction"):
                plain.producer.begin_transaction(database=session)


def test_a_scoped_session_and_rows_of_another_shape_do(plain: Shop) -> None:
    plain.made.row_factory = sqlite3.Row
    with plain.begin() as transaction:
        transaction.send(Message("orders", "first"))
    scoped = scoped_session(sessionmaker(create_engine(f"sqlite:///{plain.place}")))
    with plain.producer.begin_transaction(database=scoped) as transaction:
        scoped.execute(text("INSERT INTO orders VALUES ('17')"))
        transaction.send(Message("orders", "second"))
    scoped.remove()
    assert (plain.orders(), plain.shown()) == (["17"], [b"first", b"second"])


@pytest.mark.parametrize("kind", ["sqlite3", "sqlalchemy"])
def test_a_transaction_of_sqlite_begins_as_its_connection_says(plain: Shop, kind: str) -> None:
    """A deferred one that reads first fails, without a wait, where another has written meanwhile."""
    database: Any = sqlite3.connect(plain.place, isolation_level="IMMEDIATE")
    if kind == "sqlalchemy":
        database = create_engine("sqlite://", creator=lambda made=database: made).connect()
    begun = plain.producer.begin_transaction(database=database)
    with closing(database), begun, pytest.raises(sqlite3.OperationalError, match="locked"):
        plain.sql("INSERT INTO orders VALUES ('17')")


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_a_commit_that_failed_leaves_no_transaction_though_the_database_can_not_be_asked(
    plain: Shop, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(plain.place, 0.1, isolation_level="IMMEDIATE"))
    made: Any = engine.connect() if kind == "connection" else Session(engine)

    def lost() -> None:
        made.rollback()
        plain.made.execute("BEGIN IMMEDIATE")  # another one writes
        raise RuntimeError("the commit was lost")

    monkeypatch.setattr(made, "commit", lost)
    message = Message("orders", "a book")
    with made:
        with pytest.raises(RuntimeError), plain.producer.begin_transaction(database=made) as block:
            block.send(message)
        assert (made.in_transaction(), plain.state(message)) == (False, "PENDING")


def test_a_message_made_of_a_received_one_does_not_name_its_row(plain: Shop) -> None:
    copy = Message("orders", "a copy", properties={NAME: "shop/1", "shop": "1"})
    assert copy.properties == {"shop": "1"}
    copy.properties[NAME] = "shop/1"
    plain.producer.send(copy)
    assert [message.properties for message in plain.lake.messages("orders")] == [{"shop": "1"}]


def test_one_object_that_is_sent_in_several_blocks_at_once_names_each_one_s_row(plain: Shop, tmp_path: Path) -> None:
    """While a block makes its record, another block, and a plain send, send the same object."""
    other, message = Shop(tmp_path / "other.db"), Message("orders", "a book")
    other.sql(f"UPDATE {TABLE} SET state = 'other' WHERE id = 'database'")
    newest, begun = plain.producer._link._newest, list[bool]()  # type: ignore[attr-defined]

    def settings() -> Settings:
        if not begun:
            begun.append(True)
            with other.begin() as transaction:
                transaction.send(message)
            plain.producer.send(message)
        return newest()  # type: ignore[no-any-return]

    plain.producer._link._newest = settings  # type: ignore[attr-defined]
    with closing(other.made), plain.begin() as transaction:
        transaction.send(message)
    named = [
        found.properties.get(NAME, "").split("/")[0]
        for lake in (plain.lake, other.lake)
        for found in lake.messages("orders")
    ]
    assert named == ["", "shop", "other"]


def test_a_transaction_without_database_is_refused_where_nobody_could_answer_its_checks(plain: Shop) -> None:
    class Own(DatabaseListener):
        def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
            return COMMIT

    with pytest.raises(ArgumentError, match=r"give begin_transaction\(database=connection\)"):
        plain.producer.begin_transaction()
    with plain.producer.begin_transaction(is_answered=True) as transaction:
        transaction.send(Message("orders", "17"))
    plain.producer.set_transaction_listener(Own(plain.connect))
    with plain.producer.begin_transaction() as transaction:
        transaction.send(Message("orders", "18"))
    assert plain.shown() == [b"17", b"18"]


def test_a_transaction_without_database_may_be_answered_by_a_rule_that_is_published(
    plain: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(plain.lake.settings, ruled_groups=(plain.producer.group,))
    monkeypatch.setattr(InMemoryCoordinator, "settings", settings)
    with plain.producer.begin_transaction() as transaction:
        transaction.send(Message("orders", "17"))
    assert plain.shown() == [b"17"]


@pytest.mark.parametrize("wrong", ["", "shop", "shop/", "/1", "shop/1 ", "shop/\0", "shop/é", "shop/" + "1" * 65])
def test_a_name_without_database_or_with_an_id_that_not_every_database_keeps_is_no_name(wrong: str) -> None:
    with pytest.raises(RecordError, match="allowed is <database>/<id>"):
        row_name_of(wrong)


def test_the_documents_example_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "databases.md").read_text()
    text, kafka = page.split("```python\n")[1].split("```")[0], ', bootstrap_servers="127.0.0.1:19092"'
    assert kafka in text
    lake = InMemoryCoordinator()
    for _ in range(2):
        exec(text.replace("TransactionalProducer(", "lake.producer(").replace(kafka, ""), {"lake": lake})
    assert [message.body for message in lake.messages("orders")] == [b"two espressos"] * 2
    sql = page.split("```sql\n")[1].split("```")[0]
    with closing(sqlite3.connect("migrated.db")) as database:
        database.executescript(sql)
    DatabaseListener(lambda: sqlite3.connect("migrated.db"))


@pytest.mark.parametrize("fault", Fault)
def test_the_documents_test_passes_and_finds_a_message_beside_the_transaction(fault: Fault, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "databases.md").read_text()
    text = page.split("## Test it")[1].split("```python\n")[1].split("```")[0]
    within = "with producer.begin_transaction(database=database) as transaction:"
    assert within in text
    beside = within.replace("database=database", "is_answered=True").replace("with ", "with database, ")
    told = []
    for number, each in enumerate((text, text.replace(within, beside))):
        names: dict[str, Any] = {}
        exec(each, names)
        (place := tmp_path / str(number)).mkdir()
        try:
            names["test_an_order_is_told_exactly_when_it_is_there"](fault, place)
        except AssertionError:
            told.append(number)
    lost = {Fault.CRASH_AFTER_HALF, Fault.CRASH_BEFORE_DECISION, Fault.DECISION_LOST}
    assert told == ([1] if fault in lost else [])


LOCAL = ("insert", "commit")
CHECK = ("revoke", "look")


@pytest.mark.parametrize("crashes_after", range(3))
def test_no_order_of_local_transaction_checks_and_a_crash_tells_another_end_than_the_rows(crashes_after: int) -> None:
    """A model of a unique key: an insert waits for an open one; two checks, every order of their steps."""
    steps = [*["local"] * crashes_after, *["a", "b"] * len(CHECK)]
    seen = set()
    for order in set(permutations(steps)):
        told, committed = played(order, crashes_after)
        assert told in ({"COMMIT"}, {"ROLLBACK"}, set()), order
        assert told != ({"ROLLBACK"} if committed else {"COMMIT"}), order
        seen.add((committed, *told))
    assert len(seen) >= (1 if crashes_after < len(LOCAL) else 2)


def played(order: tuple[str, ...], crashes_after: int) -> tuple[set[str], bool]:
    """The answers of both checks, and whether the local transaction has committed."""
    row: str | None = None
    is_open = is_dead = committed = False
    done = dict.fromkeys(("local", "a", "b"), 0)
    known: dict[str, str | None] = {}
    for who in order:
        step = (LOCAL if who == "local" else CHECK)[done[who]]
        done[who] += 1
        if step == "insert":
            is_dead = row is not None  # the key is there: the block raises, and rolls back
            is_open = not is_dead and crashes_after == len(LOCAL)
        elif step == "commit" and not is_dead:
            row, is_open, committed = COMMITTED, False, True
        elif step == "revoke" and row is None and not is_open:  # while it is open, it waits and gives up
            row = REVOKED
        elif step == "look":
            known[who] = row
    return {decision for state in known.values() if (decision := decision_of(state))}, committed
