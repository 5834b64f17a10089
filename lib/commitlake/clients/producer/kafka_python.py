"""The engine that sends with kafka-python's client.

This module works around a limit of the client. Its idempotent producer sends nothing any more after a permanent error
(a record too large for the topic, a withdrawn right, a corrupt record). Nor does it after it gave up a record that may
have gone out: it forgets its producer id, and asks for no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from kafka import KafkaProducer
from kafka import errors as kafka_errors
from kafka.errors import KafkaError as ClientError
from kafka.errors import KafkaTimeoutError

from commitlake.clients.producer.engine import OLD_CLIENT_S, SHUT_DOWN, Queue, Result
from commitlake.errors import FailedSendError, ProducerError, RefusedSendError, UncertainSendError
from commitlake.kafka.refusals import is_refusal
from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import Encoded

log = logging.getLogger(__name__)

ASKING_MS = 100
"""How long kafka-python may wait for the partitions of a topic; a send with more time asks again."""
_REFUSED = (
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.InvalidRecordError,
    kafka_errors.InvalidTopicError,
    kafka_errors.PolicyViolationError,
)
_BESIDE_REFUSED = "part of a batch which had one more"
"""Part of kafka-python's error for a good record in a batch that Kafka refused as a whole."""

Connect = Callable[[int, bool], KafkaProducer]
"""Makes a client that gives a record up after so many ms; the flag says whether it is the first client. Raises
kafka-python's errors."""
Explain = Callable[[Exception], str]


class KafkaPythonEngine:
    """Sends with one client that all threads share, until an error spoils it; then with a new one."""

    def __init__(self, connect: Connect, timeout_ms: int, explain: Explain) -> None:
        self._connect, self._timeout_ms, self._explain = connect, timeout_ms, explain
        self._client, self._made_for_ms = connect(timeout_ms, True), timeout_ms
        self._old: list[KafkaProducer] = []  # replaced clients, until all their records have an outcome
        self._awaited_until = 0.0  # the latest time until which a send waits for a new client, by a monotonic clock
        self._spoilt: KafkaProducer | None = None
        self._renewal: Future[KafkaProducer] | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def send(self, topic: str, queue: Queue, record: Encoded, timeout_ms: int) -> Result[Position]:
        """See `Engine`."""
        named = {"key": record.key, "value": record.value, "headers": record.headers}
        client, sent = self._hand_over(topic, queue, named, timeout_ms)
        outcome = Result[Position]()
        sent.add_callback(lambda found: outcome.set_result(Position(found.partition, found.offset)))
        sent.add_errback(partial(self._failed, client, topic, sent, outcome))
        return outcome

    def flush(self, timeout_s: float) -> bool:
        """See `Engine`."""
        until = time.monotonic() + timeout_s
        return all([_flushed(each, until) for each in (self._client, *self._old)])

    def close(self, timeout_s: float) -> None:
        """See `Engine`."""
        with self._lock:
            self._is_closed = True
        until = time.monotonic() + timeout_s
        self.flush(timeout_s / 2)
        for each in (self._client, *self._old):
            _close(each, max(0.0, until - time.monotonic()))

    def _failed(
        self, client: KafkaProducer, topic: str, sent: Any, outcome: Result[Position], error: Exception
    ) -> None:
        if isinstance(error, KafkaTimeoutError) or not getattr(error, "retriable", False):
            self._spoilt = client  # the next send replaces it
        is_aborted = _was_aborted(sent)
        is_sent = not is_aborted or _has_sent(client, topic)
        outcome.set_exception(self._told(error, is_sent=is_sent, is_aborted=is_aborted))

    def _told(self, error: Exception, *, is_sent: bool, is_aborted: bool = False) -> ProducerError:
        """The public error for an error of kafka-python.

        Args:
            error: kafka-python's error.
            is_sent: whether the record may have gone out.
            is_aborted: whether kafka-python gave the record up because of another record's error, which is `error`.
        """
        name, told = type(error).__name__, str(error)  # a KafkaError's text begins with its name
        text = self._explain(error) if is_refusal(error) else told if told.startswith(name) else f"{name}: {told}"
        if is_aborted and is_sent:
            return UncertainSendError(text)
        if is_refusal(error) or (isinstance(error, (*_REFUSED, ValueError)) and not is_aborted):
            return RefusedSendError(text)
        if not is_sent or _BESIDE_REFUSED in str(error):
            return FailedSendError(text)
        return UncertainSendError(text)

    def _hand_over(self, topic: str, queue: Queue, named: dict[str, Any], timeout_ms: int) -> tuple[KafkaProducer, Any]:
        until = time.monotonic() + timeout_ms / 1_000
        try:
            client = self._current(timeout_ms, until)
            partition = _chosen(client, topic, queue, until)
            try:
                return client, client.send(topic, partition=partition, **named)
            except kafka_errors.MessageSizeTooLargeError:  # this record is too large
                raise
            except ClientError:  # an earlier record has spoilt the client; nothing was sent
                self._spoilt = client
                client = self._current(timeout_ms, until)
                partition = _chosen(client, topic, queue, until)
                return client, client.send(topic, partition=partition, **named)
        except (ClientError, OSError, ValueError, RuntimeError) as error:  # RuntimeError: the client was closed
            raise self._told(error, is_sent=False) from error

    def _current(self, timeout_ms: int, until: float) -> KafkaProducer:
        if self._is_closed:
            raise FailedSendError(SHUT_DOWN)
        while True:
            with self._lock:
                if self._spoilt is not self._client and timeout_ms <= self._made_for_ms:
                    return self._client
                self._timeout_ms = max(self._timeout_ms, timeout_ms)
                self._awaited_until = max(self._awaited_until, until)
                renewal = self._renewal = self._renewal or self._renewed()
            try:
                renewal.result(until - time.monotonic())
            except TimeoutError:
                msg = "no new connection in time"
                raise FailedSendError(msg) from None

    def _renewed(self) -> Future[KafkaProducer]:
        renewal: Future[KafkaProducer] = Future()
        name = "commitlake-new-client"
        threading.Thread(target=self._renew, args=(renewal,), name=name, daemon=True).start()
        return renewal

    def _renew(self, renewal: Future[KafkaProducer]) -> None:
        """Make a new client, in a thread of its own: all sending threads wait for it, each up to its time-out.

        A failed try, of some seconds, is retried as long as any of them waits.
        """
        while True:
            made_for_ms = self._timeout_ms
            try:
                new = self._connect(made_for_ms, False)
                break
            except Exception as error:
                with self._lock:
                    is_awaited = not self._is_closed and time.monotonic() < self._awaited_until
                    if is_awaited and isinstance(error, KafkaTimeoutError):
                        continue
                    self._renewal = None
                renewal.set_exception(error)
                return
        with self._lock:
            old = self._client
            self._old.append(old)  # before `_client` changes: `flush` and `close` read both without the lock
            self._client, self._made_for_ms, self._renewal = new, made_for_ms, None
            is_closed = self._is_closed
        renewal.set_result(new)
        log.info("connected to Kafka again")
        _close(old, 0 if is_closed else OLD_CLIENT_S)  # records that it still holds are sent, or fail as uncertain
        self._old.remove(old)
        if is_closed:
            _close(new, 0)


