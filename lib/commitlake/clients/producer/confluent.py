"""The engine that sends with librdkafka, by the optional package confluent-kafka: faster with few threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError as Failure
from confluent_kafka import KafkaException, Producer
from kafka.errors import TopicAuthorizationFailedError

from commitlake.clients.producer.engine import OLD_CLIENT_S, SHUT_DOWN, Queue, Result
from commitlake.errors import ConfigError, FailedSendError, ProducerError, RefusedSendError, UncertainSendError
from commitlake.kafka.throttled import ThrottledFilter
from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import Encoded

log = logging.getLogger(__name__)
_said = logging.getLogger(f"{__name__}.librdkafka")
_said.addFilter(ThrottledFilter())

_POLL_S = 0.1
_GIVE_UP_S = 1.0
_AGE_S = 30.0
"""How long a new partition may stay unknown, as with kafka-python."""
_DENIED = (Failure.TOPIC_AUTHORIZATION_FAILED, Failure.CLUSTER_AUTHORIZATION_FAILED)
_OF_A_BATCH = (Failure.MSG_SIZE_TOO_LARGE, Failure.RECORD_LIST_TOO_LARGE, Failure.INVALID_RECORD)
"""Errors that each record of a batch gets if the batch has one bad record."""
_REFUSED = (
    *_DENIED,
    *_OF_A_BATCH,
    Failure.TOPIC_EXCEPTION,
    Failure.POLICY_VIOLATION,
    Failure._UNKNOWN_PARTITION,
)

Options = Callable[[int], dict[str, Any]]
"""librdkafka's options for a client that gives a record up after so many ms."""
Explain = Callable[[Exception], str]


class ConfluentEngine:
    """Sends with one librdkafka client, which is replaced after an error that librdkafka calls fatal.

    librdkafka does not say whether a record that it gave up had gone out: such a send is uncertain.
    """

    def __init__(self, options: Options, timeout_ms: int, explain: Explain) -> None:
        self._explain = explain
        self._queues: dict[str, tuple[int, float]] = {}
        self._open: set[Result[Position]] = set()  # sends without an outcome
        self._shared = _Clients(options, timeout_ms)
        self._shared.newest(timeout_ms)
        # Each record is a batch of its own, so that a refusal concerns this record alone.
        self._lone = _Clients(lambda longest_ms: {**options(longest_ms), "batch.num.messages": 1}, timeout_ms)

    def _number_of(self, topic: str, timeout_ms: int) -> int:
        """Number of partitions of a topic; asks Kafka at most each `_AGE_S`."""
        known, until = self._queues.get(topic, (0, 0.0))
        if time.monotonic() < until:
            return known
        try:
            found = self._shared.newest(timeout_ms).producer.list_topics(topic, timeout_ms / 1_000).topics[topic]
        except KafkaException as error:
            raise self._told(error.args[0], is_sent=False) from error
        if found.error is not None:
            raise self._told(found.error, is_sent=False)
        self._queues[topic] = len(found.partitions), time.monotonic() + _AGE_S
        return len(found.partitions)

    def send(self, topic: str, queue: Queue, record: Encoded, timeout_ms: int) -> Result[Position]:
        """See `Engine`."""
        queue = queue if isinstance(queue, int) else queue(self._number_of(topic, timeout_ms))
        outcome = Result[Position]()
        named = {"value": record.value, "key": record.key, "headers": [*record.headers], "partition": queue}
        produce = partial(self._produce, outcome, {"topic": topic, **named})
        again = partial(produce, partial(self._lone.newest, timeout_ms), None)
        self._open.add(outcome)
        try:
            produce(partial(self._shared.newest, timeout_ms), again)
        except BaseException:
            self._open.discard(outcome)
            raise
        return outcome

    def _produce(
        self,
        outcome: Result[Position],
        named: dict[str, Any],
        choose: Callable[[], _Client],
        again: Callable[[], None] | None,
    ) -> None:
        is_taken = False
        while not is_taken:  # the chosen client may end before it takes the record
            client = choose()
            try:
                is_taken = client.produce(**named, on_delivery=partial(self._delivered, client, outcome, again))
            except BufferError as error:
                msg = f"librdkafka's queue is full: {error}"
                raise FailedSendError(msg) from error
            except KafkaException as error:
                self._note(client, error.args[0])
                raise self._told(error.args[0], is_sent=False) from error

    def flush(self, timeout_s: float) -> bool:
        """See `Engine`."""
        until = time.monotonic() + timeout_s
        awaited = self._open.copy()  # without records that others send meanwhile, which might never end
        while awaited and (now := time.monotonic()) < until:
            for clients in (self._shared, self._lone):
                clients.flush(min(until, now + _POLL_S))
            awaited &= self._open
        return not awaited

    def close(self, timeout_s: float) -> None:
        """See `Engine`."""
        until = time.monotonic() + timeout_s
        for clients in (self._shared, self._lone):  # in this order: `_lone` gets records refused meanwhile
            clients.close(until)

    def _delivered(
        self,
        client: _Client,
        outcome: Result[Position],
        again: Callable[[], None] | None,
        error: Failure | None,
        record: Any,
    ) -> None:
        if error is None:
            outcome.set_result(Position(record.partition(), record.offset()))
        else:
            self._note(client, error)
            told = _failure_of(again) if again and error.code() in _OF_A_BATCH else self._told(error)
            if told is None:
                return
            outcome.set_exception(told)
        self._open.discard(outcome)

    def _told(self, error: Failure, *, is_sent: bool = True) -> ProducerError:
        """The public error for an error of librdkafka; `is_sent`: whether the record may have gone out."""
        text = f"{error.name()}: {error.str()}"
        if error.code() in _DENIED:
            text = self._explain(TopicAuthorizationFailedError(text))
        if error.code() in _REFUSED:
            return RefusedSendError(text)
        return UncertainSendError(text) if is_sent else FailedSendError(text)

    def _note(self, client: _Client, error: Failure) -> None:
        if error.fatal() or error.code() == Failure._FATAL:
            client.is_spoilt = True


