"""The Python producer, with RocketMQ's names: normal, batch, delayed and transactional messages. It needs no Spark."""

from __future__ import annotations

from commitlake.errors import FailedSend, MQClientException, RefusedSend, UncertainSend
from commitlake.producer.asynchronous import AsyncTransactionMQProducer
from commitlake.producer.default import DefaultMQProducer
from commitlake.producer.listener import EndTransactionContext, EndTransactionHook, TransactionListener
from commitlake.producer.message import (
    LocalTransactionState,
    Message,
    MessageExt,
    SendResult,
    SendStatus,
    TransactionSendResult,
)
from commitlake.producer.transaction import Transaction
from commitlake.producer.transactional import TransactionMQProducer

__all__ = [
    "AsyncTransactionMQProducer",
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
