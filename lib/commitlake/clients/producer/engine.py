"""What the producer needs of a Kafka client that sends."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import Encoded

OLD_CLIENT_S = 30
"""For what a client that was replaced still holds."""
FORKED = (
    "this process was forked from the one that called start(), whose connection it can't use; make a producer in each "
    "process, after the fork"
)


class Sent(Protocol):
    """A record that was handed to a client."""

    @property
    def outcome(self) -> Future[Position]:
        """Where the record stands; or a `FailedSend`, when it stands nowhere; or an `UncertainSend`."""

    def withdraw(self) -> bool:
        """Give the record up; return whether it has not gone out, and never will."""


class Engine(Protocol):
    """A client that all threads share.

    It gives a record up when the longest time-out of all sends so far has passed, so nothing is sent long after a send
    has told the application that it failed.
    """

    def queues(self, topic: str, timeout_ms: int) -> int:
        """Partitions of a topic, once they are known.

        Raises:
            FailedSend: Kafka does not say.
        """

    def send(self, topic: str, queue: int, record: Encoded, timeout_ms: int) -> Sent:
        """Hand a record over.

        Args:
            topic: full name.
            queue: partition.
            record: key, value and headers.
            timeout_ms: how long the caller will wait.

        Raises:
            FailedSend: the client does not take it.
        """

    def flush(self, timeout_s: float) -> bool:
        """Wait until each record has its outcome, for at most `timeout_s`; return whether that is so."""

    def close(self, timeout_s: float) -> None:
        """Send what is buffered, for at most `timeout_s`, give up the rest, and end all threads."""
