"""Reads the limits that the coordinator publishes: at the start, then in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError

from commitlake.errors import FailedSend, MQClientException, RecordError
from commitlake.kafka.refusals import is_refusal
from commitlake.kafka.unreadable import poll
from commitlake.protocol import wire
from commitlake.throttled import Ignored

log = logging.getLogger(__name__)

POLL_MS = 500
BACKOFF_MS = 200


class SettingsReader:
    """Follows the Kafka topic `settings`; `current` is the content of the last record.

    Args:
        client_options: keyword arguments of a consumer.
        topic: full name of the topic.
        explain: returns the text for a user about a problem with Kafka.
        look: called by the reading thread, at least once for each poll.
    """

    def __init__(
        self,
        client_options: Mapping[str, Any],
        topic: str,
        explain: Callable[[Exception], str],
        look: Callable[[], object],
    ) -> None:
        self._client_options = client_options
        self._topic = topic
        self._explain, self._look = explain, look
        self._known: wire.Settings | None = None
        self._failure: Exception | None = None
        self._ignored = Ignored(topic)
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="commitlake-settings", daemon=True)

    def start(self, timeout_ms: int) -> None:
        """Return once the newest settings are known.

        Raises:
            MQClientException: Kafka is out of reach, or nothing was read within `timeout_ms`.
        """
        self._thread.start()
        if self._ready.wait(timeout_ms / 1_000) and self._failure is None:
            return
        self.stop()
        if self._failure:
            log.debug("the last try to read %s", self._topic, exc_info=self._failure)
            msg = f"cannot read the Kafka topic {self._topic}: {self._explain(self._failure)}"
            raise MQClientException(msg) from None  # the text has the cause, which 25 lines of its traceback would hide
        msg = (
            f"the Kafka topic {self._topic} has no settings after {timeout_ms} ms; "
            "start the coordinator, which publishes them, or check topic_prefix"
        )
        raise MQClientException(msg)

    @property
    def current(self) -> wire.Settings:
        """The newest settings."""
        if self._known is None:
            msg = "the producer is not running; call start() first"
            raise FailedSend(msg)
        return self._known

    def stop(self) -> None:
        """Stop reading; does nothing when it is not running."""
        self._stopping.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
                self._failure = None
                self._consume()
            except Exception as error:  # whatever it is: a waiting `start` raises it, and later limits are still read
                self._failure = error
                if is_refusal(error) and not self._ready.is_set():
                    self._ready.set()  # `start` fails at once, since a retry would be refused too
                    return
                log.debug("reading %s failed, trying again: %s", self._topic, error)
                self._stopping.wait(BACKOFF_MS / 1_000)

    def _consume(self) -> None:
        consumer = KafkaConsumer(**self._client_options, enable_auto_commit=False)
        try:
            partition = TopicPartition(self._topic, 0)
            while not consumer.partitions_for_topic(self._topic):
                with suppress(KafkaTimeoutError):  # a missing topic times out; denied access raises another error
                    consumer.end_offsets([partition], timeout_ms=BACKOFF_MS)
                if self._stopping.is_set():
                    return
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            end = consumer.end_offsets([partition])[partition]
            while not self._stopping.is_set():
                self._look()
                for record in poll(consumer, self._pass, timeout_ms=POLL_MS).get(partition, []):
                    self._take(record)
                if self._known and consumer.position(partition) >= end:
                    self._ready.set()
        finally:
            consumer.close()

    def _take(self, record: Any) -> None:
        if record.key != wire.SETTINGS_KEY or record.value is None:
            return
        try:
            self._known = wire.decode_settings(record.value)
        except RecordError as error:
            self._ignored.add(f"0-{record.offset}", error)

    def _pass(self, partition: TopicPartition, offset: int, reason: str) -> None:
        self._ignored.add(f"{partition.partition}-{offset}", reason)
