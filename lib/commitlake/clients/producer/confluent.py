"""The engine that is librdkafka, by the package confluent-kafka: quicker with few threads, and optional."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import KafkaError as Failure
from confluent_kafka import KafkaException, Producer
from kafka.errors import TopicAuthorizationFailedError

from commitlake.clients.producer.engine import FORKED, OLD_CLIENT_S
from commitlake.errors import ConfigError, FailedSend, MQClientException, RefusedSend, UncertainSend
from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import Encoded

log = logging.getLogger(__name__)

_POLL_S = 0.1
_AGE_S = 30.0
"""How long an added queue may stay unknown, as with kafka-python."""
_DENIED = (Failure.TOPIC_AUTHORIZATION_FAILED, Failure.CLUSTER_AUTHORIZATION_FAILED)
_OF_A_BATCH = (Failure.MSG_SIZE_TOO_LARGE, Failure.RECORD_LIST_TOO_LARGE, Failure.INVALID_RECORD)
"""Told of each record of a batch that has a bad one."""
_REFUSED = (
    *_DENIED,
    *_OF_A_BATCH,
    Failure.TOPIC_EXCEPTION,
    Failure.POLICY_VIOLATION,
    Failure._UNKNOWN_PARTITION,
)

Options = Callable[[int], dict[str, Any]]
Explain = Callable[[Exception], str]


class ConfluentEngine:
    """Sends by one librdkafka client, which is replaced after an error that it calls fatal.

    librdkafka does not say whether a record that it gave up had gone out, so none can be withdrawn: such a send is
    uncertain.

    Args:
        options: librdkafka's options for a client that gives a record up after some ms.
        timeout_ms: how long a send waits.
        explain: returns what went wrong with Kafka, and what to do about it.
    """

    def __init__(self, options: Options, timeout_ms: int, explain: Explain) -> None:
        self._options, self._timeout_ms, self._explain = options, timeout_ms, explain
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._queues: dict[str, tuple[int, float]] = {}
        self._client = _Client(options(timeout_ms))
        self._lone: _Client | None = None

    def queues(self, topic: str, timeout_ms: int) -> int:
        """See `Engine`."""
        known, until = self._queues.get(topic, (0, 0.0))
        if time.monotonic() < until:
            return known
        try:
            found = self._current(timeout_ms).producer.list_topics(topic, timeout_ms / 1_000).topics[topic]
        except KafkaException as error:
            raise self._told(error.args[0], is_sent=False) from error
        if found.error is not None:
            raise self._told(found.error, is_sent=False)
        self._queues[topic] = len(found.partitions), time.monotonic() + _AGE_S
        return len(found.partitions)

    def send(self, topic: str, queue: int, record: Encoded, timeout_ms: int) -> _ConfluentSending:
        """See `Engine`."""
        sending = _ConfluentSending()
        again = partial(self._produce, self._alone, topic, queue, record, sending, None)
        self._produce(lambda: self._current(timeout_ms), topic, queue, record, sending, again)
        return sending

    def _produce(
        self,
        choose: Callable[[], _Client],
        topic: str,
        queue: int,
        record: Encoded,
        sending: _ConfluentSending,
        again: Callable[[], None] | None,
    ) -> None:
        client = choose()
        try:
            client.producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=[*record.headers],
                partition=queue,
                on_delivery=partial(self._delivered, client, sending.outcome, again),
            )
        except BufferError as error:
            msg = f"librdkafka's queue is full: {error}"
            raise FailedSend(msg) from error
        except KafkaException as error:
            self._note(client, error.args[0])
            raise self._told(error.args[0], is_sent=False) from error

    def flush(self, timeout_s: float) -> bool:
        """See `Engine`."""
        until = time.monotonic() + timeout_s
        left = [each.producer.flush(max(0.0, until - time.monotonic())) for each in self._clients()]
        return not any(left)

    def close(self, timeout_s: float) -> None:
        """See `Engine`."""
        if os.getpid() == self._pid:  # the connection of a parent process is the parent's
            until = time.monotonic() + timeout_s
            for each in self._clients():
                each.close(max(0.0, until - time.monotonic()))

    def _clients(self) -> Iterator[_Client]:
        """The second one may be made while the first one is flushed."""
        yield self._client
        if self._lone:
            yield self._lone

    def _alone(self) -> _Client:
        """A client that makes a batch of each record, so that one is refused for what it is itself."""
        with self._lock:
            if self._lone is None or self._lone.is_spoilt:
                self._replaced(self._lone)
                self._lone = _Client({**self._options(self._timeout_ms), "batch.num.messages": 1})
            return self._lone

    def _replaced(self, old: _Client | None) -> None:
        if old is not None:
            closing = partial(old.close, OLD_CLIENT_S)
            threading.Thread(target=closing, name="commitlake-old-client", daemon=True).start()

    def _delivered(
        self,
        client: _Client,
        outcome: Future[Position],
        again: Callable[[], None] | None,
        error: Failure | None,
        record: Any,
    ) -> None:
        if error is None:
            outcome.set_result(Position(record.partition(), record.offset()))
            return
        self._note(client, error)
        told = _failure_of(again) if again and error.code() in _OF_A_BATCH else self._told(error)
        if told:
            outcome.set_exception(told)

    def _told(self, error: Failure, *, is_sent: bool = True) -> MQClientException:
        """The public error for one of librdkafka; `is_sent` says whether the record may have gone out."""
        text = f"{error.name()}: {error.str()}"
        if error.code() in _DENIED:
            text = self._explain(TopicAuthorizationFailedError(text))
        if error.code() in _REFUSED:
            return RefusedSend(text)
        return UncertainSend(text) if is_sent else FailedSend(text)

    def _note(self, client: _Client, error: Failure) -> None:
        if error.fatal() or error.code() == Failure._FATAL:
            client.is_spoilt = True

    def _current(self, timeout_ms: int) -> _Client:
        if os.getpid() != self._pid:
            raise FailedSend(FORKED)
        with self._lock:
            if self._client.is_spoilt or timeout_ms > self._timeout_ms:
                longest_ms = max(timeout_ms, self._timeout_ms)
                old, self._client = self._client, _Client(self._options(longest_ms))
                self._timeout_ms = longest_ms
                self._replaced(old)
            return self._client


def _failure_of(again: Callable[[], None]) -> MQClientException | None:
    """Sends again what Kafka has refused, so that it is nowhere if that fails."""
    try:
        again()
    except MQClientException as told:
        return told
    except ConfigError as error:
        return FailedSend(str(error))
    except Exception as error:
        log.exception("a record that Kafka had refused in a batch could not be sent by itself")
        return FailedSend(f"{type(error).__name__}: {error}")
    return None


class _Client:
    """librdkafka's producer, and the thread that calls back."""

    def __init__(self, options: dict[str, Any]) -> None:
        try:
            self.producer = Producer({**options, "logger": log})
        except KafkaException as error:  # its ranges are not Java's, and what it can do depends on how it was built
            msg = (
                f"options and client_options: librdkafka says: {error.args[0].str().strip()}; change that one, or use "
                "engine='kafka-python'"
            )
            raise ConfigError(msg) from error
        self.is_spoilt = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="commitlake-librdkafka", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        if self.producer.flush(timeout_s):
            log.warning("not every record was acknowledged within %.1f s", timeout_s)
            self.producer.purge()
            self.producer.flush(1.0)
        self._stopping.set()
        self._thread.join(1.0)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                self.producer.poll(_POLL_S)
            except BaseException:  # without this thread no send would have an outcome
                log.exception("the callback of a send failed")


class _ConfluentSending:
    """One record on its way; see `Sent`."""

    def __init__(self) -> None:
        self.outcome: Future[Position] = Future()

    def withdraw(self) -> bool:
        return False