def _failure_of(again: Callable[[], None]) -> ProducerError | None:
    """Send a refused record again by itself; return an error if that fails: then the record is nowhere."""
    try:
        again()
    except ProducerError as told:
        return told
    except ConfigError as error:
        return FailedSendError(str(error))
    except Exception as error:
        log.exception("a record that Kafka had refused in a batch could not be sent by itself")
        return FailedSendError(f"{type(error).__name__}: {error}")
    return None


class _Clients:
    """The client that takes records, and replaced clients that still hold some. No time-out is below `timeout_ms`."""

    def __init__(self, options: Options, timeout_ms: int) -> None:
        self._options, self._timeout_ms = options, timeout_ms
        self._lock = threading.RLock()  # a signal handler may call `close` within a send
        self._alive: list[_Client] = []  # never changed in place: `flush` iterates over it without the lock
        self._is_closed = False

    def newest(self, timeout_ms: int) -> _Client:
        """The client for a send that waits `timeout_ms`; makes a new one if necessary."""
        with self._lock:
            if self._is_closed:
                raise FailedSendError(SHUT_DOWN)
            if not self._alive or self._alive[-1].is_spoilt or timeout_ms > self._timeout_ms:
                self._replace(max(timeout_ms, self._timeout_ms))
            return self._alive[-1]

    def flush(self, until: float) -> None:
        """Send lingering records at once, and wait until none is left, at most until `until`, by a monotonic clock."""
        for each in reversed(self._alive):  # the newest first, since an old client may hang
            each.producer.flush(max(0.0, until - time.monotonic()))

    def close(self, until: float) -> None:
        """Take no more records, and wait for the outcomes until `until`; then give up the records without one."""
        with self._lock:
            self._is_closed = True
            ending = self._alive
        for each in ending:
            each.end(until)
        for each in ending:
            each.join()

    def _replace(self, timeout_ms: int) -> None:
        new = _Client(self._options(timeout_ms))
        for old in self._alive:
            old.end(time.monotonic() + OLD_CLIENT_S)
        self._alive = [*(old for old in self._alive if old.thread.is_alive()), new]
        self._timeout_ms = timeout_ms
        if self._is_closed:  # a signal handler has closed it while the client was made
            new.end(time.monotonic())


class _Client:
    """librdkafka's producer, and the thread that runs its callbacks until it must end and all records have an outcome.

    Attributes:
        thread: the thread that runs callbacks.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        try:
            self.producer = Producer({**options, "logger": _said})
        except KafkaException as error:  # its ranges differ from Java's, and its features depend on the build
            msg = (
                f"options and client_options: librdkafka says: {error.args[0].str().strip()}; change that one, or use "
                "engine='kafka-python'"
            )
            raise ConfigError(msg) from error
        self.is_spoilt = False
        self._lock = threading.RLock()  # no record may be added after `end`, when the thread looks whether any is left
        self._until: float | None = None
        self.thread = threading.Thread(target=self._serve, name="commitlake-librdkafka", daemon=True)
        self.thread.start()

    def produce(self, **named: Any) -> bool:
        """Hand a record over; True if the client takes it, so that it will have an outcome."""
        with self._lock:
            is_taken = self._until is None
            if is_taken:
                self.producer.produce(**named)
            return is_taken

    def end(self, until: float) -> None:
        """Take no more records, and give up at `until` those without an outcome; a second call can't postpone that."""
        with self._lock:
            self._until = until if self._until is None else min(until, self._until)

    def join(self) -> None:
        """Wait for the thread, unless a callback in that thread calls this."""
        if self._until is not None and threading.current_thread() is not self.thread:
            self.thread.join(max(0.0, self._until - time.monotonic()) + _GIVE_UP_S + 1.0)

    def _serve(self) -> None:
        while self._until is None or len(self.producer):
            try:
                self._call_back(self._until)
            except BaseException:  # the thread must go on: without it no send would have an outcome
                log.exception("the callback of a send failed")

    def _call_back(self, until: float | None) -> None:
        if until is None:
            self.producer.poll(_POLL_S)
        elif (left_s := until - time.monotonic()) > 0:
            self.producer.flush(min(left_s, _POLL_S))  # sends lingering records at once
        else:
            log.warning("%d records were not acknowledged in time", len(self.producer))
            self.producer.purge()
            self.producer.flush(_GIVE_UP_S)
