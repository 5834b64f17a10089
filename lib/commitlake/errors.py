"""The errors that CommitLake raises, as one tree; docs/reference/errors.md says what to do about each.

A message names what is wrong, the value, what is allowed, and what to do about it. It never holds a secret.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = [
    "CommitLakeError",
    "ConfigError",
    "ConsumerError",
    "DatabaseError",
    "DoubledError",
    "EmbeddedBrokerError",
    "FailedSend",
    "FencedError",
    "IdentityError",
    "KafkaError",
    "MQClientException",
    "NoTableError",
    "RefusedSend",
    "SetupError",
    "StreamError",
    "TransactionNotFoundError",
    "UncertainSend",
    "WarehouseError",
]
"""Those that reach a user of the package; the package has all of them, too."""
OUT_OF_MEMORY = "OutOfMemoryError"
"""Java's name for it."""


class CommitLakeError(Exception):
    """Base class of all errors that CommitLake raises."""


class ConfigError(CommitLakeError):
    """Raised when a configuration key is unknown or its value is not allowed."""


class SetupError(CommitLakeError):
    """Raised when the machine lacks something that CommitLake needs, for example Java 17."""


class KafkaError(CommitLakeError):
    """Raised when Kafka is out of reach, refuses access, or its topics have the wrong partitions or settings."""


class IdentityError(KafkaError):
    """Raised when this is not the Kafka cluster, topic or log that the warehouse was filled from."""


class EmbeddedBrokerError(KafkaError):
    """Raised when the embedded broker does not start."""


class WarehouseError(CommitLakeError):
    """Raised when the warehouse is out of reach, not writable, or holds something unexpected."""


class NoTableError(WarehouseError):
    """Raised when a table is not there, for example that of a topic of which nothing is visible yet."""


class FencedError(CommitLakeError):
    """Raised when another coordinator holds, or has taken over, the warehouse."""


class StreamError(CommitLakeError):
    """Raised when a streaming query failed, for example because a table was not writable.

    Args:
        query: name of the query; `start-up` of those before there is a stream.
        reason: the cause, on one line.

    Attributes:
        what: what failed, without what to do about it.
    """

    def __init__(self, query: str, reason: str) -> None:
        self.what = f"the {query} query failed: {reason}"
        super().__init__(
            f"{self.what}; fix the cause and start again; nothing is lost: the next start continues from the tables"
        )


class DoubledError(CommitLakeError):
    """Raised when a message would end a second time: a stop in place of a row that is shown twice.

    Args:
        what: what stands twice.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: a defect of CommitLake, or a log store that commits twice; start again, which works out from the "
            "tables what is open; if it comes again, run the audit and report both"
        )


class TransactionNotFoundError(CommitLakeError):
    """Raised when a transaction id names no transaction, or more than one."""


class RecordError(CommitLakeError):
    """Raised within CommitLake when a Kafka record breaks the protocol; a producer raises an `MQClientException` of it.

    Attributes:
        reason: the reason in the table `rejected`, for example `BAD_OP`; None when there is none.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class GatewayRefusal(CommitLakeError):
    """Raised within a gateway that refuses the call of a RocketMQ client, which gets a status.

    Attributes:
        code: its code, by RocketMQ's name, for example `UNSUPPORTED`.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class MQClientException(CommitLakeError):
    """Raised by a producer whose call did nothing. A send raises one of its subclasses, which say what became of it.

    Attributes:
        reason: the rule that refused the message, as landing would name it, for example `ILLEGAL_TOPIC`; the same
            message is refused again. None: no rule did, for example as Kafka is out of reach.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class FailedSend(MQClientException):
    """Raised by a send of which nothing is in Kafka, nor will be: sending again can't make a second one."""


class RefusedSend(FailedSend):
    """Raised by a send that would be refused again: of an illegal message, one too large, or without the right."""


class UncertainSend(MQClientException):
    """Raised when a record may or may not be in Kafka; the same `Message` object may be sent again: it keeps its id."""


class DatabaseError(CommitLakeError):
    """A database whose table answers checks can't be reached, or refuses."""


class ConsumerError(CommitLakeError):
    """Raised when a consumer is given something that it can't use, or can't go on."""


def root_reason(error: Exception) -> str:
    """The innermost cause of an error, on one line: a person can rarely act on the outermost one."""
    java = getattr(error, "java_exception", None)
    while java is not None and java.getCause() is not None:
        java = java.getCause()
    text = str(java.toString() if java is not None else error).strip()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    if not lines:
        return type(error).__name__
    # Of an error in a Python worker Spark's first line says only that there was one; Python's last line says which.
    return lines[-1].strip() if any(line.startswith("Traceback") for line in lines) else lines[0]


def explained(query: str, cause: Exception, more: Callable[[str], str] = str) -> CommitLakeError:
    """What a user is told of the failure of a query; an error of CommitLake's says it already.

    Args:
        query: as of `StreamError`.
        cause: what failed.
        more: adds to the reason what is known besides.
    """
    if isinstance(cause, CommitLakeError):
        return cause
    reason = more(root_reason(cause))
    told = SetupError(out_of_memory(reason)) if OUT_OF_MEMORY in reason else StreamError(query, reason)
    told.__cause__ = cause
    return told


def installed_by(extras: str) -> str:
    """The command that brings the packages of extras; the name on PyPI is not ours."""
    return f"pip install '/path/to/clone[{extras}]'"


def out_of_memory(reason: str) -> str:
    """What to do when Java has run out of memory."""
    return (
        f"Spark ran out of memory: {reason}; nothing is lost; raise spark.driver.memory (2g by default; on a cluster "
        "spark.executor.memory too) with COMMITLAKE_SPARK_ARGS='--conf spark.driver.memory=4g', and start again"
    )
