"""CommitLake: RocketMQ's transactional messages on Kafka, Spark and Delta Lake."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

from commitlake import errors
from commitlake.protocol.version import __version__

if TYPE_CHECKING:  # the names of `_HOMES`, for type checkers and editors
    from commitlake.clients.consumer.asynchronous import AsyncConsumer as AsyncConsumer
    from commitlake.clients.consumer.consume import Consumer as Consumer
    from commitlake.clients.consumer.consume import consume as consume
    from commitlake.clients.consumer.message import MessageBatch as MessageBatch
    from commitlake.clients.consumer.message import ReceivedMessage as ReceivedMessage
    from commitlake.clients.consumer.spark import SparkReceipts as SparkReceipts
    from commitlake.clients.consumer.spark import read_topic as read_topic
    from commitlake.clients.consumer.spark import receipts as receipts
    from commitlake.clients.delta.delta_transaction import DeltaTransaction as DeltaTransaction
    from commitlake.clients.delta.delta_transaction import delta_transaction as delta_transaction
    from commitlake.clients.delta.sink import sink as sink
    from commitlake.clients.producer import COMMIT as COMMIT
    from commitlake.clients.producer import ROLLBACK as ROLLBACK
    from commitlake.clients.producer import UNKNOWN as UNKNOWN
    from commitlake.clients.producer import AsyncTransaction as AsyncTransaction
    from commitlake.clients.producer import AsyncTransactionalProducer as AsyncTransactionalProducer
    from commitlake.clients.producer import AsyncTransactionMQProducer as AsyncTransactionMQProducer
    from commitlake.clients.producer import DatabaseListener as DatabaseListener
    from commitlake.clients.producer import DefaultMQProducer as DefaultMQProducer
    from commitlake.clients.producer import EndTransactionContext as EndTransactionContext
    from commitlake.clients.producer import LocalTransactionState as LocalTransactionState
    from commitlake.clients.producer import Message as Message
    from commitlake.clients.producer import MessageExt as MessageExt
    from commitlake.clients.producer import Producer as Producer
    from commitlake.clients.producer import SendResult as SendResult
    from commitlake.clients.producer import SendStatus as SendStatus
    from commitlake.clients.producer import Transaction as Transaction
    from commitlake.clients.producer import TransactionalProducer as TransactionalProducer
    from commitlake.clients.producer import TransactionListener as TransactionListener
    from commitlake.clients.producer import TransactionMQProducer as TransactionMQProducer
    from commitlake.clients.producer import TransactionSendResult as TransactionSendResult
    from commitlake.clients.tracing import trace as trace
    from commitlake.coordinator.coordinator import Coordinator as Coordinator
    from commitlake.coordinator.coordinator import start as start
    from commitlake.errors import ArgumentError as ArgumentError
    from commitlake.errors import CommitLakeError as CommitLakeError
    from commitlake.errors import ConfigError as ConfigError
    from commitlake.errors import ConsumerError as ConsumerError
    from commitlake.errors import DatabaseError as DatabaseError
    from commitlake.errors import DoubledError as DoubledError
    from commitlake.errors import EmbeddedBrokerError as EmbeddedBrokerError
    from commitlake.errors import FailedSend as FailedSend
    from commitlake.errors import FailedSendError as FailedSendError
    from commitlake.errors import FencedError as FencedError
    from commitlake.errors import IdentityError as IdentityError
    from commitlake.errors import KafkaError as KafkaError
    from commitlake.errors import MQClientException as MQClientException
    from commitlake.errors import NoTableError as NoTableError
    from commitlake.errors import ProducerError as ProducerError
    from commitlake.errors import RefusedSend as RefusedSend
    from commitlake.errors import RefusedSendError as RefusedSendError
    from commitlake.errors import SetupError as SetupError
    from commitlake.errors import StreamError as StreamError
    from commitlake.errors import TransactionNotFoundError as TransactionNotFoundError
    from commitlake.errors import UncertainSend as UncertainSend
    from commitlake.errors import UncertainSendError as UncertainSendError
    from commitlake.errors import WarehouseError as WarehouseError
    from commitlake.reading.questions.delayed import delayed as delayed
    from commitlake.spark.session import session as session
    from commitlake.tables.warehouse import read_table as read_table
    from commitlake.tools.audit import ledger as ledger
    from commitlake.tools.audit.audit import audit as audit
    from commitlake.tools.readiness import doctor as doctor

if sys.version_info < (3, 11):  # noqa: UP036 - pip refuses it, a spark-submit with the Python of a cluster does not
    _old = (
        f"this is Python {sys.version_info[0]}.{sys.version_info[1]}, {sys.executable}; CommitLake runs on Python 3.11 "
        "and newer; use one, with Spark by PYSPARK_PYTHON"
    )
    raise errors.SetupError(_old)

# Modules are loaded on first use: a producer needs no Spark, a Spark worker needs no Kafka client.
_NAMES = {
    "clients.consumer.asynchronous": "AsyncConsumer",
    "clients.consumer.consume": "Consumer consume",
    "clients.consumer.message": "MessageBatch ReceivedMessage",
    "clients.consumer.spark": "SparkReceipts read_topic receipts",
    "clients.delta.delta_transaction": "DeltaTransaction delta_transaction",
    "clients.delta.sink": "sink",
    "clients.producer": "Producer TransactionalProducer AsyncTransactionalProducer COMMIT ROLLBACK UNKNOWN "
    "DefaultMQProducer TransactionMQProducer AsyncTransactionMQProducer LocalTransactionState DatabaseListener "
    "TransactionListener EndTransactionContext Transaction AsyncTransaction Message MessageExt SendResult SendStatus "
    "TransactionSendResult",
    "clients.tracing": "trace",
    "coordinator.coordinator": "Coordinator start",
    "errors": " ".join(errors.__all__),
    "reading.questions.delayed": "delayed",
    "spark.session": "session",
    "tables.warehouse": "read_table",
    "tools.audit.audit": "audit",
    "tools.audit.ledger": "ledger",
    "tools.readiness": "doctor",
}
_HOMES = {name: f"commitlake.{home}" for home, names in _NAMES.items() for name in names.split()}

# Extras that install the optional packages of a home; the first prefix that matches counts.
_EXTRAS = {
    "commitlake.clients.consumer.spark": "consumer,spark",
    "commitlake.clients.consumer": "consumer",
    "commitlake.clients.delta": "consumer,spark",
    "commitlake.coordinator": "spark",
    "commitlake.reading": "consumer",
    "commitlake.spark": "spark",
    "commitlake.tables": "spark",
    "commitlake.tools": "spark",
}
_BRINGS = {
    "consumer": {"deltalake", "duckdb", "pyarrow", "sqlglot"},
    "spark": {"delta", "pandas", "pyarrow", "pyspark"},
}
_OPTIONAL = set().union(*_BRINGS.values())


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # only part of the module is installed
        return False


def _can_load() -> list[str]:
    """The names whose packages are installed: `import *` and `help()` load every name that `__all__` lists."""
    lacks = {module for module in _OPTIONAL if not _has(module)}
    needs = {extra: modules & lacks for extra, modules in _BRINGS.items()}
    return [name for name in _HOMES if not any(needs[extra] for extra in _extras(name).split(",") if extra)]


if not TYPE_CHECKING:  # a type checker that saw `__getattr__` would take each misspelt name for `Any`

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            msg = f"module 'commitlake' has no attribute {name!r}"
            raise AttributeError(msg)
        try:
            home = importlib.import_module(_HOMES[name])
            found = globals()[name] = getattr(home, name, home)  # `ledger` is a module
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _OPTIONAL:
                raise
            raise errors.SetupError(_missing(name, error.name)) from error
        return found


def _extras(name: str) -> str:
    """Extras that install the packages of a name, joined by commas; empty when the name needs none."""
    return next((extras for home, extras in _EXTRAS.items() if _HOMES[name].startswith(home)), "")


def _missing(name: str, module: str | None) -> str:
    extras = _extras(name) or "all"
    return f"commitlake.{name} needs the module {module}; install it with {errors.installed_by(extras)}"


__all__ = ["__version__", *_can_load()]  # noqa: PLE0604 - names of strings


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
