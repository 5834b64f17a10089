"""Every error CommitLake raises on purpose, in one place.

A message names what is wrong, the value met, what is allowed, and what to do about it. It never holds a secret.
"""

from __future__ import annotations


class CommitLakeError(Exception):
    """Root of all errors raised by CommitLake."""


class ConfigError(CommitLakeError):
    """Raised when a configuration key is unknown or its value is not allowed."""


class SetupError(CommitLakeError):
    """Raised when the machine lacks something CommitLake needs, for example Java 17."""


class KafkaError(CommitLakeError):
    """Raised when Kafka is out of reach, refuses access, or its topics do not fit."""


class IdentityError(KafkaError):
    """Raised when this is not the Kafka cluster, topic or log the warehouse was filled from."""


class EmbeddedBrokerError(KafkaError):
    """Raised when the embedded broker does not start."""


class WarehouseError(CommitLakeError):
    """Raised when the warehouse is out of reach, not writable, or holds something unexpected."""


class FencedError(CommitLakeError):
    """Raised when another coordinator holds, or has taken over, the warehouse."""


class StreamError(CommitLakeError):
    """Raised when a streaming query failed, for example because a table was not writable."""

    def __init__(self, query: str, reason: str) -> None:
        super().__init__(
            f"the {query} query failed: {reason}; mend the cause and start again: nothing is lost, the next start goes "
            "on from the tables"
        )


class TransactionNotFoundError(CommitLakeError):
    """Raised when a transaction id names no transaction, or more than one."""


class RecordError(CommitLakeError):
    """Raised when a Kafka record breaks the protocol.

    Attributes:
        reason: the code that the `rejected` table would show, for example `BAD_OP`; None when there is none.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class MQClientException(CommitLakeError):
    """Raised by the producer when a call is refused or its outcome is uncertain.

    Attributes:
        reason: the code that landing would have given, for example `ILLEGAL_TOPIC`; None when there is none.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


def root_reason(error: Exception) -> str:
    """The innermost cause of an error, on one line: what a person can act on is rarely the outermost one."""
    java = getattr(error, "java_exception", None)
    while java is not None and java.getCause() is not None:
        java = java.getCause()
    text = str(java.toString() if java is not None else error).strip()
    return text.splitlines()[0] if text else type(error).__name__
