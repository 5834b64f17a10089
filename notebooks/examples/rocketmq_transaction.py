"""RocketMQ's transaction example: ten messages, and a listener that decides only when it is checked.

Of the ten transactions three are committed by a check, three rolled back by one, and four stay unknown: the
coordinator checks them `transaction.check_max` times, then discards them. Run it while a coordinator runs:

    .venv/bin/python notebooks/examples/rocketmq_transaction.py 127.0.0.1:19092

As there, a pool of threads answers checks, a transaction that the listener does not know is committed, and 10 ms pass
between two sends. RocketMQ's pool has 2 to 5 threads; Python's grows from 0 to 5. There a message also carries the host
of its sender, which the broker adds; Kafka tells nobody who sent a record, so a service that wants it sends a property.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from commitlake import LocalTransactionState, Message, MessageExt, TransactionListener, TransactionMQProducer

GROUP, TOPIC = "please_rename_unique_group_name", "TopicTest1234"
TAGS = ["TagA", "TagB", "TagC", "TagD", "TagE"]
ANSWERS = [
    LocalTransactionState.UNKNOW,
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
]


class TransactionListenerImpl(TransactionListener):
    """Numbers the local transactions, and answers a check by the number modulo 3."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._local_transactions: dict[str | None, int] = {}
        self._lock = threading.Lock()

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        """Remember the transaction, and leave it open."""
        with self._lock:
            self._local_transactions[message.transaction_id] = next(self._numbers) % 3
        return LocalTransactionState.UNKNOW

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Decide by the number of the local transaction."""
        number = self._local_transactions.get(message.transaction_id)
        return LocalTransactionState.COMMIT_MESSAGE if number is None else ANSWERS[number]


def send_ten(producer: TransactionMQProducer) -> list[str]:
    """Send the messages; return their transaction ids."""
    ids = []
    for i in range(10):
        message = Message(TOPIC, f"Hello RocketMQ {i}", tags=TAGS[i % len(TAGS)], keys=f"KEY{i}")
        result = producer.send_message_in_transaction(message, None)
        print(result)
        ids.append(str(result.transaction_id))
        time.sleep(0.01)
    return ids


def main(bootstrap_servers: str) -> None:
    """Send, then stay to answer checks until Ctrl-C."""
    pool = ThreadPoolExecutor(5, "client-transaction-msg-check-thread")
    listener = TransactionListenerImpl()
    with TransactionMQProducer(GROUP, listener, bootstrap_servers=bootstrap_servers, executor=pool) as producer:
        send_ten(producer)
        while True:
            time.sleep(1)


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:19092")
    except KeyboardInterrupt:
        pass
