"""The connection that producers of a process share: a client that sends, the reader of the settings, and a loop.

The settings are the limits that the coordinator publishes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError as ClientError
from kafka.errors import KafkaTimeoutError

from commitlake.clients.producer.by_hand import ByHand
from commitlake.clients.producer.engine import Engine
from commitlake.clients.producer.kafka_python import ASKING_MS, KafkaPythonEngine
from commitlake.config import KafkaConfig
from commitlake.errors import FailedSendError, ProducerError, RecordError
from commitlake.kafka.admin_client import explain
from commitlake.kafka.clients import confluent_options, python_options, record_bytes
from commitlake.kafka.refusals import Loop, is_refusal
from commitlake.kafka.throttled import IgnoredRecords
from commitlake.kafka.unreadable import poll
from commitlake.protocol import wire
from commitlake.protocol.kafka_topics import SETTINGS

log = logging.getLogger(__name__)

METADATA_AGE_MS = 30_000
"""How long a new partition may stay unknown; Kafka's own default is 5 minutes."""
NOT_RUNNING = "the producer is not running; call start() before you send, and send before shutdown()"
CONFLUENT_TAKES = {"compression_type", "linger_ms", "batch_size"}
"""The `client_options` that both engines know."""

_TRY_MS = 5_000
"""The longest try of a connection, which a shutdown can't interrupt; further tries follow while a send waits."""
_LEAST_MS = 1_000
"""Least time-out of the client's requests: with a shorter one no connection would succeed. A send may wait less."""
_LONGEST_REQUEST_MS = 900_000
"""The longest request time-out that librdkafka takes."""
_POLL_MS, _BACKOFF_MS = 500, 200
_LEFT_S = 10.0
"""Time for buffered records of producers that were collected without a shutdown."""


