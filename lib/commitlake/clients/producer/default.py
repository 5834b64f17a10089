"""The producer of normal, batch and delayed messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import yaml

from commitlake import config as configuration
from commitlake.clients import tracing
from commitlake.clients.producer.link import KafkaLink, Late
from commitlake.clients.producer.message import Message, SendResult
from commitlake.clients.producer.plain import milliseconds, shown
from commitlake.clients.producer.record_maker import RecordMaker, check_group, topic_of
from commitlake.config import Conf, KafkaConfig, values
from commitlake.errors import ArgumentError, ProducerError, RecordError, RefusedSendError
from commitlake.protocol import wire
from commitlake.protocol.durations import Duration
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import MESSAGES, OP
from commitlake.protocol.recall_handle import decode_handle, encode_handle

T = TypeVar("T")

SHUTDOWN_S = 30
_LOOK_S = 0.2
_SEND_AGAIN = (
    "send the same Message object again: it keeps its message_id, so with topics.dedup by message_id its topic shows "
    "it once; without that it may be there twice"
)


class DefaultMQProducer:
    """Sends messages that consumers see as soon as they have landed, or when their delay has ended.

    May be used by several threads, and as a context manager that starts and shuts down.

    Args:
        group: producer group, 1 to 255 characters.
        bootstrap_servers: Kafka's `host:port,...`, or a list of them.
        topic_prefix: the coordinator's `kafka.topic_prefix`.
        options: the coordinator's `kafka.options`, in the Java client's names.
        client_options: more keyword arguments of kafka-python's clients, for example `compression_type`, or
            `sasl_oauth_token_provider` with an object of the application.
        send_msg_timeout: how long a send may take, such as 3 (s) or `500ms`. After a failed send nothing new goes out.
            A record that had gone out before may be retried by Kafka's client for up to this time again, or for a
            second if that is longer.
        start_timeout: how long `start` waits for Kafka and for the coordinator's settings.
        engine: the client that sends, `kafka-python` or `confluent` (librdkafka; the extra `commitlake[confluent]`).
    """

    def __init__(
        self,
        group: str,
        *,
        bootstrap_servers: str | Sequence[str],
        topic_prefix: str = "commitlake.",
        options: Mapping[str, str] | None = None,
        client_options: Mapping[str, Any] | None = None,
        send_msg_timeout: Duration = 3,
        start_timeout: Duration = 10,
        engine: str = "kafka-python",
    ) -> None:
        self.group = check_group(group)
        self.send_msg_timeout = send_msg_timeout
        kafka = KafkaConfig(
            _checked("bootstrap_servers", _addresses, bootstrap_servers),
            _checked("topic_prefix", values.prefix, topic_prefix),
            queues=1,
            options=_checked("options", values.options, options or {}),
        )
        self._link = KafkaLink(kafka, milliseconds("start_timeout", start_timeout), client_options or {}, engine)
        self._running = False
        self._switch = threading.RLock()  # a signal handler may call `shutdown` within `start` or another `shutdown`
        # No `threading.Event`: the code that a signal interrupts may hold the event's lock.
        self._is_stopped = self._is_called_off = False

    @classmethod
    def from_conf(cls, conf: Conf, group: str, *listener: Any, **more: Any) -> Self:
        """Return a producer for the Kafka of a configuration.

        Args:
            conf: the coordinator's configuration, its path, or its keys and values; the keys of Kafka count.
            group: producer group.
            listener: the listener, where the producer takes one.
            more: further arguments of the producer, by name.

        Raises:
            ConfigError: the configuration is wrong, or names an embedded broker without a fixed port.
        """
        return cls(group, *listener, **kafka_of(conf), **more)

    @property
    def send_msg_timeout(self) -> float:
        """How long a send may take, in s; also after the start it may be set to any `Duration`."""
        return self._send_ms / 1_000

    @send_msg_timeout.setter
    def send_msg_timeout(self, timeout: Duration) -> None:
        self._send_ms = milliseconds("send_msg_timeout", timeout)

    def start(self) -> None:
        """Connect and read the coordinator's limits; does nothing when it is running.

        Raises:
            ProducerError: Kafka is out of reach, no coordinator has ever run there, or a signal handler called
                `shutdown` meanwhile.
        """
        with self._switch:
            if not self._running:
                self._is_called_off = False
                self._link.start(self._send_ms)
                self._is_stopped = False
                self._running = True
                if self._is_called_off:
                    self.shutdown(0)
                    msg = "the producer was shut down while it started; start it again if that was not meant"
                    raise ProducerError(msg)

    def shutdown(self, timeout: Duration = SHUTDOWN_S) -> None:
        """Send what is still buffered and disconnect; does nothing when it is not running.

        Args:
            timeout: unacknowledged records are given up after this time.
        """
        timeout_s = milliseconds("timeout", timeout) / 1_000
        with self._switch:
            self._is_called_off = True
            self._running = False
            self._link.stop(timeout_s)  # also when a signal handler has interrupted a shutdown before
            self._is_stopped = True

    def wait(self) -> None:
        """Block until `shutdown` is called, from another thread or a signal handler."""
        while not self._is_stopped:
            time.sleep(_LOOK_S)

    def send(self, message: Message | Sequence[Message], timeout: Duration | None = None) -> SendResult:
        """Send one message, or several as one batch: all members land or none.

        Args:
            message: a message, or messages of one topic without delay.
            timeout: instead of `send_msg_timeout`. The client may retry a record that had gone out for up to the
                longest timeout so far, of all producers that share the connection, after the send has failed.

        Raises:
            RefusedSendError: nothing was sent; the unchanged message would be refused again. `reason` names the rule.
            FailedSendError: nothing was sent, and the message may be sent again.
            UncertainSendError: Kafka did not acknowledge it in time, so the message may or may not have been sent. The
                same object may be sent again: it keeps its id.
        """
        timeout_ms = None if timeout is None else milliseconds("timeout", timeout)
        if isinstance(message, Message):
            return self._send_one(message, timeout_ms)
        return self._send_batch(listed(message), timeout_ms)

    def split(self, messages: Sequence[Message]) -> list[list[Message]]:
        """Cut a long list into lists, in order, each of which `send` takes as a batch.

        Raises:
            RefusedSendError: `BODY_TOO_LARGE` when one message alone is too large for a batch; `BAD_BATCH` when its
                sharding key is: the key counts once for each message of a batch, up to 64 MiB.
        """
        every = listed(messages)
        for each in every:
            topic_of(each)
        with self._refusing(tracing.reserved()) as maker:
            return list(maker.split(every))

    def recall(self, recall_handle: str) -> str:
        """Recall a delayed message, and return its id.

        The coordinator decides which comes first, the recall or the delivery. A recall that comes too late goes to the
        table `rejected`.

        Args:
            recall_handle: from the `SendResult` of the delayed message.

        Raises:
            FailedSendError: nothing was sent; a `RefusedSendError` when the text is no recall handle.
            UncertainSendError: Kafka did not acknowledge the recall; it may be sent again.
        """
        recall = decode_handle(recall_handle)
        advice = "recall it again, a second recall is harmless"
        self._link.send(OP, recall.message.queue, wire.encode_recall(recall), self._send_ms, advice)
        return recall.msg_id

    def reschedule(self, recall_handle: str, message: Message, timeout: Duration | None = None) -> SendResult:
        """Send a message in place of a delayed one: first the new message goes out, then the old one is recalled.

        In a topic of `topics.dedup` exactly one of two messages with the same name is shown, even if the recall comes
        too late or this process dies in between. In other topics both are shown in these two cases.

        Args:
            recall_handle: from the `SendResult` of the delayed message, or from `commitlake.delayed`.
            message: for the same topic, with a delay of its own, or none.
            timeout: instead of `send_msg_timeout`.

        Raises:
            FailedSendError: nothing was sent; a `RefusedSendError` when the text is no recall handle, or one of another
                topic, or the message was refused.
            UncertainSendError: Kafka did not acknowledge the message or the recall.
        """
        topic = decode_handle(recall_handle).topic
        if topic_of(message) != topic:
            msg = f"the message is for {message.topic!r:.200}, what is to be replaced is in {topic}; nothing was sent"
            raise RefusedSendError(msg)
        result = self._send_one(message, None if timeout is None else milliseconds("timeout", timeout))
        self.recall(recall_handle)
        return result

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _send_one(self, message: Message, timeout_ms: int | None) -> SendResult:
        with tracing.sending(topic_of(message)) as span:
            with self._refusing(tracing.carried()) as maker:
                record = maker.message(message)
                encoded = wire.encode_message(record)
            span.sends(record)
            at = self._send_record(MESSAGES, encoded, timeout_ms)
        recall = wire.RecallRecord(msg_id=record.msg_id, topic=record.topic, message=at)
        handle = encode_handle(recall) if maker.is_delayed(record) else None
        return SendResult(msg_id=record.msg_id, queue_id=at.queue, queue_offset=at.offset, recall_handle=handle)

    def _send_batch(self, messages: list[Message], timeout_ms: int | None) -> SendResult:
        topics = [topic_of(each) for each in messages]
        with tracing.sending(topics[0] if topics else "", len(topics)):
            with self._refusing(tracing.carried()) as maker:
                record, ids = maker.batch(messages)
                encoded = wire.encode_message(record)
            at = self._send_record(MESSAGES, encoded, timeout_ms)
        return SendResult(msg_id=",".join(ids), queue_id=at.queue, queue_offset=at.offset)

    def _send_record(
        self,
        topic: str,
        record: wire.Encoded,
        timeout_ms: int | None = None,
        advice: str = _SEND_AGAIN,
        late: Late | None = None,
    ) -> Position:
        within_ms = self._send_ms if timeout_ms is None else timeout_ms
        return self._link.send(topic, None, record, within_ms, advice, late)

    @contextmanager
    def _refusing(self, trace: Mapping[str, str]) -> Iterator[RecordMaker]:
        """Yield a maker of records with a trace; raise refusals within the `with` block as RefusedSendError."""
        try:
            yield RecordMaker(self.group, self._link.settings, trace)
        except RecordError as error:
            msg = f"{error.reason or 'refused'}: {error}; nothing was sent"
            raise RefusedSendError(msg, error.reason) from error


def kafka_of(conf: Conf) -> dict[str, Any]:
    """The arguments with which a producer reaches the Kafka of a configuration; see `DefaultMQProducer.from_conf`."""
    kafka = configuration.of(conf).kafka.with_address()
    return {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": kafka.topic_prefix, "options": kafka.options}


def listed(given: Any) -> list[Any]:
    """A list of several messages, or of the single one given."""
    return list(given) if isinstance(given, Iterable) else [given]


def _addresses(given: object) -> str:
    is_list = isinstance(given, list) and all(isinstance(each, str) for each in given)
    try:
        found = values.servers(",".join(given) if is_list else given)  # type: ignore[arg-type]
    except ValueError:
        found = values.EMBEDDED  # refused below, as `embedded` is: only a coordinator can start that broker
    if found == values.EMBEDDED:
        msg = "host:port,host:port,... or a list of these"
        raise ValueError(msg)
    return found


def _checked(name: str, parse: Callable[[object], T], given: object) -> T:
    """An argument, parsed as the configuration parses its key."""
    try:
        return parse(values.plain(given))
    except (ValueError, yaml.YAMLError) as error:
        what = name if name == "options" else f"{name}: {shown(given)}"  # options may hold a password
        msg = f"{what} is not allowed; allowed is {error}"
        raise ArgumentError(msg) from None
