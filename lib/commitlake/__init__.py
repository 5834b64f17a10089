"""CommitLake: RocketMQ's transactional messages on Kafka, Spark and Delta Lake."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

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
    **dict.fromkeys(("FailedSend", "MQClientException", "RefusedSend", "UncertainSend"), "commitlake.errors"),
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - names of strings


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'commitlake' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOMES[name]), name)