class Connection:
    """The connection of several producers. The first one starts it; the last one's shutdown, or collection, ends it."""

    def __init__(
        self, kafka: KafkaConfig, start_timeout_ms: int, more: Mapping[str, Any], engine: str, timeout_ms: int
    ) -> None:
        self.kafka, self._start_timeout_ms, self._more = kafka, start_timeout_ms, more
        self._kind, self._timeout_ms = engine, timeout_ms
        self._engine: Engine | None = None
        self._reader: SettingsReader | None = None
        self._holders: WeakSet[object] = WeakSet()
        self._switch = threading.RLock()
        self._net: Loop | None = None
        self._net_lock = threading.RLock()  # re-entrant for signal handlers, as the switch
        self._pid = os.getpid()

    @property
    def key(self) -> object:
        """Key by which producers share a connection: connections with equal keys behave the same."""
        given = [sorted(each.items()) for each in (self.kafka.options, self._more)]
        options = [
            (name, value if isinstance(value, str | int | float) else id(value)) for of in given for name, value in of
        ]
        address = (self.kafka.bootstrap_servers, self.kafka.topic_prefix)
        return (*address, self._start_timeout_ms, self._kind, self._timeout_ms, *options)

    @property
    def engine(self) -> Engine:
        """The engine that sends, while the connection runs."""
        if self._engine is None:
            raise FailedSendError(NOT_RUNNING)
        return self._engine

    @property
    def settings(self) -> wire.Settings:
        """The newest limits the coordinator has published."""
        if self._reader is None or self._reader.known is None:
            raise FailedSendError(NOT_RUNNING)
        return self._reader.known

    def net(self) -> Loop:
        """The event loop, with its thread, for the clients of all check readers; a new one after a crash."""
        with self._net_lock:
            if self._engine is None:
                raise FailedSendError(NOT_RUNNING)
            if self._net is None or self._net._exception:
                self._net = Loop()
                self._net.start()
            return self._net

    def join(self, holder: object) -> None:
        """Serve a producer until it leaves or is collected; connect if this is the first one.

        Raises:
            ProducerError: Kafka is out of reach, or the coordinator has not run yet.
            ConfigError: the engine does not take an option.
        """
        if not self._switch.acquire(timeout=self._start_timeout_ms / 1_000):
            msg = f"another producer of this process still waits for Kafka at {self.kafka.bootstrap_servers}"
            raise ProducerError(msg)
        try:
            self._holders.add(holder)
            if self._engine is None:
                self._start()
        except BaseException as error:
            self._holders.discard(holder)
            if not self._holders:
                self._stop(0)
            if not isinstance(error, (ClientError, ValueError)):
                raise
            log.debug("the producer's client was not made", exc_info=error)
            raise ProducerError(self.explain(error)) from None
        finally:
            self._switch.release()

    def leave(self, holder: object, timeout_s: float) -> None:
        """Send what is still buffered, for at most `timeout_s`, and disconnect if this was the last producer."""
        if os.getpid() != self._pid:  # the connection belongs to the parent process, whose threads are not here
            return
        with self._switch:
            self._holders.discard(holder)
            if not self._holders:
                self._stop(timeout_s)
                return
        self.flush(timeout_s)

    def flush(self, timeout_s: float) -> None:
        """Wait until every record sent before was acknowledged or has failed, for at most `timeout_s`."""
        if os.getpid() == self._pid and self._engine and not self._engine.flush(timeout_s):
            log.warning("Kafka did not acknowledge every record within %.1f s", timeout_s)

    def client_options(self, client: type[KafkaConsumer | KafkaProducer]) -> dict[str, Any]:
        """Options for a Kafka client of this class."""
        return {
            **{name: value for name, value in self._more.items() if name in client.DEFAULT_CONFIG},
            "metadata_max_age_ms": METADATA_AGE_MS,
            **python_options(self.kafka),
            "bootstrap_timeout_ms": min(_TRY_MS, self._start_timeout_ms // 2),
            "allow_auto_create_topics": False,
        }

    def explain(self, error: Exception) -> str:
        """The text for a user: the problem with Kafka, and the remedy."""
        return explain(self.kafka, error)

    def _start(self) -> None:
        topic = self.kafka.topic(SETTINGS)
        reader = SettingsReader(self.client_options(KafkaConsumer), topic, self.explain, self._end_if_left)
        self._reader = reader
        reader.start(self._start_timeout_ms)
        self._engine = ByHand(self._connected())

    def _stop(self, timeout_s: float) -> None:
        engine, self._engine = self._engine, None
        try:
            if engine:
                engine.close(timeout_s)
        finally:  # also if a signal handler raises
            with self._net_lock:
                net, self._net = self._net, None
            if net:  # in a thread of its own, since the loop may hang
                threading.Thread(target=net.close, name="commitlake-net-end", daemon=True).start()
            if self._reader:
                self._reader.stop()
                self._reader = None

    def _end_if_left(self) -> None:
        """End the connection if no producer is left.

        The thread that reads the settings calls this. A finalizer could run anywhere, also while a lock is held.
        """
        if not self._holders and self._switch.acquire(blocking=False):
            try:
                if not self._holders:
                    self._stop(_LEFT_S)
            finally:
                self._switch.release()

    def _connected(self) -> Engine:
        if self._kind == "confluent":
            from commitlake.clients.producer.confluent import ConfluentEngine

            return ConfluentEngine(self._confluent_options, self._timeout_ms, self.explain)
        return KafkaPythonEngine(self._connect, self._timeout_ms, self.explain)

    def _confluent_options(self, timeout_ms: int) -> dict[str, Any]:
        bound = max(_LEAST_MS, timeout_ms)
        given = confluent_options(self.kafka)
        return {
            **{name.replace("_", "."): self._more[name] for name in CONFLUENT_TAKES & set(self._more)},
            **given,
            "acks": "all",
            "enable.idempotence": True,
            "allow.auto.create.topics": False,
            "linger.ms": self._more.get("linger_ms", 0),
            "message.max.bytes": record_bytes(self.settings.max_message_size),
            "message.timeout.ms": bound + self._more.get("linger_ms", 0),
            "request.timeout.ms": min(bound, given.get("request.timeout.ms", bound), _LONGEST_REQUEST_MS),
            "max.in.flight.requests.per.connection": 1,
            "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
        }

    def _connect(self, timeout_ms: int, is_first: bool) -> KafkaProducer:
        given, bound = self.client_options(KafkaProducer), max(_LEAST_MS, timeout_ms)
        own = {
            "acks": "all",
            "enable_idempotence": True,
            "max_request_size": record_bytes(self.settings.max_message_size),
            "max_block_ms": ASKING_MS,
            "request_timeout_ms": min(bound, given.get("request_timeout_ms", bound), _LONGEST_REQUEST_MS),
            "delivery_timeout_ms": bound + given.get("linger_ms", 0),
            # Few requests in flight: a hanging broker appends all that was written to it when it continues. With one
            # in flight, a half message waits for the op before it: 250 transactions a second and thread instead of 430.
            "max_in_flight_requests_per_connection": given.get("max_in_flight_requests_per_connection", 2),
        }
        tried_ms = self._start_timeout_ms // 2 if is_first else min(bound, given["bootstrap_timeout_ms"])
        own["bootstrap_timeout_ms"] = tried_ms  # the first connection has one long try, later ones are retried
        client = KafkaProducer(**given | own)
        client._sender.name = "commitlake-sender"  # so that log lines of this thread are recognized as ours
        return client


def shared(connection: Connection) -> Connection:
    """This process's existing connection with the same key, or else the given one."""
    lock, known = _of(os.getpid())
    with lock:
        return known.setdefault(connection.key, connection)


@lru_cache(maxsize=1)
def _of(pid: int) -> tuple[threading.RLock, WeakValueDictionary[object, Connection]]:
    """Lock and connections of a process. A fork gets new ones: its copy of the parent's lock may be held for ever."""
    return threading.RLock(), WeakValueDictionary()


class SettingsReader:
    """Follows the Kafka topic `settings`: at the start, then in the background.

    The reading thread calls `before_poll` at least once for each poll.

    Attributes:
        known: the content of the last record; None before the first.
    """

    def __init__(
        self,
        client_options: Mapping[str, Any],
        topic: str,
        explain: Callable[[Exception], str],
        before_poll: Callable[[], object],
    ) -> None:
        self._client_options = client_options
        self._topic = topic
        self._explain, self._before_poll = explain, before_poll
        self.known: wire.Settings | None = None
        self._failure: Exception | None = None
        self._ignored = IgnoredRecords(topic)
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="commitlake-settings", daemon=True)

    def start(self, timeout_ms: int) -> None:
        """Return once the newest settings are known.

        Raises:
            ProducerError: Kafka is out of reach, or nothing was read within `timeout_ms`.
        """
        self._thread.start()
        if self._ready.wait(timeout_ms / 1_000) and self._failure is None:
            return
        self.stop()
        if self._failure:
            log.debug("the last try to read %s", self._topic, exc_info=self._failure)
            msg = f"cannot read the Kafka topic {self._topic}: {self._explain(self._failure)}"
            raise ProducerError(msg) from None  # the text has the cause, which 25 lines of its traceback would hide
        msg = (
            f"the Kafka topic {self._topic} has no settings after {timeout_ms} ms; "
            "start the coordinator, which publishes them, or check topic_prefix"
        )
        raise ProducerError(msg)

    def stop(self) -> None:
        """Stop reading; does nothing when it is not running."""
        self._stopping.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                self._before_poll()
                self._failure = None
                self._consume()
            except Exception as error:  # whatever it is: a waiting `start` raises it, and later limits are still read
                self._failure = error
                if is_refusal(error) and not self._ready.is_set():
                    self._ready.set()  # `start` fails at once, since a retry would be refused too
                    return
                log.debug("reading %s failed; retrying: %s", self._topic, error)
                self._stopping.wait(_BACKOFF_MS / 1_000)

    def _consume(self) -> None:
        consumer = KafkaConsumer(**self._client_options, enable_auto_commit=False)
        try:
            partition = TopicPartition(self._topic, 0)
            while not consumer.partitions_for_topic(self._topic):
                with suppress(KafkaTimeoutError):  # a missing topic times out; denied access raises another error
                    consumer.end_offsets([partition], timeout_ms=_BACKOFF_MS)
                if self._stopping.is_set():
                    return
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            end = consumer.end_offsets([partition])[partition]
            while not self._stopping.is_set():
                self._before_poll()
                for record in poll(consumer, self._pass, timeout_ms=_POLL_MS).get(partition, []):
                    self._take(record)
                if self.known and consumer.position(partition) >= end:
                    self._ready.set()
        finally:
            consumer.close()

    def _take(self, record: Any) -> None:
        if record.key != wire.SETTINGS_KEY or record.value is None:
            return
        try:
            self.known = wire.decode_settings(record.value)
        except RecordError as error:
            self._ignored.add(f"0-{record.offset}", error)

    def _pass(self, partition: TopicPartition, offset: int, reason: str) -> None:
        self._ignored.add(f"{partition.partition}-{offset}", reason)
