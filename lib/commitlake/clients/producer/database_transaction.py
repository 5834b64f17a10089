"""The transaction of a database as the local transaction of several half messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from commitlake.clients.producer.database_row import DatabaseListener, LocalRow
from commitlake.clients.producer.message import COMMIT, LocalTransactionState, Message, SendResult
from commitlake.clients.producer.record_maker import Proof, topic_of
from commitlake.clients.producer.transaction import HalfMessage, Transaction
from commitlake.clients.sql import sql_of
from commitlake.errors import ArgumentError
from commitlake.protocol.database_row import NAME

log = logging.getLogger(__name__)


def row_of(given: Any, listener: object) -> LocalRow:
    """The transaction of a connection, which a row will prove.

    Raises:
        ArgumentError: `given` can't be used, or the listener does not look at rows.
        ProducerError: there is no table for them.
    """
    if listener is not None and not isinstance(listener, DatabaseListener):
        msg = (
            f"database= needs a listener that looks at its rows, and that of the group is a {type(listener).__name__}; "
            "give the producer commitlake.DatabaseListener(connect), or a class derived from it"
        )
        raise ArgumentError(msg)
    return LocalRow(sql_of(given))


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


class DatabaseTransaction(Transaction):
    """Made by `TransactionMQProducer.begin_transaction(database=...)`. For one thread, as its connection is.

    Its half messages name the database's transaction, which ends first. If its outcome is not known here, no decision
    is sent: the coordinator asks the database.

    Args:
        send_half: sends a half message, with arguments as for `RecordMaker.half`.
        send_decision: sends the decision on all half messages, without waiting.
        database: the transaction of the database.
    """

    def __init__(
        self,
        send_half: Callable[[Message, HalfMessage | None, Proof], HalfMessage],
        send_decision: Callable[[Sequence[HalfMessage], LocalTransactionState], None],
        database: LocalRow,
    ) -> None:
        def decide(halves: Sequence[HalfMessage], state: LocalTransactionState) -> None:
            send = partial(send_decision, halves, state)
            database.when_committed(send) if state is COMMIT else send()

        super().__init__(lambda message, first: send_half(message, first, {NAME: str(self._taken)}), decide)
        self._database = database
        self._taken: Any = None  # its name
        self._tries = self._last_sent = 0  # numbers of tries; a failed try may have left its mark in an outer savepoint

    def send(self, message: Message) -> SendResult:
        """Send one more half message and wait for its acknowledgement; see `Transaction.send`.

        Raises:
            ProducerError: nothing was sent: the block has ended the database's transaction itself, or has rolled
                back a savepoint in which a message was sent, or the database may lose what it commits.
        """
        topic_of(message)
        with self._lock:
            self._check_open()
            if self._taken is None:
                self._taken = self._database.begin()
            else:  # a message sent in the database's next transaction would end as the first transaction did
                self._database.check(self._last_sent)
            self._tries += 1
            self._database.mark(self._tries)
            sent = super().send(message)
            self._last_sent = self._tries
            return sent

    def commit(self) -> None:
        """Commit the database's transaction, and make all messages visible; does nothing the second time.

        Errors of the database are passed on. The messages then end as its transaction did.

        Raises:
            ProducerError: the transaction was rolled back, or is now: a send was uncertain, the block has ended the
                database's transaction itself, or has rolled back a savepoint in which a message was sent, or the
                database may lose what it commits.
        """
        with self._lock:
            if self._ended is None and self._uncertain is None:
                self._commit_database()
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

    def _commit_database(self) -> None:
        try:
            self._database.commit(self._last_sent)
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Roll back, then send the outcome that the database reports: a commit that raised may have taken effect."""
        outcome, why = None if self._taken else "ROLLBACK", "it still runs there"
        try:
            self._database.rollback()
            if self._taken:
                outcome = self._database.outcome(self._taken)
        except Exception as error:  # the driver's
            why = str(error)
        if outcome is None:
            self._ended = LocalTransactionState.UNKNOW
            log.warning("what became of the transaction %s of the database is left to its check: %s", self._taken, why)
        else:
            self._end(LocalTransactionState(outcome))
