"""The order service's own database, and the listener that ties its local transactions to messages."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum

from commitlake import LocalTransactionState, Message, MessageExt, TransactionListener

TOPIC = "orders"
REVIEW_FROM = 1_000_00
"""Cents; an order that large is reviewed by a person before it counts."""
PATIENCE_MS = 4_000
"""A local transaction has ended by then; an order that is not in the table at that age is cancelled."""

_SCHEMA = """
CREATE TABLE accounts (customer TEXT PRIMARY KEY, balance INTEGER NOT NULL CHECK (balance >= 0));
CREATE TABLE orders (id TEXT PRIMARY KEY, tx TEXT UNIQUE, customer TEXT, amount INTEGER, state TEXT NOT NULL);
"""


class OrderState(StrEnum):
    """The state of an order in the order table."""

    PAID = "PAID"
    REVIEW = "REVIEW"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True)
class Order:
    """An order of `amount` cents."""

    id: str
    customer: str
    amount: int

    def to_message(self, topic: str = TOPIC) -> Message:
        """Return the order as a message whose key is the order's id."""
        return Message(topic, json.dumps(asdict(self)), keys=self.id)


class OrderTable:
    """Orders and accounts in a file of SQLite, which `create` makes; any number of processes may use it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def create(self, balances: Mapping[str, int]) -> None:
        """Create the tables, with the customers' balances in cents."""
        with self._transaction() as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(_SCHEMA)
            db.executemany("INSERT INTO accounts VALUES (?, ?)", balances.items())

    def place(self, order: Order, transaction_id: str | None) -> OrderState:
        """The local transaction: insert the order and charge the customer, both or neither.

        Returns:
            CANCELLED when neither happened: too little money, or the order was placed or cancelled before.
        """
        state = OrderState.REVIEW if order.amount >= REVIEW_FROM else OrderState.PAID
        try:
            with self._transaction() as db:
                row = (order.id, transaction_id, order.customer, order.amount, state)
                db.execute("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", row)
                if state is OrderState.PAID:
                    db.execute(
                        "UPDATE accounts SET balance = balance - ? WHERE customer = ?", (order.amount, order.customer)
                    )
        except sqlite3.IntegrityError:
            return OrderState.CANCELLED
        return state

    def state(self, transaction_id: str | None) -> OrderState | None:
        """Return the state of a transaction's order; None when it has none.

        Looked up by the transaction: an order that is sent again is another transaction with the same order id.
        """
        with self._transaction() as db:
            row = db.execute("SELECT state FROM orders WHERE tx = ?", (transaction_id,)).fetchone()
        return OrderState(row[0]) if row else None

    def cancel(self, order_id: str, transaction_id: str | None) -> OrderState:
        """Cancel an order that is not there, so that a late local transaction fails.

        Returns:
            The state of the transaction's order now; CANCELLED also when another transaction has placed the order.
        """
        row = (order_id, transaction_id, OrderState.CANCELLED)
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO orders (id, tx, state) VALUES (?, ?, ?)", row)
        return self.state(transaction_id) or OrderState.CANCELLED

    def paid(self) -> list[str]:
        """Return the ids of all paid orders."""
        with self._transaction() as db:
            return [row[0] for row in db.execute("SELECT id FROM orders WHERE state = ?", (OrderState.PAID,))]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=30, isolation_level="IMMEDIATE")
        with closing(connection) as db, db:
            yield db


class OrderListener(TransactionListener):
    """Decides by the order table, so any instance can answer the checks of any other."""

    def __init__(self, table: OrderTable) -> None:
        self.table = table

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        """Place the order `arg`; its half message is in Kafka by now."""
        assert isinstance(arg, Order)
        return decision(self.table.place(arg, message.transaction_id))

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Look the transaction up; another instance may have placed its order, and may be gone."""
        assert message.keys is not None
        state = self.table.state(message.transaction_id)
        age_ms = time.time() * 1_000 - (message.store_timestamp or 0)
        if state is None and age_ms > PATIENCE_MS:
            state = self.table.cancel(message.keys, message.transaction_id)
        return decision(state)


def decision(state: OrderState | None) -> LocalTransactionState:
    """Return the decision on a message by its order's state; an order in review is undecided."""
    match state:
        case OrderState.PAID:
            return LocalTransactionState.COMMIT_MESSAGE
        case OrderState.CANCELLED:
            return LocalTransactionState.ROLLBACK_MESSAGE
        case _:
            return LocalTransactionState.UNKNOW
