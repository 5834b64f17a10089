"""CommitLake: RocketMQ's transactional messages on Kafka, Spark and Delta Lake."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from commitlake import errors

__version__ = "0.2.0"

if TYPE_CHECKING:  # what `_HOMES` says, for type checkers and editors
    from commitlake.consumer.consume import consume as consume
    from commitlake.consumer.spark import read_topic as read_topic
    from commitlake.consumer.spark import receipts as receipts
    from commitlake.coordinator import start as start
    from commitlake.errors import CommitLakeError as CommitLakeError
    from commitlake.errors import ConfigError as ConfigError
    from commitlake.errors import ConsumerError as ConsumerError
    from commitlake.errors import DatabaseError as DatabaseError
    from commitlake.errors import DoubledError as DoubledError
    from commitlake.errors import EmbeddedBrokerError as EmbeddedBrokerError
    from commitlake.errors import FailedSend as FailedSend
    from commitlake.errors import FencedError as FencedError
    from commitlake.errors import IdentityError as IdentityError
    from commitlake.errors import KafkaError as KafkaError
    from commitlake.errors import MQClientException as MQClientException
    from commitlake.errors import RefusedSend as RefusedSend
    from commitlake.errors import SetupError as SetupError
    from commitlake.errors import StreamError as StreamError
    from commitlake.errors import TransactionNotFoundError as TransactionNotFoundError
    from commitlake.errors import UncertainSend as UncertainSend
    from commitlake.errors import WarehouseError as WarehouseError
    from commitlake.producer import AsyncTransactionMQProducer as AsyncTransactionMQProducer
    from commitlake.producer import DefaultMQProducer as DefaultMQProducer
    from commitlake.producer import LocalTransactionState as LocalTransactionState
    from commitlake.producer import Message as Message
    from commitlake.producer import MessageExt as MessageExt
    from commitlake.producer import SendResult as SendResult
    from commitlake.producer import SendStatus as SendStatus
    from commitlake.producer import TransactionListener as TransactionListener
    from commitlake.producer import TransactionMQProducer as TransactionMQProducer
    from commitlake.producer import TransactionSendResult as TransactionSendResult
    from commitlake.questions.delayed import delayed as delayed
    from commitlake.writing.delta_transaction import delta_transaction as delta_transaction
    from commitlake.writing.sink import sink as sink

# Loaded on first use: a producer needs no Spark, a worker of Spark needs no Kafka client.
_HOMES = {
    "consume": "commitlake.consumer.consume",
    "read_topic": "commitlake.consumer.spark",
    "receipts": "commitlake.consumer.spark",
    "start": "commitlake.coordinator",
    "delayed": "commitlake.questions.delayed",
    "sink": "commitlake.writing.sink",
    "delta_transaction": "commitlake.writing.delta_transaction",
    **dict.fromkeys(
        (
            "AsyncTransactionMQProducer",
            "DefaultMQProducer",
            "LocalTransactionState",
            "Message",
            "MessageExt",
            "SendResult",
            "SendStatus",
            "TransactionListener",
            "TransactionMQProducer",
            "TransactionSendResult",
        ),
        "commitlake.producer",
    ),
    **dict.fromkeys(errors.__all__, "commitlake.errors"),
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - names of strings


if not TYPE_CHECKING:  # with it, each misspelt name would be `Any` to a type checker

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            msg = f"module 'commitlake' has no attribute {name!r}"
            raise AttributeError(msg)
        found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
