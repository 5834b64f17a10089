"""A transaction of a database as the local transaction of messages: a row that commits with it is the proof."""

from __future__ import annotations

import inspect
import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from commitlake.clients.asyncio_sql import run_on_own_loop
from commitlake.clients.producer.listener import TransactionListener
from commitlake.clients.producer.message import COMMIT, LocalTransactionState, Message, MessageExt, SendResult
from commitlake.clients.producer.record_maker import Proof, topic_of
from commitlake.clients.producer.transaction import HalfMessage, Transaction
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

log = logging.getLogger(__name__)

T = TypeVar("T")


class DatabaseTransaction(Transaction):
    """Made by `TransactionMQProducer.begin_transaction(database=...)`. For one thread, as its connection is.

    Its half messages name a row, which the database's transaction commits as the proof. The database's transaction ends
    first. If its outcome is not known here, no decision is sent: the coordinator asks the database.

    Args:
        send_half: sends a half message, with arguments as for `RecordMaker.half`.
        send_decision: sends the decision on all half messages, without waiting.
        sql: statements in the open, or next, transaction of the connection.

    Raises:
        ProducerError: the database has no table for the row.
    """

    def __init__(
        self,
        send_half: Callable[[Message, HalfMessage | None, Proof], HalfMessage],
        send_decision: Callable[[Sequence[HalfMessage], LocalTransactionState], None],
        sql: Sql,
    ) -> None:
        rows = ProofRows(sql)
        # Before the transaction: SQLite refuses to write after a read that another writer has overtaken.
        name = RowName(rows.database(), uuid.uuid4().hex)
        sql.begin()

        def decide(halves: Sequence[HalfMessage], state: LocalTransactionState) -> None:
            send = partial(send_decision, halves, state)
            if state is COMMIT:
                sql.when_committed(send, lambda: rows.state(name.id) == COMMITTED)
            else:
                send()

        super().__init__(lambda message, first: send_half(message, first, {NAME: str(name)}), decide)
        self._sql, self._rows, self._name = sql, rows, name
        self._tries = self._last_sent = 0  # tries to send so far, and the last one that sent a message
        self._may_have_committed = False

    def send(self, message: Message) -> SendResult:
        """Send one more half message and wait for its acknowledgement; see `Transaction.send`.

        Raises:
            ProducerError: nothing was sent: the block has ended the database's transaction itself, or has rolled
                back a savepoint in which a message was sent.
        """
        topic_of(message)
        with self._lock:
            self._check_open()
            self._mark()
            sent = super().send(message)
            self._last_sent = self._tries
            return sent

    def commit(self) -> None:
        """Commit the database's transaction, and make all messages visible; does nothing the second time.

        Errors of the database are passed on. The messages then end as its transaction did.

        Raises:
            ProducerError: the transaction was rolled back, or is now: a send was uncertain, or the block has ended the
                database's transaction itself, or has rolled back a savepoint in which a message was sent.
        """
        with self._lock:
            if self._ended is None and self._uncertain is None:
                try:
                    self._commit_database()
                except BaseException:
                    self._give_up()
                    raise
            super().commit()

    def rollback(self) -> None:
        """Roll back the database's transaction, and drop all messages; does nothing the second time.

        Raises:
            ProducerError: the transaction was committed.
        """
        with self._lock:
            if self._ended is None:
                self._give_up()
            else:
                super().rollback()

    def _mark(self) -> None:
        """Tie the next try to send to the open savepoint, if there is one.

        Raises:
            ProducerError: see `_state`, or a check has revoked the row.
        """
        state = self._state()
        self._tries += 1
        if state is None:
            self._rows.insert(self._name.id, open_state(self._tries))
        elif tries_of(state) is None or not self._rows.update(self._name.id, state, open_state(self._tries)):
            msg = f"the row of the transaction has the state {state}, so it can't commit; begin another one"
            raise ProducerError(msg)

    def _state(self) -> str | None:
        """The state of the row; None without one. A failed try may have left its mark in an outer savepoint.

        Raises:
            ProducerError: the transaction, or a savepoint in which a message was sent, was rolled back.
        """
        state = self._rows.state(self._name.id) if self._tries else None
        if (tries_of(state) or 0) < self._last_sent:
            msg = (
                "a savepoint of the database in which a message was sent was rolled back, or its transaction was, so "
                "the message has lost its rows, and all is rolled back; send when a savepoint is released, or let its "
                "error end the block"
            )
            raise ProducerError(msg)
        return state

    def _commit_database(self) -> None:
        if self._last_sent and not self._rows.update(self._name.id, open_state(self._tries), COMMITTED):
            state = self._state()  # a savepoint with a try that failed may have been rolled back
            if state is None or not self._rows.update(self._name.id, state, COMMITTED):
                msg = "a check has revoked the transaction, since its block had committed before; all is rolled back"
                raise ProducerError(msg)
        self._may_have_committed = self._tries > 0
        self._sql.commit()

    def _give_up(self) -> None:
        """Roll back, then send the outcome that the database reports: a commit that raised may have taken effect."""
        outcome = "ROLLBACK"
        try:
            self._sql.rollback()
            if self._may_have_committed:
                outcome = self._asked()
        except Exception as error:  # the driver's
            if self._tries:
                self._ended = LocalTransactionState.UNKNOW
                text = "what became of the transaction %s of the database is left to its check: %s"
                log.warning(text, self._name, error)
                return
        self._end(LocalTransactionState(outcome))

    def _asked(self) -> str:
        try:
            self._sql.begin()
            return self._rows.decide(self._name)
        finally:
            self._sql.rollback()  # the connection goes on without the transaction of this question


class DatabaseListener(TransactionListener):
    """Answers the checks of transactions that were begun with `database=`: by the row, or by a tombstone without it.

    From then on the local transaction can't end otherwise. While the database is away a check gets no answer, and is
    asked again.

    Args:
        connect: makes a connection for each check: of sqlite3 or psycopg, such as `lambda: sqlite3.connect("shop.db")`,
            of Django, `lambda: connections.create_connection("default")`, or of a driver of asyncio,
            `lambda: asyncpg.connect(...)` or psycopg's `AsyncConnection.connect`. Or an engine of SQLAlchemy.
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
            return run_on_own_loop(opened, lambda sql: call(ProofRows(sql)))
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


def sql_for(given: Any, listener: object) -> Sql:
    """Statements on a connection whose transaction is to be proved by a row.

    Raises:
        ArgumentError: `given` can't be used, or the listener does not look at rows.
    """
    if listener is not None and not isinstance(listener, DatabaseListener):
        msg = (
            f"database= needs a listener that looks at its rows, and that of the group is a {type(listener).__name__}; "
            "give the producer commitlake.DatabaseListener(connect), or a class derived from it"
        )
        raise ArgumentError(msg)
    return sql_of(given)


def refuse_without_row(listener: object, is_answered: bool) -> None:
    """Refuse a transaction without `database=` whose checks a listener can't answer, since it looks at rows only.

    Raises:
        ArgumentError: the listener is a `DatabaseListener`, and nobody else answers.
    """
    looks = getattr(type(listener), "check_local_transaction", None)
    if looks is DatabaseListener.check_local_transaction and not is_answered:
        msg = (
            "a DatabaseListener finds only transactions that have a row, so after a crash nobody would answer for this "
            "one; give begin_transaction(database=connection), or is_answered=True if a rule answers its checks"
        )
        raise ArgumentError(msg)
