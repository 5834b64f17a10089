"""The producer's connection to Kafka, which every thread shares."""

from __future__ import annotations

import difflib
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as ClientError
from kafka.partitioner.default import murmur2

from commitlake.config import KafkaConfig
from commitlake.errors import MQClientException, UncertainSend
from commitlake.kafka.admin_client import explain
from commitlake.kafka.clients import python_options, record_bytes
from commitlake.kafka.refusals import is_refusal
from commitlake.producer.healing import HealingClient
from commitlake.producer.settings import SettingsReader
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import SETTINGS
from commitlake.protocol.wire import Encoded

log = logging.getLogger(__name__)

METADATA_AGE_MS = 30_000
"""How long an added queue may stay unknown; Kafka's own default is 5 minutes."""
_NOT_RUNNING = "the producer is not running; call start() first, and nothing after shutdown()"

_OWN = {"acks", "enable_idempotence", "max_block_ms", "max_request_size", "key_serializer", "value_serializer"}

Done = Callable[[Exception | None], None]
"""Called once, from any thread, with None when a record was acknowledged, else with the error."""


Late = Callable[[Position], None]


def _check_names(options: Mapping[str, Any]) -> None:
    allowed = (set(KafkaProducer.DEFAULT_CONFIG) | set(KafkaConsumer.DEFAULT_CONFIG)) - _OWN
    for name in options:
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            msg = f"client_options: {name} is not allowed; allowed is what kafka-python's clients take{hint}"
            raise MQClientException(msg)


class KafkaLink:
    """Sends records, reads the settings, and provides client options for consumers."""

    def __init__(self, kafka: KafkaConfig, start_timeout_ms: int, more: Mapping[str, Any]) -> None:
        self.kafka, self._more = kafka, more
        _check_names(more)
        self._start_timeout_ms = start_timeout_ms
        self._client: HealingClient | None = None
        self._reader: SettingsReader | None = None
        self._turn = itertools.count()

    def start(self) -> None:
        """Connect and read the settings.

        Raises:
            MQClientException: Kafka is out of reach, or the coordinator has not run yet.
        """
        self._reader = SettingsReader(self.client_options(KafkaConsumer), self.kafka.topic(SETTINGS), self.explain)
        self._reader.start(self._start_timeout_ms)
        try:
            self._client = HealingClient(self._connect)
        except (ClientError, ValueError) as error:
            self.stop(0)
            raise MQClientException(self.explain(error)) from error

    def _connect(self) -> KafkaProducer:
        own = {"acks": "all", "enable_idempotence": True, "max_block_ms": self._start_timeout_ms}
        largest = record_bytes(self.settings.max_message_size)
        return KafkaProducer(**self.client_options(KafkaProducer) | own, max_request_size=largest)

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
        try:
            self._started().flush(timeout_s)
        except ClientError as error:
            log.warning("not every record was acknowledged before the shutdown: %s", error)

    @property
    def settings(self) -> wire.Settings:
        """The newest limits the coordinator has published."""
        if self._reader is None:
            raise MQClientException(_NOT_RUNNING)
        return self._reader.current

    def client_options(self, client: type[KafkaConsumer | KafkaProducer]) -> dict[str, Any]:
        """Options of a Kafka client of that class."""
        return {
            **{name: value for name, value in self._more.items() if name in client.DEFAULT_CONFIG},
            "metadata_max_age_ms": METADATA_AGE_MS,
            **python_options(self.kafka),
            "bootstrap_timeout_ms": self._start_timeout_ms // 2,
            "allow_auto_create_topics": False,
        }

    def explain(self, error: Exception) -> str:
        """What went wrong with Kafka, and what to do about it."""
        return explain(self.kafka, error)

    def choose_queue(self, topic: str, key: bytes | None) -> int:
        """Partition of `topic` for a record: by the hash of its key that Java's clients use, or the next in turn."""
        name = self.kafka.topic(topic)
        try:
            queues = len(self._started().partitions_for(name))
        except ClientError as error:
            msg = f"nothing was sent to the Kafka topic {name}: {type(error).__name__}: {error}"
            raise MQClientException(msg) from error
        number = next(self._turn) if key is None else murmur2(key) & 0x7FFFFFFF
        return int(number % queues)

    def send(
        self, topic: str, queue: int, record: Encoded, timeout_ms: int, advice: str, late: Late | None = None
    ) -> Position:
        """Send and wait for the acknowledgement of all in-sync replicas.

        Args:
            topic: name without the prefix.
            queue: partition.
            record: key, value and headers.
            timeout_ms: how long to wait.
            advice: what to do when the send is uncertain.
            late: called, in a thread of the client, when the acknowledgement comes after that.

        Raises:
            MQClientException: nothing was sent, or Kafka refused the record.
            UncertainSend: there was no acknowledgement in time, or Kafka answered with another error.
        """
        try:
            sent = self._send(topic, queue, record)
        except (ClientError, ValueError) as error:
            msg = f"nothing was sent to the Kafka topic {self.kafka.topic(topic)}: {type(error).__name__}: {error}"
            raise MQClientException(msg) from error
        try:
            found = sent.get(timeout=timeout_ms / 1_000)
        except ClientError as error:
            if is_refusal(error):
                msg = f"nothing was sent to the Kafka topic {self.kafka.topic(topic)}: {self.explain(error)}"
                raise MQClientException(msg) from error
            msg = (
                f"Kafka did not acknowledge a record of {self.kafka.topic(topic)} within {timeout_ms} ms, "
                f"so it may or may not be there: {type(error).__name__}: {error}; {advice}"
            )
            if late is not None:
                sent.add_callback(lambda found: late(Position(found.partition, found.offset)))
            raise UncertainSend(msg) from error
        return Position(found.partition, found.offset)

    def send_soon(self, topic: str, queue: int, record: Encoded, done: Done) -> None:
        """Send without waiting.

        Args:
            topic: name without the prefix.
            queue: partition.
            record: key, value and headers.
            done: called with the outcome.
        """
        try:
            sent = self._send(topic, queue, record)
        except (ClientError, ValueError, MQClientException) as error:
            done(error)
            return
        sent.add_callback(lambda _: done(None))
        sent.add_errback(done)

    def _send(self, topic: str, queue: int, record: Encoded) -> Any:
        return self._started().send(
            self.kafka.topic(topic), key=record.key, value=record.value, headers=record.headers, partition=queue
        )

    def _started(self) -> HealingClient:
        if self._client is None:
            raise MQClientException(_NOT_RUNNING)
        return self._client
