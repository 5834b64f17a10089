"""The producer's connection to Kafka, which every thread shares."""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as ClientError
from kafka.partitioner.default import murmur2

from commitlake.clients.producer.engine import Engine, Sent
from commitlake.clients.producer.kafka_python import WITHDRAWAL_MS, KafkaPythonEngine
from commitlake.clients.producer.settings import SettingsReader
from commitlake.config import KafkaConfig
from commitlake.errors import ConfigError, FailedSend, MQClientException, RefusedSend, SetupError, UncertainSend
from commitlake.kafka.admin_client import explain
from commitlake.kafka.clients import confluent_options, python_options, record_bytes
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import SETTINGS
from commitlake.protocol.wire import Encoded

log = logging.getLogger(__name__)

METADATA_AGE_MS = 30_000
"""How long an added queue may stay unknown; Kafka's own default is 5 minutes."""
_NOT_RUNNING = "the producer is not running; call start() first, and nothing after shutdown()"

_TRY_MS = 5_000
"""The longest try of a connection, which a shutdown can't end; there is another as long as anybody wants it."""
_LEAST_MS = 1_000
"""Shorter time-outs bound what a send waits, and not the client's requests: no connection would come about."""
_LONGEST_REQUEST_MS = 900_000
"""What librdkafka takes."""
_OWN = {"acks", "enable_idempotence", "max_request_size", "key_serializer", "value_serializer"}
_TIMES = {"delivery_timeout_ms", "max_block_ms"}

Done = Callable[[BaseException | None], None]
"""Called once, from any thread, with None when a record was acknowledged, else with the error."""
Late = Callable[[Position], None]


def _check_own(options: Mapping[str, Any]) -> None:
    for name in options:
        if name in _TIMES:
            msg = f"client_options: {name} is not allowed; send_msg_timeout bounds all that a send does, so set that"
            raise MQClientException(msg)
        if name in _OWN:
            msg = f"client_options: {name} is not allowed; CommitLake's promises hang on it, so it is set: leave it out"
            raise MQClientException(msg)


def _check_names(options: Mapping[str, Any]) -> None:
    allowed = (set(KafkaProducer.DEFAULT_CONFIG) | set(KafkaConsumer.DEFAULT_CONFIG)) - _OWN - _TIMES
    for name in options:
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            msg = f"client_options: {name} is not allowed; allowed is what kafka-python's clients take{hint}"
            raise MQClientException(msg)


ENGINES = ("kafka-python", "confluent")
_CONFLUENT_TAKES = {"compression_type", "linger_ms", "batch_size"}
"""Of `client_options`, those that both engines know."""
_LOGIN = ("security_", "sasl_", "ssl_")


def check_engine(engine: str, options: Mapping[str, Any]) -> str:
    """Return the name of an engine.

    Raises:
        MQClientException: there is no such engine, or it does not take an option.
        SetupError: its package is missing.
    """
    if engine not in ENGINES:
        msg = f"engine is {engine!r}, allowed is {' or '.join(ENGINES)}"
        raise MQClientException(msg)
    if engine == "confluent":
        if importlib.util.find_spec("confluent_kafka") is None:
            msg = "engine='confluent' needs the package confluent-kafka: pip install 'commitlake[confluent]'"
            raise SetupError(msg)
        reading = set(KafkaConsumer.DEFAULT_CONFIG)
        others = [name for name in sorted(options) if name not in reading or name.startswith(_LOGIN)]
        if left := [name for name in others if name not in _CONFLUENT_TAKES]:
            takes = ", ".join(sorted(_CONFLUENT_TAKES))
            msg = (
                f"client_options: {left[0]} is not allowed with engine='confluent', which takes {takes} for sending; "
                "leave it out, or see whether engine='kafka-python' takes it"
            )
            raise MQClientException(msg)
    return engine