def _chosen(client: KafkaProducer, topic: str, queue: Queue, until: float) -> int:
    """A partition, once the topic's are known."""
    while True:
        try:
            known = client.partitions_for(topic)
        except KafkaTimeoutError:  # after `ASKING_MS`
            if time.monotonic() < until:
                continue
            msg = "Kafka did not tell the partitions in time"
            raise KafkaTimeoutError(msg) from None
        return queue if isinstance(queue, int) else queue(len(known))


def _has_sent(client: KafkaProducer, topic: str) -> bool:
    """Whether a client may have written a record of a topic: before it does so, it makes the metrics of the topic."""
    metrics = client.metrics()  # None with `metrics_enabled=False`
    return metrics is None or f"producer-topic-metrics.{topic}" in metrics


def _was_aborted(sent: Any) -> bool:
    """Whether kafka-python gave the record up for another one's error: then it sets the offset -1.

    No public name tells this, and that error would be taken for Kafka's answer to this record.
    """
    done = sent._produce_future.value
    return done is not None and done[0] == -1


def _flushed(client: KafkaProducer, until: float) -> bool:
    try:
        client.flush(timeout=max(0.0, until - time.monotonic()))
    except ClientError:
        return False
    return True


def _close(client: KafkaProducer, timeout_s: float) -> None:
    """Close a client and end its thread: `KafkaProducer.close` raises, and leaves the thread, if records are unsent."""
    try:
        client.flush(timeout=timeout_s / 2)
    except ClientError as error:
        log.warning("Kafka did not acknowledge every record before the shutdown: %s", error)
        client._sender.force_close()
        client._sender.join(max(1.0, timeout_s / 2))
    try:
        client.close(timeout=timeout_s / 2)
    except ClientError as error:
        log.warning("closing the connection to Kafka failed: %s", error)
