"""The Python producer, with RocketMQ's names and plain ones, for normal, batch, delayed and transactional messages.

No Spark.
"""

from __future__ import annotations

from commitlake.clients.producer import quiet_import as quiet_import
from commitlake.clients.producer.asynchronous import AsyncTransaction, AsyncTransactionMQProducer
from commitlake.clients.producer.database_transaction import DatabaseListener
from commitlake.clients.producer.default import DefaultMQProducer
from commitlake.clients.producer.listener import EndTransactionContext, EndTransactionHook, TransactionListener
from commitlake.clients.producer.message import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    LocalTransactionState,
    Message,
    MessageExt,
    SendResult,
    SendStatus,
    TransactionSendResult,
)
from commitlake.clients.producer.transaction import Transaction
from commitlake.clients.producer.transactional import TransactionMQProducer
from commitlake.errors import FailedSendError, ProducerError, RefusedSendError, UncertainSendError

__all__ = [
    "COMMIT",
    "ROLLBACK",
    "UNKNOWN",
    "AsyncTransaction",
    "AsyncTransactionMQProducer",
    "AsyncTransactionalProducer",
    "DatabaseListener",
    "DefaultMQProducer",
    "EndTransactionContext",
    "EndTransactionHook",
    "FailedSendError",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "Producer",
    "ProducerError",
    "RefusedSendError",
    "SendResult",
    "SendStatus",
    "Transaction",
    "TransactionListener",
    "TransactionMQProducer",
    "TransactionSendResult",
    "TransactionalProducer",
    "UncertainSendError",
]

Producer = DefaultMQProducer
"""`DefaultMQProducer`, by a plain name."""
TransactionalProducer = TransactionMQProducer
"""`TransactionMQProducer`, by a plain name."""
AsyncTransactionalProducer = AsyncTransactionMQProducer
"""`AsyncTransactionMQProducer`, by a plain name."""
