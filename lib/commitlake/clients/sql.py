"""Statements on a connection of an application: one of sqlite3, or a connection or session of SQLAlchemy."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from importlib import import_module
from typing import Any

from commitlake.errors import ArgumentError

AUTOCOMMIT = "database= has autocommit on, so each statement is a transaction of its own; switch it off"
_ALLOWED = (
    "allowed are a connection of sqlite3, one or a session of SQLAlchemy, and in a producer one of psycopg 3; none of "
    "asyncio's"
)
_ONE = "in its place give a session of one engine, or the connection: a message can only follow one transaction"


class Sql:
    """Statements with parameters that are written `:name`.

    Raises:
        ArgumentError: `given` is no such connection, commits each statement, or has several databases.
    """

    def __init__(self, given: Any) -> None:
        is_lite = isinstance(given, sqlite3.Connection)
        if not is_lite and not any(each.startswith("sqlalchemy.") and ".asyncio" not in each for each in homes(given)):
            raise not_allowed(given, _ALLOWED)
        self.given = given if is_lite else sessions_own(given)
        self._alchemy: Any = None if is_lite else import_module("sqlalchemy")
        self.was_open = _is_open(given) if is_lite else bool(self.given.in_transaction())
        """Whether it was in a transaction: the questions below begin one on a session."""
        errors: Any = sqlite3 if is_lite else import_module("sqlalchemy.exc")
        self.duplicate: type[Exception] = errors.IntegrityError
        """The error of an id that is there already, and of other constraints."""
        if self._commits_by_itself():
            raise ArgumentError(AUTOCOMMIT)

    @property
    def dialect(self) -> tuple[str, str]:
        """SQLAlchemy's names of the kind of database and of the driver."""
        if self._alchemy is None:
            return "sqlite", "sqlite3"
        return self._dialect().name, self._dialect().driver

    def begin(self) -> None:
        """Begin a transaction where none is open, so that a savepoint can't be one."""
        if self._alchemy is None:
            if not self.given.in_transaction:
                self.given.execute("BEGIN")
            return
        if not self.given.in_transaction():
            self.given.begin()  # a later block `with connection.begin()` then can't end it
        connection = self._connection()
        if self.dialect[0] == "sqlite" and not connection.connection.driver_connection.in_transaction:
            connection.exec_driver_sql("BEGIN")

    def value(self, sql: str, **values: object) -> Any:
        """The one column of the first row; None without a row."""
        if self._alchemy is not None:
            return self.given.execute(self._alchemy.text(sql), values).scalar()
        with closing(self.given.cursor()) as cursor:
            cursor.row_factory = None
            found = cursor.execute(sql, values).fetchone()
        return None if found is None else found[0]

    def change(self, sql: str, **values: object) -> int:
        """Run a statement; returns the number of rows that it has changed."""
        if self._alchemy is not None:
            return int(self.given.execute(self._alchemy.text(sql), values).rowcount)
        with closing(self.given.cursor()) as cursor:
            return int(cursor.execute(sql, values).rowcount)

    def _dialect(self) -> Any:
        return getattr(self.given, "dialect", None) or self.given.get_bind().dialect

    def _connection(self) -> Any:
        """SQLAlchemy's connection, also of a session."""
        return self.given.connection() if callable(self.given.connection) else self.given

    def _commits_by_itself(self) -> bool:
        raw = self.given if self._alchemy is None else self._connection().connection.dbapi_connection
        if self.dialect[0] == "sqlite":
            return raw.isolation_level is None or getattr(raw, "autocommit", False) is True
        with suppress(AttributeError, NotImplementedError):
            return bool(self._dialect().detect_autocommit_setting(raw))
        return bool(self._connection().get_isolation_level() == "AUTOCOMMIT")


def homes(given: Any) -> list[str]:
    """The modules of an object's class, and of those that it derives from."""
    return [base.__module__ for base in type(given).__mro__]


def not_allowed(given: Any, allowed: str) -> ArgumentError:
    """The error for an object that is no connection of the kinds that are allowed."""
    return ArgumentError(f"database= is a {type(given).__module__}.{type(given).__name__}; {allowed}")


def _is_open(given: sqlite3.Connection) -> bool:
    """Whether a transaction is open; with `autocommit=False`, of Python 3.12, one always is."""
    return given.in_transaction and getattr(given, "autocommit", None) is not False


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
