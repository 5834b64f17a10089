"""A transaction of any database as the local transaction of messages: a row that commits with it is the proof."""

from __future__ import annotations

import logging
import re
import sqlite3
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from commitlake.clients.producer.listener import TransactionListener
from commitlake.clients.producer.message import LocalTransactionState, Message, MessageExt
from commitlake.errors import MQClientException
from commitlake.protocol.clock import now_ms
from commitlake.protocol.database_row import (
    CREATE,
    DATABASE,
    NAME,
    REVOKED,
    TABLE,
    RowName,
    decision_of,
    row_name_of,
    state_of,
    tries_of,
)
from commitlake.protocol.durations import DAY_MS, Duration, seconds

log = logging.getLogger(__name__)

_FORMS = {"qmark": "?", "format": "%s", "pyformat": "%({name})s", "named": ":{name}", "numeric": ":{at}"}
_BY_NAME = ("pyformat", "named")
_PARAMETER = re.compile(r":(\w+)")
_WAITS = {
    "postgresql": "SET LOCAL lock_timeout = '5s'",
    "mysql": "SET SESSION innodb_lock_wait_timeout = 5",
    "mariadb": "SET SESSION innodb_lock_wait_timeout = 5",
}
"""By dialect: a check waits so long for an open local transaction. SQLite's drivers wait 5 s."""
_OF_DRIVERS = {"psycopg2": "postgresql", "pymysql": "mysql", "MySQLdb": "mysql", "mariadb": "mariadb"}
_ALLOWED = (
    "allowed are a connection or a session of SQLAlchemy, and a connection of psycopg 3, of sqlite3 or of another "
    "driver with Python's database API; none of asyncio's"
)


