"""The errors that CommitLake raises, as one tree; docs/reference/errors.md has the remedy for each.

A message names the mistake, the value, the allowed values, and the remedy. No message holds a secret.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable

__all__ = [
    "ArgumentError",
    "CommitLakeError",
    "ConfigError",
    "ConsumerError",
    "DatabaseError",
    "DoubledError",
    "EmbeddedBrokerError",
    "FailedSend",
    "FailedSendError",
    "FencedError",
    "IdentityError",
    "KafkaError",
    "MQClientException",
    "NoTableError",
    "ProducerError",
    "RefusedSend",
    "RefusedSendError",
    "SetupError",
    "StreamError",
    "TransactionNotFoundError",
    "UncertainSend",
    "UncertainSendError",
    "WarehouseError",
]
"""Errors that reach a user, and former names of some; the package `commitlake` exports all of them."""
OUT_OF_MEMORY = "OutOfMemoryError"
"""Java's name for the error."""


class CommitLakeError(Exception):
    """Base class of all errors that CommitLake raises."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the text as it is: some classes make it of other arguments, and a pool could not load those."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class ConfigError(CommitLakeError):
    """Raised when a configuration key is unknown or its value is not allowed."""


class SetupError(CommitLakeError):
    """Raised when the machine lacks something that CommitLake needs, for example Java 17."""


class KafkaError(CommitLakeError):
    """Raised when Kafka is out of reach, refuses access, or its topics have the wrong partitions or settings."""


class IdentityError(KafkaError):
    """Raised when the Kafka cluster, topic or log is not the one that the warehouse was filled from."""


class EmbeddedBrokerError(KafkaError):
    """Raised when the embedded broker does not start."""


class WarehouseError(CommitLakeError):
    """Raised when the warehouse is out of reach, not writable, or holds something unexpected."""


class NoTableError(WarehouseError):
    """Raised when a table is missing, for example the table of a topic that has no visible message yet."""


class CatalogAwayError(WarehouseError, ConnectionError):
    """Raised within CommitLake when Unity Catalog does not answer; a consumer tries again, as when a store is away."""


class AnswerError(CommitLakeError):
    """Raised within CommitLake when a service on HTTP does not answer as it must.

    Attributes:
        status: of HTTP; None when there is no answer, or none that can be read.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class FencedError(CommitLakeError):
    """Raised when another coordinator holds, or has taken over, the warehouse."""


class StreamError(CommitLakeError):
    """Raised when a streaming query failed, for example because a table was not writable.

    Args:
        query: name of the query; `start-up` for queries that run before the streams.
        reason: the cause, on one line.

    Attributes:
        what: the failure, without the remedy.
    """

    def __init__(self, query: str, reason: str) -> None:
        self.what = f"the {query} query failed: {reason}"
        super().__init__(
            f"{self.what}; fix the cause and start again; nothing is lost: the next start continues from the tables"
        )


class DoubledError(CommitLakeError):
    """Raised when a message would end twice, or its row is missing: the coordinator stops instead of showing it twice.

    Args:
        what: the finding, for example which message ends twice.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: a defect of CommitLake, or a log store that commits twice; start again, which works out from the "
            "tables what is open; if it comes again, run the audit and report both"
        )


class TransactionNotFoundError(CommitLakeError):
    """Raised when a transaction id names no transaction, or more than one."""


class RecordError(CommitLakeError):
    """Raised within CommitLake when a record breaks the protocol; a producer raises another error for it.

    Attributes:
        reason: the reason in the table `rejected`, for example `BAD_OP`; None for an error without one.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class GatewayRefusal(CommitLakeError):
    """Raised within a gateway that refuses the call of a RocketMQ client; the client gets a status.

    Attributes:
        code: RocketMQ's name for the status code, for example `UNSUPPORTED`.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class UndecidedError(CommitLakeError):
    """Raised within CommitLake by a listener in place of an answer: the check is asked again, and does not count."""


class ProducerError(CommitLakeError):
    """Raised by a producer whose call had no effect. A send raises a subclass, which says what happened to the record.

    Attributes:
        reason: landing's name for the rule that refused the message, for example `ILLEGAL_TOPIC`; the same message
            would be refused again. None when no rule refused it, for example because Kafka is out of reach.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class FailedSendError(ProducerError):
    """Raised by a send that left nothing in Kafka and never will: a second send can't make a duplicate."""


class RefusedSendError(FailedSendError):
    """Raised by a send that would be refused again: the message is illegal or too large, or the right is missing."""


class UncertainSendError(ProducerError):
    """Raised when a record may or may not be in Kafka. The same `Message` object may be sent again: it keeps its id."""


class DatabaseError(CommitLakeError):
    """Raised when a database whose table answers checks can't be reached, or refuses the query."""


class ConsumerError(CommitLakeError):
    """Raised when a consumer can't continue, or can't store a receipt."""


class ArgumentError(ProducerError, ConsumerError, ConfigError, ValueError):
    """Raised when a call gets an argument that it can't use; a `ValueError`, as Python's own calls raise."""


MQClientException = ProducerError
"""RocketMQ's name."""
FailedSend = FailedSendError
"""The former name, which version 0.4 will not have."""
RefusedSend = RefusedSendError
"""The former name, which version 0.4 will not have."""
UncertainSend = UncertainSendError
"""The former name, which version 0.4 will not have."""


def root_reason(error: Exception) -> str:
    """The innermost cause of an error, on one line: a person can rarely act on the outermost one."""
    java = getattr(error, "java_exception", None)
    while java is not None and java.getCause() is not None:
        java = java.getCause()
    text = str(java.toString() if java is not None else error).strip()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    if not lines:
        return type(error).__name__
    # For an error in a Python worker, Spark's first line only says that one occurred; Python's last line names it.
    if any("Traceback (most recent call last)" in line for line in lines):
        return lines[-1].strip()
    # Some of Spark's texts begin with an empty line, behind the name of their class.
    return " ".join(lines[:2]) if lines[0].rstrip().endswith("Exception:") else lines[0]


def explained(query: str, cause: Exception, more: Callable[[str], str] = str) -> CommitLakeError:
    """The public error for the failure of a query; an error of CommitLake's own is returned as it is.

    Args:
        query: as for `StreamError`.
        cause: the failure.
        more: adds details to the reason.
    """
    if isinstance(cause, CommitLakeError):
        return cause
    reason = more(root_reason(cause))
    told = SetupError(out_of_memory(reason)) if OUT_OF_MEMORY in reason else StreamError(query, reason)
    told.__cause__ = cause
    return told


def installed_by(extras: str) -> str:
    """The command that installs the packages of extras, from a clone, since the name on PyPI is not ours."""
    return f"pip install '/path/to/clone[{extras}]'"


def out_of_memory(reason: str) -> str:
    """The text for a user when Java has run out of memory."""
    return (
        f"Spark ran out of memory: {reason}; nothing is lost; raise spark.driver.memory (2g by default; on a cluster "
        "spark.executor.memory too) with COMMITLAKE_SPARK_ARGS='--conf spark.driver.memory=4g', and start again"
    )


def described(error: BaseException) -> str:
    """The class and the text of an error of somebody's code; the class alone where its `__str__` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
