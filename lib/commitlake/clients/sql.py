"""Statements on a connection of an application: of sqlite3, psycopg 3, Django, or of SQLAlchemy, also a session."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from importlib import import_module
from typing import Any

from commitlake.errors import ArgumentError, ProducerError

_AUTOCOMMIT = "database= has autocommit on, so each statement is a transaction of its own; switch it off"
_WITHIN = (
    "database= is within a block `with connection.transaction()`, which ends its transaction itself; open such a block "
    "within that of begin_transaction, or leave it out"
)
_PIPELINED = (
    "database= is in a pipeline of psycopg, which does not say at once what a statement has changed; end it before a "
    "send, and before the block of begin_transaction or once ends"
)
_ALLOWED = (
    "allowed are a connection of sqlite3, psycopg 3 or Django, and a connection or session of SQLAlchemy; none of "
    "asyncio's"
)
_APART = (
    "database= is a connection on which Django's `atomic` can't begin: one of create_connection, of another thread, or "
    "with autocommit off; give django.db.connection or connections[alias], and switch its autocommit on"
)
_CROSSED = "a block `atomic` that began after begin_transaction is still open; end that one first"
_ONE = (
    "in its place give a session of one engine, or a connection that no session uses: a message can only follow one "
    "transaction"
)
_WAIT_IS_OVER = {"55P03", 1205}
"""PostgreSQL's and MySQL's codes of a wait for another transaction that was given up."""


class Sql:
    """Statements with parameters that are written `:name`, on a connection of sqlite3; made by `sql_of`.

    Attributes:
        given: the connection, or session.
        was_open: whether it was in a transaction when this object was made; later questions may have begun one.
        dialect: SQLAlchemy's names of the kind of database and of the driver.
        duplicate: the error of an id that is there already, and of other constraints.

    Raises:
        ArgumentError: `given` commits each statement.
    """

    dialect: tuple[str, str] = ("sqlite", "sqlite3")
    duplicate: type[Exception] = sqlite3.IntegrityError
    _TABLE = "SELECT name FROM sqlite_master WHERE name = :name"

    def __init__(self, given: Any) -> None:
        self.given = given
        self.was_open = self._is_open()
        if self._commits_by_itself():
            raise ArgumentError(_AUTOCOMMIT)

    def begin(self) -> None:
        """Begin a transaction where none is open, so that a savepoint can't be one."""
        if not self.given.in_transaction:
            self.given.execute(f"BEGIN {self.given.isolation_level}")  # such as IMMEDIATE

    def commit(self) -> None:
        """Commit the open transaction."""
        self.given.commit()

    def rollback(self) -> None:
        """Roll the open transaction back."""
        self.given.rollback()

    def when_committed(self, call: Callable[[], None], is_there: Callable[[], bool]) -> None:
        """Call a function once the last `commit` is final; after a transaction around it only if `is_there()`."""
        call()

    def rows(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """The rows of a question."""
        with closing(self._cursor()) as cursor:
            cursor.execute(self._written(sql), values)
            return list(cursor.fetchall())

    def value(self, sql: str, **values: object) -> Any:
        """The one column of the first row; None without a row."""
        found = self.rows(sql, values)
        return found[0][0] if found else None

    def change(self, sql: str, **values: object) -> int:
        """Run a statement; returns the number of rows that it has changed."""
        with closing(self._cursor()) as cursor:
            cursor.execute(self._written(sql), values)
            return int(cursor.rowcount)

    def change_all(self, sql: str, values: Sequence[Mapping[str, object]]) -> None:
        """Run a statement once for each of `values`."""
        with closing(self._cursor()) as cursor:
            cursor.executemany(self._written(sql), values)

    def has(self, table: str) -> bool:
        """Whether there is such a table; an outage raises."""
        return self.value(self._TABLE, name=table) is not None

    def _cursor(self) -> Any:
        cursor = self.given.cursor()
        cursor.row_factory = None
        return cursor

    @staticmethod
    def _written(sql: str) -> str:
        return sql

    def _is_open(self) -> bool:
        """Whether a transaction is open; with `autocommit=False`, of Python 3.12, one always is."""
        return self.given.in_transaction and getattr(self.given, "autocommit", None) is not False

    def _commits_by_itself(self) -> bool:
        return _is_autocommit(self.given)


class Psycopg(Sql):
    """On a connection of psycopg 3."""

    dialect = ("postgresql", "psycopg")
    _TABLE = "SELECT CAST(to_regclass(:name) AS text)"

    def __init__(self, given: Any) -> None:
        self._psycopg = import_module("psycopg")
        self.duplicate = self._psycopg.IntegrityError
        super().__init__(given)
        if getattr(given, "_num_transactions", 0):
            raise ArgumentError(_WITHIN)

    def begin(self) -> None:
        """As for `Sql`."""
        if not self._is_open():
            self.value("SELECT 1")  # psycopg begins with a statement

    def change(self, sql: str, **values: object) -> int:
        """As for `Sql`."""
        if self.given.pgconn.pipeline_status:
            raise ArgumentError(_PIPELINED)
        return super().change(sql, **values)

    def _cursor(self) -> Any:
        return self._psycopg.Cursor(self.given, row_factory=self._psycopg.rows.tuple_row)

    @staticmethod
    def _written(sql: str) -> str:
        return re.sub(r":(\w+)", r"%(\1)s", sql)

    def _is_open(self) -> bool:
        status = self._psycopg.pq.TransactionStatus
        return self.given.info.transaction_status not in (status.IDLE, status.UNKNOWN)

    def _commits_by_itself(self) -> bool:
        return bool(self.given.autocommit)


class Awaited:
    """A connection of asyncio's drivers, for code that `run_sync` runs in a greenlet.

    Args:
        given: the connection.
        sql: makes its statements, there.
    """

    def __init__(self, given: Any, sql: Callable[[Any], Sql]) -> None:
        self.given, self.sql = given, sql

    async def run_sync(self, call: Callable[[Any], Any]) -> Any:
        """Run a function with this object, and await what it calls of it."""
        return await import_module("sqlalchemy.util").greenlet_spawn(call, self)


class _Alchemy(Sql):
    def __init__(self, given: Any) -> None:
        self._alchemy = import_module("sqlalchemy")
        self.duplicate = import_module("sqlalchemy.exc").IntegrityError
        super().__init__(sessions_own(given))

    @property
    def dialect(self) -> tuple[str, str]:  # type: ignore[override]
        return self._dialect().name, self._dialect().driver

    def begin(self) -> None:
        if not self.given.in_transaction():
            self.given.begin()  # a later block `with connection.begin()` then can't end it
        connection = self._connection()
        if self.dialect[0] == "sqlite" and not connection.connection.driver_connection.in_transaction:
            connection.exec_driver_sql(f"BEGIN {connection.connection.dbapi_connection.isolation_level}")

    def rows(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.given.execute(self._alchemy.text(sql), values)]

    def change(self, sql: str, **values: object) -> int:
        return int(self.given.execute(self._alchemy.text(sql), values).rowcount)

    def change_all(self, sql: str, values: Sequence[Mapping[str, object]]) -> None:
        self.given.execute(self._alchemy.text(sql), values)

    def has(self, table: str) -> bool:
        return bool(self._alchemy.inspect(self._connection()).has_table(table))

    def _dialect(self) -> Any:
        return getattr(self.given, "dialect", None) or self.given.get_bind().dialect

    def _connection(self) -> Any:
        """SQLAlchemy's connection, also of a session."""
        return self.given.connection() if callable(self.given.connection) else self.given

    def _is_open(self) -> bool:
        return bool(self.given.in_transaction())

    def _commits_by_itself(self) -> bool:
        raw = self._connection().connection.dbapi_connection
        if self.dialect[0] == "sqlite":
            return _is_autocommit(raw)
        with suppress(AttributeError, NotImplementedError):
            return bool(self._dialect().detect_autocommit_setting(raw))
        return bool(self._connection().get_isolation_level() == "AUTOCOMMIT")


class _Django(Sql):
    """The transaction is an `atomic`, so a savepoint within another one. On a listener's connection there is none."""

    _written = staticmethod(Psycopg._written)

    def __init__(self, given: Any) -> None:
        django = import_module("django.db")
        self._atomic: Any = None
        self.duplicate, self.dialect = django.IntegrityError, (given.vendor, "django")
        self._is_apart = given != django.connections[given.alias]  # `atomic` takes it from there
        if self._is_apart:
            given.validate_thread_sharing()
            given.set_autocommit(False)
        super().__init__(given)

    def begin(self) -> None:
        if self._is_apart or not (self._is_open() or self.given.get_autocommit()):
            raise ArgumentError(_APART)
        atomic = import_module("django.db.transaction").atomic(self.given.alias)
        atomic.__enter__()
        self._atomic = atomic

    def commit(self) -> None:
        self._end(self.given.commit, None)

    def rollback(self) -> None:
        self._end(self.given.rollback, Exception)

    def when_committed(self, call: Callable[[], None], is_there: Callable[[], bool]) -> None:
        if self._is_open():  # Django calls back also when it commits after a `savepoint_rollback`, or `ROLLBACK TO`
            self.given.on_commit(lambda: call() if is_there() else None, robust=True)
        else:
            call()

    def has(self, table: str) -> bool:
        return table in self.given.introspection.table_names()

    def _end(self, end: Callable[[], None], error: type[Exception] | None) -> None:
        if self._is_apart:
            end()
        elif self._atomic:
            if self.given.atomic_blocks[-1:] != [self._atomic]:
                raise ProducerError(_CROSSED)
            atomic, self._atomic = self._atomic, None
            atomic.__exit__(error, None, None)

    def _is_open(self) -> bool:
        return bool(self.given.in_atomic_block)

    def _commits_by_itself(self) -> bool:
        return False  # until `begin`


def sql_of(given: Any) -> Sql:
    """Statements on a connection, or a session.

    Raises:
        ArgumentError: `given` is no such connection, commits each statement, or has several databases.
    """
    if isinstance(given, sqlite3.Connection):
        return Sql(given)
    where = homes(given)
    if "psycopg" in where and isinstance(given, import_module("psycopg").Connection):
        return Psycopg(given)
    if isinstance(given, Awaited):
        return given.sql(given.given)
    if any(each.startswith("django.") for each in where) and hasattr(given, "in_atomic_block"):  # also of its proxies
        return _Django(given)
    if any(each.startswith("sqlalchemy.") and ".asyncio" not in each for each in where):
        return _Alchemy(given)
    raise not_allowed(given, _ALLOWED)


def _is_autocommit(lite: Any) -> bool:
    return lite.isolation_level is None or getattr(lite, "autocommit", False) is True


def is_wait_over(error: Exception) -> bool:
    """Whether the database gave up a wait for another transaction."""
    cause = getattr(error, "orig", None) or error.__cause__ or error  # of SQLAlchemy, and of Django
    return not _WAIT_IS_OVER.isdisjoint((getattr(cause, "sqlstate", None), *cause.args[:1]))


def homes(given: Any) -> list[str]:
    """The modules of an object's class, and of those that it derives from."""
    return [base.__module__ for base in type(given).__mro__]


def not_allowed(given: Any, allowed: str) -> ArgumentError:
    """The error for an object that is no connection of the kinds that are allowed."""
    return ArgumentError(f"database= is a {type(given).__module__}.{type(given).__name__}; {allowed}")


def sessions_own(given: Any) -> Any:
    """The session behind a `scoped_session`; anything else as it is.

    Raises:
        ArgumentError: the session commits with a transaction around it, or has several databases.
    """
    orm = import_module("sqlalchemy.orm")
    session = given() if isinstance(given, orm.scoped_session) else given
    if isinstance(session, orm.Session):
        several = getattr(session, "binds", None) or vars(session).get("_Session__binds")  # of SQLAlchemy 2.1, 2.0
        if several or session.bind is None or type(session).get_bind is not orm.Session.get_bind:
            msg = f"database= is a session that chooses among databases; {_ONE}"
            raise ArgumentError(msg)
        if hasattr(session.bind, "in_transaction"):
            msg = f"database= is a session on a connection, whose own transaction may still roll back; {_ONE}"
            raise ArgumentError(msg)
    return session