class Sql:
    """Statements on a connection of a DB-API driver, or on a connection or session of SQLAlchemy.

    Raises:
        MQClientException: `given` is neither.
    """

    def __init__(self, given: Any) -> None:
        modules = [sys.modules[kind.__module__.partition(".")[0]] for kind in type(given).__mro__]
        drivers = [each for each in modules if each.__name__ == "sqlalchemy" or hasattr(each, "paramstyle")]
        if not drivers or ".asyncio" in type(given).__module__:
            msg = f"database= is a {type(given).__module__}.{type(given).__name__}; {_ALLOWED}"
            raise MQClientException(msg)
        self.given, self._driver = given, drivers[0]
        self.is_alchemy = self._driver.__name__ == "sqlalchemy"
        self.duplicate: type[Exception] = (self._driver.exc if self.is_alchemy else self._driver).IntegrityError
        """The error of an id that is there already."""

    @property
    def dialect(self) -> str:
        """SQLAlchemy's name of the kind of database; that of the driver where it is not known."""
        if not self.is_alchemy:
            return _OF_DRIVERS.get(self._driver.__name__, self._driver.__name__)
        return str(self._alchemy().name)

    @property
    def is_postgresql_by_psycopg(self) -> bool:
        """Whether PostgreSQL itself can be asked about the transaction's id (`LocalDatabase`)."""
        if self.is_alchemy:
            return (self._alchemy().name, self._alchemy().driver) == ("postgresql", "psycopg")
        return bool(self._driver.__name__ == "psycopg")

    def _alchemy(self) -> Any:
        return getattr(self.given, "dialect", None) or self.given.get_bind().dialect

    def connection(self) -> Any:
        """The driver's own connection."""
        if not self.is_alchemy:
            return self.given
        found = self.given.connection  # a method of a session; a connection's pooled connection
        return (found().connection if callable(found) else found).driver_connection

    def run(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        """The rows of a statement whose parameters are written `:name`; none of one that has no rows."""
        if self.is_alchemy:
            found = self.given.execute(self._driver.text(sql), values)
            return [tuple(row) for row in found] if found.returns_rows else []
        cursor = self.given.cursor()
        try:
            cursor.execute(*self._bound(sql, values))
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []
        finally:
            cursor.close()

    def _bound(self, sql: str, values: dict[str, object]) -> tuple[str, Any]:
        names = _PARAMETER.findall(sql)
        form = _FORMS[self._driver.paramstyle]
        each = (form.format(name=name, at=at) for at, name in enumerate(names, 1))
        given = values if self._driver.paramstyle in _BY_NAME else [values[name] for name in names]
        return _PARAMETER.sub(lambda _: next(each), sql), given

    def state(self, name: str) -> str | None:
        """The `state` of a row; None when it is not there."""
        found = self.run(f"SELECT state FROM {TABLE} WHERE id = :id", id=name)
        return str(found[0][0]) if found else None

    def insert(self, name: str, state: str) -> None:
        """Insert a row; raises `duplicate` when it is there."""
        self.run(f"INSERT INTO {TABLE} (id, state, at) VALUES (:id, :state, :at)", id=name, state=state, at=now_ms())

    def database(self) -> str:
        """The name of the database, which its own row has.

        Raises:
            MQClientException: there is no table, or no such row.
        """
        found, reason = None, f"it has no row {DATABASE!r}"
        try:
            found = self.state(DATABASE)
        except Exception as error:  # the driver's
            reason = str(error)
            self.given.rollback()
        if found is None:
            msg = (
                f"database: the table {TABLE} can't be used: {reason}; make it with DatabaseListener(connect, "
                f"create=True), or with: {CREATE}; INSERT INTO {TABLE} VALUES ('{DATABASE}', '{uuid.uuid4().hex}', 0)"
            )
            raise MQClientException(msg)
        return found


def _commits_by_itself(connection: Any) -> bool:
    """Whether a driver's connection has autocommit on; sqlite3 has -1 there, for its older way."""
    if isinstance(connection, sqlite3.Connection) and connection.isolation_level is None:
        return True
    asked = getattr(connection, "get_autocommit", lambda: getattr(connection, "autocommit", False))
    return asked() is True


class LocalRow:
    """The open, or next, transaction of a connection, which a row will prove.

    Raises:
        MQClientException: `given` is no connection, commits each statement by itself, or its database has no table.
    """

    property = NAME

    def __init__(self, sql: Sql) -> None:
        self._sql, self._given = sql, sql.given
        if _commits_by_itself(sql.connection()):
            msg = "database= has autocommit on, so each statement is a transaction of its own; switch it off"
            raise MQClientException(msg)
        # Before the transaction: SQLite refuses to write after a read that another writer has overtaken.
        self._name = RowName(sql.database(), uuid.uuid4().hex)
        if sql.is_alchemy:
            if not self._given.in_transaction():
                self._given.begin()  # a later block `with connection.begin()` then can't end it
            self._begun = self._given.get_transaction()
        elif not getattr(self._given, "in_transaction", True):
            sql.run("BEGIN")

    def begin(self) -> RowName:
        """The name of the row; `mark` inserts it.

        Raises:
            MQClientException: the transaction has ended.
        """
        self._check_open()
        return self._name

    def mark(self, number: int) -> None:
        """Tie a try to send, counted from 1, to the open savepoint, if there is one."""
        if number == 1 or self._sql.state(self._name.id) is None:
            self._sql.insert(self._name.id, state_of(number))
        else:
            self._sql.run(f"UPDATE {TABLE} SET state = :state WHERE id = :id", id=self._name.id, state=state_of(number))

    def check(self, sent: int) -> None:
        """Check that the transaction is still open, and that no savepoint with messages was rolled back.

        `sent` is the number of the last try that sent a message, 0 for none.

        Raises:
            MQClientException: the transaction has ended, or has lost a savepoint in which a message was sent.
        """
        self._check_open()
        state = self._sql.state(self._name.id) if sent else None
        if sent and (state is None or tries_of(state) < sent):
            msg = (
                "a savepoint of the database in which a message was sent was rolled back, or its transaction was, so "
                "the message has lost its rows, and all is rolled back; send when a savepoint is released, or let its "
                "error end the block"
            )
            raise MQClientException(msg)

    def commit(self, sent: int) -> None:
        """Commit, after `check` if messages were sent.

        Raises:
            MQClientException: see `check`.
        """
        if sent:
            self.check(sent)
        self._given.commit()

    def rollback(self) -> None:
        """Roll back the open transaction of the connection."""
        self._given.rollback()

    def outcome(self, taken: RowName) -> str | None:
        """COMMIT or ROLLBACK, by the row: no other transaction ever inserts it."""
        try:
            state = self._sql.state(taken.id)
            return "ROLLBACK" if state is None else decision_of(state)
        finally:
            self._given.rollback()

    def _check_open(self) -> None:
        is_open = (
            self._given.get_transaction() is self._begun
            if self._sql.is_alchemy
            else getattr(self._given, "in_transaction", True)
        )
        if not is_open:
            msg = "the transaction of the database was ended within the block; leave its end to the block"
            raise MQClientException(msg)


class DatabaseListener(TransactionListener):
    """Answers the checks of transactions that were begun with `database=`: the row says COMMIT, else none ever will be.

    Where a row is missing, the check inserts one that revokes it. From then on the local transaction can't commit, so
    ROLLBACK is right at once. A database that is away, or another one, is answered UNKNOW.

    Args:
        connect: makes a connection of its own for each check, such as `lambda: sqlite3.connect("shop.db")`; or an
            engine of SQLAlchemy.
        create: make the table where it is missing; else a migration does.
        keep: age at which `tidy` deletes rows. No local transaction and no check may be as old: a check that is gets
            UNKNOW. All instances of a group have the same.

    Raises:
        MQClientException: there is no such table, or the database is away.
    """

    def __init__(self, connect: Any, *, create: bool = False, keep: Duration = "7d") -> None:
        self._connect: Callable[[], Any] = connect if callable(connect) else connect.connect
        self._keep_ms = round(seconds("keep", keep) * 1_000)
        with self._opened() as sql:
            if create:
                self._create(sql)
            sql.database()

    def execute_local_transaction(self, message: Message, arg: Any) -> NoReturn:
        """Refuses: the block of `begin_transaction(database=...)` is the local transaction.

        Raises:
            MQClientException: always.
        """
        msg = "a DatabaseListener runs no local transaction; use producer.begin_transaction(database=connection)"
        raise MQClientException(msg)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """The outcome of a local transaction, by its row; from now on it has one."""
        text = message.get_user_property(NAME)
        if text is None:
            log.warning("the transaction %s has no row to look at: it was begun without database=", message.msg_id)
            return LocalTransactionState.UNKNOW
        with self._opened() as sql:
            decision, why = self._decided(sql, row_name_of(text), now_ms() - (message.store_timestamp or 0))
        if decision is None:
            log.warning("the transaction %s stays open: %s", message.msg_id, why)
        return LocalTransactionState(decision or "UNKNOWN")

    def tidy(self) -> int:
        """Delete the rows of transactions that ended long ago, a day after `keep`; returns how many."""
        old = f"FROM {TABLE} WHERE at < :before AND id <> :own"
        values = {"before": now_ms() - self._keep_ms - DAY_MS, "own": DATABASE}
        with self._opened() as sql:
            count = int(sql.run(f"SELECT count(*) {old}", **values)[0][0])
            sql.run(f"DELETE {old}", **values)
            sql.given.commit()
        return count

    def _decided(self, sql: Sql, name: RowName, age_ms: int) -> tuple[str | None, str]:
        """COMMIT or ROLLBACK; or None, and why."""
        if (here := sql.database()) != name.database:
            return None, f"its rows are in the database {name.database}, and this one is {here}"
        state = sql.state(name.id)
        if state is None:
            if age_ms > self._keep_ms:
                return None, "it is so old that its row may have been deleted; look at its business rows, and end it"
            try:
                if wait := _WAITS.get(sql.dialect):
                    sql.run(wait)
                sql.insert(name.id, state := REVOKED)
                sql.given.commit()
            except sql.duplicate:  # committed meanwhile, or another check was quicker
                sql.given.rollback()
                state = sql.state(name.id)
        decision = None if state is None else decision_of(state)
        return decision, f"its row has the state {state}"

    def _create(self, sql: Sql) -> None:
        with suppress(Exception):  # it is there; if it could not be made, what follows says so
            sql.run(CREATE)
            sql.given.commit()
        sql.given.rollback()
        if sql.state(DATABASE) is None:
            with suppress(sql.duplicate):  # another instance was quicker
                sql.insert(DATABASE, uuid.uuid4().hex)
                sql.given.commit()

    @contextmanager
    def _opened(self) -> Iterator[Sql]:
        connection = self._connect()
        try:
            yield Sql(connection)
        finally:
            connection.close()
