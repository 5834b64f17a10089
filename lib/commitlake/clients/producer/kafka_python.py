"""The engine that sends with kafka-python's client.

This module works around two limits of the client. First, its idempotent producer sends nothing any more after a
permanent error (a record too large for the topic, a withdrawn right, a corrupt record), nor after it gave up a record
that may have gone out: it forgets its producer id, and asks for no other. Second, it has no call to withdraw a record,
so after an outage each retry of an application would go out.
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

from commitlake.clients.producer.engine import OLD_CLIENT_S, SHUT_DOWN, Queue, Result, Sent
from commitlake.errors import FailedSendError, ProducerError, RefusedSendError, UncertainSendError
from commitlake.kafka.refusals import is_refusal
from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import Encoded

log = logging.getLogger(__name__)

WITHDRAWAL_MS = 500
"""kafka-python keeps a record so much longer than its send waits, so that the send can ask whether it has gone out."""
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


class _Withdrawn(KafkaTimeoutError):  # type: ignore[misc]
    """A batch was withdrawn before it went out."""


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

    def send(self, topic: str, queue: Queue, record: Encoded, timeout_ms: int) -> Sent:
        """See `Engine`."""
        named = {"key": record.key, "value": record.value, "headers": record.headers}
        sending = _Sending(self, partial(self._hand_over, topic, queue, named, timeout_ms))
        sending.begin()
        return Sent(sending.outcome, sending.withdraw)

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

    def told(self, error: Exception, *, is_sent: bool = True, is_aborted: bool = False) -> ProducerError:
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
        if not is_sent or isinstance(error, _Withdrawn) or _BESIDE_REFUSED in str(error):
            return FailedSendError(text)
        return UncertainSendError(text)

    def note(self, client: KafkaProducer, error: Exception) -> None:
        """Have the next send replace a client after a permanent error, or a record given up (KafkaTimeoutError)."""
        if isinstance(error, KafkaTimeoutError) or not getattr(error, "retriable", False):
            self._spoilt = client

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
            raise self.told(error, is_sent=False) from error

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


class _Sending:
    """One record on its way. `hand_over` returns the client that took it, and kafka-python's future."""

    def __init__(self, engine: KafkaPythonEngine, hand_over: Callable[[], tuple[KafkaProducer, Any]]) -> None:
        self.outcome = Result[Position]()
        self._engine, self._hand_over = engine, hand_over
        self._is_over = False
        self._client: KafkaProducer
        self._sent: Any
        self._batch: Any = None

    def begin(self) -> None:
        self._client, self._sent = self._hand_over()
        self._batch = _batch_of(self._client, self._sent)
        self._sent.add_callback(lambda found: self.outcome.set_result(Position(found.partition, found.offset)))
        self._sent.add_errback(self._failed)

    def withdraw(self) -> bool:
        self._is_over = True
        return _withdraw(self._client, self._sent)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, _Withdrawn) and not self._is_over:  # another record of its batch was withdrawn
            try:
                self.begin()
            except ProducerError as told:
                self.outcome.set_exception(told)
            return
        is_aborted, has_gone = _was_aborted(self._sent), _has_gone(self._client, self._batch, self._sent)
        self._engine.note(self._client, error)
        self.outcome.set_exception(self._engine.told(error, is_sent=has_gone, is_aborted=is_aborted))


# kafka-python has no public calls for the functions below.


def _chosen(client: KafkaProducer, topic: str, queue: Queue, until: float) -> int:
    """A partition, once the topic's are known; kafka-python itself would wait for the longest time-out of all sends."""
    known = client._wait_on_metadata(topic, max(0.0, until - time.monotonic()) * 1_000)
    return queue if isinstance(queue, int) else queue(len(known))


def _batch_of(client: KafkaProducer, sent: Any) -> Any:
    """The batch in which a record waits; None when the batch has its outcome."""
    batches = client._accumulator._incomplete.all()
    return next((batch for batch in batches if batch.produce_future is sent._produce_future), None)


def _has_gone(client: KafkaProducer, batch: Any, sent: Any) -> bool:
    """Whether a batch may have been written to a connection. A batch that was split had been written.

    `batch` is None if its outcome came before it was looked up. Then the answer is whether any batch of the topic was
    written: the client's thread makes the metrics of a topic before it writes the first batch.
    """
    if batch is None:
        return f"producer-topic-metrics.{sent._produce_future.topic_partition.topic}" in client.metrics()
    return batch.produce_future is not sent._produce_future or batch.drained is not None


def _withdraw(client: KafkaProducer, sent: Any) -> bool:
    """Withdraw the batch of a record, as `RecordAccumulator.abort_undrained_batches` does with all batches."""
    waiting, batch = client._accumulator, _batch_of(client, sent)
    if batch is None:
        return False
    with waiting._tp_lock(batch.topic_partition):
        if batch.is_done or batch.drained is not None:
            return False
        batch.records.close()
        waiting._batches[batch.topic_partition].remove(batch)
    batch.abort(_Withdrawn("Kafka took nothing in time"))
    waiting.deallocate(batch)
    return True


def _was_aborted(sent: Any) -> bool:
    """Whether kafka-python gave the batch up without an answer of Kafka: `ProducerBatch.abort` sets offset -1."""
    done = sent._produce_future.value
    return done is not None and done[0] == -1 and not isinstance(sent.exception, _Withdrawn)


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
