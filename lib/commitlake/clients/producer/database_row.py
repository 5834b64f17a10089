"""A transaction of any database as the local transaction of messages: a row that commits with it is the proof."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from commitlake.clients.asyncio_sql import run_apart
from commitlake.clients.producer.listener import TransactionListener
from commitlake.clients.producer.message import LocalTransactionState, Message, MessageExt
from commitlake.clients.proof_rows import ProofRows
from commitlake.clients.sql import Sql, sql_of
from commitlake.errors import ArgumentError, ProducerError, UndecidedError
from commitlake.protocol.clock import now_ms
from commitlake.protocol.database_row import (
    COMMITTED,
    NAME,
    REVOKED,
    TABLE,
    RowName,
    open_state,
    row_name_of,
    tries_of,
)

T = TypeVar("T")


class LocalRow:
    """The open, or next, transaction of a connection, which a row will prove.

    Raises:
        ProducerError: its database has no table for the row.
    """

    def __init__(self, sql: Sql) -> None:
        self._rows, self._sql = ProofRows(sql), sql
        # Before the transaction: SQLite refuses to write after a read that another writer has overtaken.
        self._name = RowName(self._rows.database(), uuid.uuid4().hex)
        self._may_have_committed, self._tries = False, 0
        sql.begin()

    def begin(self) -> RowName:
        """The name of the row, which `mark` inserts."""
        return self._name

    def mark(self, number: int) -> None:
        """Tie a try to send, counted from 1, to the open savepoint, if there is one.

        Raises:
            ProducerError: a check has revoked the row.
        """
        self._tries = number
        state = self._rows.state(self._name.id) if number > 1 else None
        if state is None:
            self._rows.insert(self._name.id, open_state(number))
        elif tries_of(state) is None or not self._rows.update(self._name.id, state, open_state(number)):
            msg = f"the row of the transaction has the state {state}, so it can't commit; begin another one"
            raise ProducerError(msg)

    def check(self, sent: int) -> str | None:
        """Check that no savepoint with messages was rolled back; returns the row's state, None before the first try.

        `sent` is the number of the last try that sent a message, 0 for none.

        Raises:
            ProducerError: the transaction, or a savepoint in which a message was sent, was rolled back.
        """
        state = self._rows.state(self._name.id) if sent else None
        if sent and (tries_of(state) or 0) < sent:
            msg = (
                "a savepoint of the database in which a message was sent was rolled back, or its transaction was, so "
                "the message has lost its rows, and all is rolled back; send when a savepoint is released, or let its "
                "error end the block"
            )
            raise ProducerError(msg)
        return state

    def commit(self, sent: int) -> None:
        """Commit; if messages were sent, the row now proves it.

        Raises:
            ProducerError: see `check`.
        """
        if sent and not self._rows.update(self._name.id, open_state(self._tries), COMMITTED):
            state = self.check(sent)  # a savepoint with a try that failed may have been rolled back
            if state is None or not self._rows.update(self._name.id, state, COMMITTED):
                msg = "a check has revoked the transaction, since its block had committed before; all is rolled back"
                raise ProducerError(msg)
        self._may_have_committed = True
        self._sql.commit()

    def rollback(self) -> None:
        """Roll back the open transaction of the connection."""
        self._sql.rollback()

    def when_committed(self, call: Callable[[], None]) -> None:
        """After `commit`: call a function at once, or when a transaction of Django around this one has committed."""
        self._sql.when_committed(call, lambda: self._rows.state(self._name.id) == COMMITTED)

    def outcome(self, taken: RowName) -> str:
        """COMMIT or ROLLBACK, after a rollback. Only after a commit that failed the row is asked."""
        if not self._may_have_committed:
            return "ROLLBACK"
        try:
            self._sql.begin()
            return self._rows.decide(taken)
        finally:
            self._sql.rollback()  # the connection goes on without the transaction of this question


class DatabaseListener(TransactionListener):
    """Answers the checks of transactions that were begun with `database=`: by the row, or by a tombstone without it.

    From then on the local transaction can't end otherwise. While the database is away a check gets no answer, and is
    asked again.

    Args:
        connect: makes a connection of sqlite3 or psycopg for each check, such as `lambda: sqlite3.connect("shop.db")`,
            or of Django, `lambda: connections.create_connection("default")`; or an engine of SQLAlchemy. Without
            either, `lambda: asyncpg.connect(...)`, or psycopg's `AsyncConnection.connect`.
        create: make the table where it is missing; else a migration does.

    Raises:
        ArgumentError: `connect` is a connection.
        ProducerError: there is no such table, or it takes an id twice, or the connections keep what was rolled back.
    """

    def __init__(self, connect: Any, *, create: bool = False) -> None:
        if hasattr(connect, "cursor"):
            msg = "connect= is a connection; give a function that opens one, since each check closes its own"
            raise ArgumentError(msg)
        self._connect: Callable[[], Any] = connect if callable(connect) else connect.connect
        self._ask(partial(_try, create=create))

    def execute_local_transaction(self, message: Message, arg: Any) -> NoReturn:
        """Refuses: the block of `begin_transaction(database=...)` is the local transaction.

        Raises:
            ProducerError: always.
        """
        msg = "a DatabaseListener runs no local transaction; use producer.begin_transaction(database=connection)"
        raise ProducerError(msg)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """The outcome of a local transaction, by its row.

        Raises:
            UndecidedError: the message names no row, or the database can't tell: the check is asked again.
        """
        text = message.get_user_property(NAME)
        if text is None:
            msg = "it was begun without database=, so it has no row"
            raise UndecidedError(msg)
        try:
            name, age_ms = row_name_of(text), now_ms() - (message.store_timestamp or 0)
            return LocalTransactionState(self._ask(lambda rows: rows.decide(name, age_ms)))
        except UndecidedError:
            raise
        except Exception as error:  # the driver's
            raise UndecidedError(str(error)) from error

    def tidy(self) -> int:
        """Delete rows that are older than 31 days; returns how many."""
        return self._ask(ProofRows.tidy)

    def _ask(self, call: Callable[[ProofRows], T]) -> T:
        opened = self._connect()
        if inspect.isawaitable(opened):
            return run_apart(opened, lambda sql: call(ProofRows(sql)))
        with closing(opened):
            return call(ProofRows(sql_of(opened)))


def _try(rows: ProofRows, create: bool) -> None:
    """Try what a listener needs of the table; make it with `create`.

    Raises:
        ProducerError: there is no such table, or it takes an id twice, or the connections keep what was rolled back.
    """
    if create:
        rows.create()
    rows.database()
    rows.insert(probe := uuid.uuid4().hex, REVOKED)
    with suppress(rows.sql.duplicate):
        rows.insert(probe, REVOKED)
        msg = f"{TABLE} takes an id twice, so no row proves anything; make id a key that the database enforces"
        raise ProducerError(msg)
    rows.sql.rollback()
    if rows.state(probe) is not None:
        msg = (
            f"{TABLE} keeps a row that was rolled back; switch autocommit off (of Django give what "
            "connections.create_connection makes), and make a table that does not"
        )
        raise ProducerError(msg)
