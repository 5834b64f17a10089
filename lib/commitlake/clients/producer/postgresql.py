"""A transaction of PostgreSQL, on a connection of psycopg or of SQLAlchemy, as the local transaction of messages."""

from __future__ import annotations

import importlib
from typing import Any

from commitlake.errors import MQClientException, SetupError
from commitlake.protocol.postgresql import SYSTEM, TIMELINE, Xact, answer_of, judged, question, xact

_SYNCHRONOUS = "current_setting('synchronous_commit')"
_XID = f"SELECT {_SYNCHRONOUS}, {SYSTEM}, {TIMELINE}, pg_current_xact_id()::text"
_NOW = f"SELECT {_SYNCHRONOUS}, pg_current_xact_id_if_assigned()::text"
_RECORD = "pg_logical_emit_message(true, 'commitlake', '')"
_FLUSH = f"SELECT pg_logical_emit_message(false, 'commitlake', '', {_RECORD} IS NOT NULL)"
_FLUSHES_SINCE = 170000


class LocalDatabase:
    """The transaction that is open, or begins next, on a connection.

    Args:
        given: psycopg's connection, or a connection or session of SQLAlchemy that uses psycopg.

    Raises:
        SetupError: psycopg is missing.
        MQClientException: it is no such connection, or commits by itself.
    """

    def __init__(self, given: Any) -> None:
        self._given = given
        try:
            self._psycopg = importlib.import_module("psycopg")
        except ModuleNotFoundError as error:
            msg = f"database= needs the module {error.name}; install it with pip install 'commitlake[postgresql]'"
            raise SetupError(msg) from error
        if self._connection().autocommit:
            msg = "database= has autocommit on, so each statement is a transaction of its own; switch it off"
            raise MQClientException(msg)

    def begin(self) -> Xact:
        """Take the transaction's id, which no other will have, even when the server crashes now.

        Raises:
            MQClientException: the transaction may be lost after its commit.
        """
        setting, *names = self._row(_XID)
        _check_synchronous(setting)
        self._make_durable()
        return xact(*names)

    def check(self, taken: Xact) -> None:
        """Refuse what comes after the end of the transaction that was taken.

        Raises:
            MQClientException: it has ended, or may be lost after its commit.
        """
        setting, now = self._row(_NOW)
        if now != str(taken.xid):
            msg = f"the transaction {taken} of the database was ended within the block; leave its end to the block"
            raise MQClientException(msg)
        _check_synchronous(setting)

    def commit(self, taken: Xact | None) -> None:
        """Commit, if it still is the transaction that was taken, or none was.

        Raises:
            MQClientException: see `check`.
        """
        if taken is not None:
            self.check(taken)
        self._given.commit()

    def rollback(self) -> None:
        """Roll back what is open on the connection."""
        self._given.rollback()

    def outcome(self, taken: Xact) -> str | None:
        """COMMIT or ROLLBACK, as the server says; None while it says neither."""
        try:
            return judged(taken, answer_of(*self._row(question([taken.xid]))))[0]
        finally:
            self._given.rollback()

    def _make_durable(self) -> None:
        """Have a log record on disk that has this id, or a later one.

        An id is in memory only until then: after a crash the server gives it to another transaction, which may commit.
        """
        info = self._connection().info
        if info.server_version >= _FLUSHES_SINCE:
            self._row(_FLUSH)
            return
        there = {"host": info.host, "hostaddr": info.hostaddr or None, "port": info.port}
        same = {**info.get_parameters(), **there, "password": info.password or None}
        with self._psycopg.connect(**same) as other:  # its commit puts all on disk that was logged before
            other.execute(f"SET LOCAL synchronous_commit TO local; SELECT {_RECORD}")

    def _row(self, sql: str) -> tuple[Any, ...]:
        with self._psycopg.Cursor(self._connection(), row_factory=self._psycopg.rows.tuple_row) as cursor:
            row: tuple[Any, ...] = cursor.execute(sql, prepare=False).fetchone()
        return row

    def _connection(self) -> Any:
        """The connection of psycopg; a session of SQLAlchemy may have another one after each of its transactions."""
        given = self._given
        if isinstance(given, self._psycopg.Connection):
            return given
        connection = getattr(given, "connection", None)  # of a session a method, of its connection what the pool gave
        pooled = getattr(connection(), "connection", None) if callable(connection) else connection
        found = getattr(pooled, "driver_connection", None)
        if not isinstance(found, self._psycopg.Connection):
            msg = (
                f"database= is a {type(given).__module__}.{type(given).__name__}; allowed are a connection of "
                "psycopg 3, and a connection or a session of SQLAlchemy with postgresql+psycopg"
            )
            raise MQClientException(msg)
        return found


def _check_synchronous(setting: str) -> None:
    if setting == "off":
        msg = (
            "synchronous_commit is off, so PostgreSQL may lose what it called committed, when its messages are visible "
            "already; use another value for this transaction: SET LOCAL synchronous_commit TO on"
        )
        raise MQClientException(msg)
