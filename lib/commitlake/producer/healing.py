"""A Kafka client that is replaced when it has failed for good.

kafka-python's idempotent producer never sends again after an error that Kafka will not take back: a record that is too
large for the topic, a right that was withdrawn, a corrupt record.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError as ClientError
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from commitlake.errors import MQClientException

log = logging.getLogger(__name__)

_OLD_CLIENT_S = 30
_FORKED = (
    "this process was forked from the one that called start(), whose connection it can't use; make a producer in each "
    "process, after the fork"
)


class HealingClient:
    """Sends by one client that all threads share, until an error spoils it; then by a new one.

    Args:
        connect: makes a client; raises kafka-python's errors.
    """

    def __init__(self, connect: Callable[[], KafkaProducer]) -> None:
        self._connect = connect
        self._client = connect()
        self._spoilt: KafkaProducer | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def send(self, *arguments: Any, **named: Any) -> Any:
        """As `KafkaProducer.send`."""
        client = self._current()
        try:
            return self._watched(client, client.send(*arguments, **named))
        except (KafkaTimeoutError, MessageSizeTooLargeError):  # of this record
            raise
        except ClientError:  # of one before it: nothing was sent
            self._spoilt = client
            client = self._current()
            return self._watched(client, client.send(*arguments, **named))

    def partitions_for(self, topic: str) -> set[int]:
        """As `KafkaProducer.partitions_for`."""
        found: set[int] = self._current().partitions_for(topic)
        return found

    def flush(self, timeout: float) -> None:
        """As `KafkaProducer.flush`."""
        self._client.flush(timeout=timeout)

    def close(self, timeout: float) -> None:
        """Sends what is buffered, for at most `timeout` seconds, and disconnects."""
        if os.getpid() == self._pid:  # the connection of a parent process is the parent's
            self._client.close(timeout=timeout / 2)  # kafka-python waits twice

    def _watched(self, client: KafkaProducer, sent: Any) -> Any:
        sent.add_errback(partial(self._note, client))
        return sent

    def _note(self, client: KafkaProducer, error: Exception) -> None:
        if not isinstance(error, KafkaTimeoutError) and not getattr(error, "retriable", False):
            self._spoilt = client

    def _current(self) -> KafkaProducer:
        if os.getpid() != self._pid:
            raise MQClientException(_FORKED)
        with self._lock:
            if self._spoilt is not None and self._spoilt is self._client:
                log.warning("connecting to Kafka again: after its last error this connection sends nothing more")
                old = self._spoilt
                self._client = self._connect()
                # What it still holds is uncertain; it fails now or is sent yet.
                closing = partial(old.close, timeout=_OLD_CLIENT_S)
                threading.Thread(target=closing, name="commitlake-old-client", daemon=True).start()
            return self._client
