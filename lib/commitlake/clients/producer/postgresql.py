"""A transaction of PostgreSQL, on a connection of psycopg or of SQLAlchemy, as the local transaction of messages.

The database itself knows the outcome, after any crash.
"""

from __future__ import annotations

import importlib
import uuid
from typing import Any

from commitlake.clients.sql import AUTOCOMMIT, WITHIN, not_allowed
from commitlake.errors import ArgumentError, ProducerError, SetupError, installed_by
from commitlake.protocol.postgresql import SYSTEM, TIMELINE, TRANSACTION, Xact, answer_of, judged, question, xact

_ALLOWED = "allowed are a connection of psycopg 3, and a connection or a session of SQLAlchemy with postgresql+psycopg"

_SYNCHRONOUS = "current_setting('synchronous_commit')"
_XID = f"SELECT {SYSTEM}, {TIMELINE}, pg_current_xact_id()::text"
_MARK = "set_config('commitlake.block', '{}', true)"
"""A setting of the transaction: its end resets it, and so does the rollback of a savepoint that began before it."""
_MARKED = f"SELECT {_SYNCHRONOUS}, current_setting('commitlake.block', true)"
_RECORD = "pg_logical_emit_message(true, 'commitlake', '')"
_FLUSH = f"SELECT pg_logical_emit_message(false, 'commitlake', '', {_RECORD} IS NOT NULL)"
_FLUSHES_SINCE = 170000


class LocalDatabase:
    """The open, or next, transaction of psycopg's connection, or of a connection or session of SQLAlchemy with psycopg.

    Raises:
        SetupError: psycopg is missing.
        ArgumentError: `given` is no such connection, has autocommit on, or is within a block that commits itself.
    """

    property = TRANSACTION

    def __init__(self, given: Any) -> None:
        self._given = given
        try:
            self._psycopg = importlib.import_module("psycopg")
        except ModuleNotFoundError as error:
            msg = f"database= needs the module {error.name}; install it with {installed_by('postgresql')}"
            raise SetupError(msg) from error
        connection = self._connection()
        if connection.autocommit:
            raise ArgumentError(AUTOCOMMIT)
        if getattr(connection, "_num_transactions", 0):
            raise ArgumentError(WITHIN)
        if not getattr(given, "in_transaction", lambda: True)():
            given.begin()  # SQLAlchemy's transaction; a later block `with connection.begin()` then can't end it
        self._block = uuid.uuid4().hex
        self.mark(0)

    def begin(self) -> Xact:
        """Take the transaction's id, made durable so that no other transaction gets it, even after a server crash.

        Raises:
            ProducerError: the transaction has ended, or may be lost after its commit.
        """
        self.check(0)
        names = self._row(_XID)
        self._make_durable()
        return xact(*names)

    def mark(self, number: int) -> None:
        """Tie a try to send, counted from 1, to the open savepoint, if there is one."""
        self._row(f"SELECT {_MARK.format(f'{self._block} {number}')}")

    def check(self, sent: int) -> None:
        """Check that the first transaction is still open, and that no savepoint with messages was rolled back.

        `sent` is the number of the last try that sent a message, 0 for none.

        Raises:
            ProducerError: the transaction has ended, or may be lost after its commit, or has lost a savepoint in
                which a message was sent.
        """
        setting, mark = self._row(_MARKED)
        block, _, number = (mark or "").partition(" ")
        if block != self._block:
            msg = "the transaction of the database was ended within the block; leave its end to the block"
            raise ProducerError(msg)
        if int(number) < sent:
            msg = (
                "a savepoint of the database in which a message was sent was rolled back, so the message has lost its "
                "rows, and all is rolled back; send when a savepoint is released, or let its error end the block"
            )
            raise ProducerError(msg)
        _check_synchronous(setting)

    def commit(self, sent: int) -> None:
        """Commit, after `check` if messages were sent.

        Raises:
            ProducerError: see `check`.
        """
        if sent:
            self.check(sent)
        self._given.commit()

    def rollback(self) -> None:
        """Roll back the open transaction of the connection."""
        self._given.rollback()

    def outcome(self, taken: Xact) -> str | None:
        """COMMIT or ROLLBACK, by the server's answer; None if the answer proves neither."""
        try:
            return judged(taken, answer_of(*self._row(question([taken.xid]))))[0]
        finally:
            self._given.rollback()

    def _make_durable(self) -> None:
        """Put a log record on disk that has this transaction id, or a later one.

        Until then the id is only in memory: after a crash the server gives it to another transaction, which may commit.
        """
        info = self._connection().info
        if info.server_version >= _FLUSHES_SINCE:
            self._row(_FLUSH)
            return
        there = {"host": info.host, "hostaddr": info.hostaddr or None, "port": info.port}
        same = {**info.get_parameters(), **there, "password": info.password or None}
        with self._psycopg.connect(**same) as other:  # its commit flushes everything that was logged before
            other.execute(f"SET LOCAL synchronous_commit TO local; SELECT {_RECORD}")

    def _row(self, sql: str) -> tuple[Any, ...]:
        with self._psycopg.Cursor(self._connection(), row_factory=self._psycopg.rows.tuple_row) as cursor:
            row: tuple[Any, ...] = cursor.execute(sql, prepare=False).fetchone()
        return row

    def _connection(self) -> Any:
        """The connection of psycopg, looked up each time: a SQLAlchemy session may change it after each transaction."""
        given = self._given
        if isinstance(given, self._psycopg.Connection):
            return given
        connection = getattr(given, "connection", None)  # a method of a session; a connection's pooled connection
        pooled = getattr(connection(), "connection", None) if callable(connection) else connection
        found = getattr(pooled, "driver_connection", None)
        if not isinstance(found, self._psycopg.Connection):
            raise not_allowed(given, _ALLOWED)
        return found


def _check_synchronous(setting: str) -> None:
    if setting == "off":
        msg = (
            "synchronous_commit is off, so PostgreSQL may lose what it called committed, when its messages are visible "
            "already; use another value for this transaction: SET LOCAL synchronous_commit TO on"
        )
        raise ProducerError(msg)
