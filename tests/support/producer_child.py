"""An instance of a producer group that kills itself in the middle of a transaction.

python -m tests.support.producer_child SERVERS PREFIX DATABASE NAME MOMENT

It sends the transactions `NAME-0` to `NAME-9` and dies in the local transaction of the last, `before` or `after` that
is committed.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from typing import Any

from commitlake import LocalTransactionState, Message, MessageExt, TransactionListener, TransactionMQProducer

COUNT = 10
QUICK = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}
"""A killed instance's share of the checks goes to the others after 6 s instead of Kafka's 45."""


class Orders(TransactionListener):
    """The local transaction is a row in SQLite; a check looks the row up."""

    def __init__(self, database: str, dies_at: str = "", moment: str = "") -> None:
        self.database, self.dies_at, self.moment = database, dies_at, moment

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        is_last = message.keys == self.dies_at
        if is_last and self.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        with sqlite3.connect(self.database) as db:
            db.execute("INSERT INTO orders VALUES (?)", (message.keys,))
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        found = sqlite3.connect(self.database).execute("SELECT 1 FROM orders WHERE id = ?", (message.keys,)).fetchone()
        return LocalTransactionState.COMMIT_MESSAGE if found else LocalTransactionState.ROLLBACK_MESSAGE


def main(servers: str, prefix: str, database: str, name: str, moment: str) -> None:
    listener = Orders(database, f"{name}-{COUNT - 1}", moment)
    where: dict[str, Any] = {"bootstrap_servers": servers, "topic_prefix": prefix}
    with TransactionMQProducer("shop", listener, **where, options=QUICK) as producer:
        for number in range(COUNT):
            producer.send_message_in_transaction(Message("orders", "a book", keys=f"{name}-{number}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
