"""The Python producer, with RocketMQ's names, for normal, batch, delayed and transactional messages. No Spark."""

from __future__ import annotations

from commitlake.clients.producer import quiet_import as quiet_import
from commitlake.clients.producer.asynchronous import AsyncTransactionMQProducer
from commitlake.clients.producer.database_row import DatabaseListener
from commitlake.clients.producer.default import DefaultMQProducer
from commitlake.clients.producer.listener import EndTransactionContext, EndTransactionHook, TransactionListener
from commitlake.clients.producer.message import (
    LocalTransactionState,
    Message,
    MessageExt,
    SendResult,
    SendStatus,
    TransactionSendResult,
)
from commitlake.clients.producer.transaction import Transaction
from commitlake.clients.producer.transactional import TransactionMQProducer
from commitlake.errors import FailedSend, MQClientException, RefusedSend, UncertainSend

__all__ = [
    "AsyncTransactionMQProducer",
    "DatabaseListener",
    "DefaultMQProducer",
    "EndTransactionContext",
    "EndTransactionHook",
    "FailedSend",
    "LocalTransactionState",
    "MQClientException",
    "Message",
    "MessageExt",
    "RefusedSend",
    "SendResult",
    "SendStatus",
    "Transaction",
    "TransactionListener",
    "TransactionMQProducer",
    "TransactionSendResult",
    "UncertainSend",
]