class KafkaLink:
    """Sends records, reads the settings, and provides client options for consumers."""

    def __init__(
        self, kafka: KafkaConfig, start_timeout_ms: int, more: Mapping[str, Any], engine: str = ENGINES[0]
    ) -> None:
        self.kafka, self._more = kafka, more
        _check_own(more)
        self._engine = check_engine(engine, more)
        _check_names(more)
        self._start_timeout_ms = start_timeout_ms
        self._client: Engine | None = None
        self._reader: SettingsReader | None = None
        self._turn = itertools.count()

    def start(self, timeout_ms: int) -> None:
        """Connect and read the settings.

        Args:
            timeout_ms: how long a send waits.

        Raises:
            MQClientException: Kafka is out of reach, or the coordinator has not run yet.
            ConfigError: the engine does not take an option.
        """
        try:
            self._reader = SettingsReader(self.client_options(KafkaConsumer), self.kafka.topic(SETTINGS), self.explain)
            self._reader.start(self._start_timeout_ms)
            self._client = self._connected(timeout_ms)
        except (ClientError, ValueError) as error:
            self.stop(0)
            log.debug("the producer's client was not made", exc_info=error)
            raise MQClientException(self.explain(error)) from None
        except BaseException:
            self.stop(0)
            raise

    def _connected(self, timeout_ms: int) -> Engine:
        if self._engine == "confluent":
            from commitlake.clients.producer.confluent import ConfluentEngine

            return ConfluentEngine(self._confluent_options, timeout_ms, self.explain)
        return KafkaPythonEngine(self._connect, timeout_ms, self.explain)

    def _confluent_options(self, timeout_ms: int) -> dict[str, Any]:
        bound = max(_LEAST_MS, timeout_ms)
        given = confluent_options(self.kafka)
        return {
            **{name.replace("_", "."): self._more[name] for name in _CONFLUENT_TAKES & set(self._more)},
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
            "max_block_ms": bound,
            "request_timeout_ms": min(bound, given.get("request_timeout_ms", bound), _LONGEST_REQUEST_MS),
            "delivery_timeout_ms": bound + WITHDRAWAL_MS + given.get("linger_ms", 0),
            # What is written to a broker that hangs is appended when it goes on, so few requests are. With one, a half
            # message waits for the op before it: 250 transactions a second of a thread in place of 430.
            "max_in_flight_requests_per_connection": given.get("max_in_flight_requests_per_connection", 2),
        }
        tried_ms = self._start_timeout_ms // 2 if is_first else min(bound, given["bootstrap_timeout_ms"])
        own["bootstrap_timeout_ms"] = tried_ms  # only the first one is not tried again
        return KafkaProducer(**given | own)

    def stop(self, timeout_s: float) -> None:
        """Send what is still buffered, for at most `timeout_s`, then disconnect."""
        if self._client:
            self._client.close(timeout_s)
            self._client = None
        if self._reader:
            self._reader.stop()
            self._reader = None

    def flush(self, timeout_s: float) -> None:
        """Return when every record sent before has been acknowledged or has failed, or after `timeout_s`."""
        if self._client and not self._client.flush(timeout_s):
            log.warning("not every record was acknowledged within %.1f s", timeout_s)

    @property
    def settings(self) -> wire.Settings:
        """The newest limits the coordinator has published."""
        if self._reader is None:
            raise FailedSend(_NOT_RUNNING)
        return self._reader.current

    def client_options(self, client: type[KafkaConsumer | KafkaProducer]) -> dict[str, Any]:
        """Options of a Kafka client of that class."""
        return {
            **{name: value for name, value in self._more.items() if name in client.DEFAULT_CONFIG},
            "metadata_max_age_ms": METADATA_AGE_MS,
            **python_options(self.kafka),
            "bootstrap_timeout_ms": min(_TRY_MS, self._start_timeout_ms // 2),
            "allow_auto_create_topics": False,
        }

    def explain(self, error: Exception) -> str:
        """What went wrong with Kafka, and what to do about it."""
        return explain(self.kafka, error)

    def send(
        self,
        topic: str,
        queue: int | None,
        record: Encoded,
        timeout_ms: int,
        advice: str,
        late: Late | None = None,
    ) -> Position:
        """Send and wait for the acknowledgement of all in-sync replicas.

        Args:
            topic: name without the prefix.
            queue: partition; None for that of the record's key, or the next in turn.
            record: key, value and headers.
            timeout_ms: how long to wait, for all there is to do.
            advice: what to do when the send is uncertain.
            late: called, in a thread of the client, when the acknowledgement comes after that.

        Raises:
            FailedSend: nothing was sent, or Kafka refused the record.
            UncertainSend: there was no acknowledgement in time, or Kafka answered with another error.
        """
        until = time.monotonic() + timeout_ms / 1_000
        name = self.kafka.topic(topic)
        try:
            sent = self._send(name, queue, record, timeout_ms)
            return self._awaited(sent, until)
        except FailedSend as error:
            hint = "" if isinstance(error, RefusedSend) else "; it may be sent again"
            msg = f"nothing was sent to the Kafka topic {name}: {error}{hint}"
            raise type(error)(msg) from error
        except UncertainSend as error:
            if late is not None:
                sent.outcome.add_done_callback(lambda done: None if done.exception() else late(done.result()))
            msg = (
                f"Kafka did not acknowledge a record of {name} within {timeout_ms} ms, "
                f"so it may or may not be there: {error}; {advice}"
            )
            raise UncertainSend(msg) from error

    def _awaited(self, sent: Sent, until: float) -> Position:
        try:
            return sent.outcome.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            if sent.withdraw():
                msg = f"Kafka at {self.kafka.bootstrap_servers} took nothing in time"
                raise FailedSend(msg) from None
            msg = "no answer in time"
            raise UncertainSend(msg) from None

    def send_soon(self, topic: str, queue: int, record: Encoded, timeout_ms: int, done: Done) -> None:
        """Send without waiting.

        Args:
            topic: name without the prefix.
            queue: partition.
            record: key, value and headers.
            timeout_ms: after which the client gives the record up.
            done: called with the outcome.
        """
        try:
            sent = self._send(self.kafka.topic(topic), queue, record, timeout_ms)
        except MQClientException as error:
            done(error)
            return
        sent.outcome.add_done_callback(lambda outcome: done(outcome.exception()))

    def _send(self, name: str, queue: int | None, record: Encoded, timeout_ms: int) -> Sent:
        engine = self._started()
        try:
            if queue is None:
                number = next(self._turn) if record.key is None else murmur2(record.key) & 0x7FFFFFFF
                queue = int(number % engine.queues(name, timeout_ms))
            return engine.send(name, queue, record, timeout_ms)
        except ConfigError as error:  # of a connection in place of another, for example when a file is gone
            raise FailedSend(str(error)) from error

    def _started(self) -> Engine:
        if self._client is None:
            raise FailedSend(_NOT_RUNNING)
        return self._client
