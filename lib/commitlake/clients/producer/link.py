"""A producer's link to Kafka, which all its threads use."""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.partitioner.default import murmur2

from commitlake.clients.producer.connection import CONFLUENT_TAKES, NOT_RUNNING, Connection, shared
from commitlake.clients.producer.engine import Engine, Result
from commitlake.clients.producer.plain import shown
from commitlake.config import KafkaConfig
from commitlake.errors import (
    ArgumentError,
    ConfigError,
    FailedSendError,
    ProducerError,
    RefusedSendError,
    SetupError,
    UncertainSendError,
    installed_by,
)
from commitlake.kafka.clients import check_option_names
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import Encoded

_OWN = {"acks", "enable_idempotence", "max_request_size", "key_serializer", "value_serializer"}
_TIMES = {"delivery_timeout_ms", "max_block_ms"}

Done = Callable[[BaseException | None], None]
"""Called once, from any thread, with None when a record was acknowledged, else with the error."""
Late = Callable[[Position], None]


def _check_own(options: Mapping[str, Any]) -> None:
    for name in options:
        if name in _TIMES:
            msg = f"client_options: {name} is not allowed; send_msg_timeout limits the whole send, so set that"
            raise ArgumentError(msg)
        if name in _OWN:
            msg = f"client_options: {name} is not allowed; CommitLake's guarantees need its own value: leave it out"
            raise ArgumentError(msg)


def _check_names(options: Mapping[str, Any]) -> None:
    usual = {**KafkaConsumer.DEFAULT_CONFIG, **KafkaProducer.DEFAULT_CONFIG}
    allowed = set(usual) - _OWN - _TIMES
    for name, value in options.items():
        if name in allowed and isinstance(usual[name], int | float) and not isinstance(value, int | float):
            msg = f"client_options: {name} is {shown(value)}, allowed is a number, such as {usual[name]!r}"
            raise ArgumentError(msg)
        if name not in allowed:
            close = difflib.get_close_matches(str(name), allowed, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            msg = f"client_options: {name} is not allowed; allowed is what kafka-python's clients take{hint}"
            raise ArgumentError(msg)


ENGINES = ("kafka-python", "confluent")
_LOGIN = ("security_", "sasl_", "ssl_")


def check_engine(engine: str, options: Mapping[str, Any]) -> str:
    """Return the name of an engine.

    Raises:
        ArgumentError: there is no such engine, or it does not take an option.
        SetupError: its package is missing.
    """
    if engine not in ENGINES:
        msg = f"engine is {engine!r}, allowed is {' or '.join(ENGINES)}"
        raise ArgumentError(msg)
    if engine == "confluent":
        if importlib.util.find_spec("confluent_kafka") is None:
            msg = f"engine='confluent' needs the package confluent-kafka: {installed_by('confluent')}"
            raise SetupError(msg)
        reading = set(KafkaConsumer.DEFAULT_CONFIG)
        others = [name for name in sorted(options) if name not in reading or name.startswith(_LOGIN)]
        if left := [name for name in others if name not in CONFLUENT_TAKES]:
            takes = ", ".join(sorted(CONFLUENT_TAKES))
            msg = (
                f"client_options: {left[0]} is not allowed with engine='confluent', which takes {takes} for sending; "
                "leave it out, or see whether engine='kafka-python' takes it"
            )
            raise ArgumentError(msg)
    return engine


class KafkaLink:
    """A producer's link to the connection that producers of its process share."""

    def __init__(self, kafka: KafkaConfig, start_timeout_ms: int, more: object, engine: str = ENGINES[0]) -> None:
        if not isinstance(more, Mapping):
            msg = f"client_options: {shown(more)} is not allowed; allowed is a dict of kafka-python's keyword arguments"
            raise ArgumentError(msg)
        more = dict(more)  # later changes of the caller's dict must not concern this producer
        _check_own(more)
        check_engine(engine, more)
        _check_names(more)
        check_option_names(kafka.options)
        self.kafka = kafka
        self._made = partial(Connection, kafka, start_timeout_ms, more, engine)
        self._connection: Connection | None = None
        self._turn = itertools.count()

    def start(self, timeout_ms: int) -> None:
        """Connect and read the settings.

        Raises:
            ProducerError: Kafka is out of reach, or the coordinator has not run yet.
            ConfigError: the engine does not take an option.
        """
        connection = shared(self._made(timeout_ms))
        connection.join(self)
        self._connection = connection

    def stop(self, timeout_s: float) -> None:
        """Send what is still buffered, for at most `timeout_s`, then leave the connection."""
        if connection := self._connection:
            connection.leave(self, timeout_s)
            self._connection = None

    def flush(self, timeout_s: float) -> None:
        """Wait until every record sent before was acknowledged or has failed, for at most `timeout_s`."""
        if self._connection:
            self._connection.flush(timeout_s)

    @property
    def settings(self) -> wire.Settings:
        """The newest limits the coordinator has published."""
        return self.connection.settings

    @property
    def connection(self) -> Connection:
        """The shared connection, from `start` to `stop`."""
        if self._connection is None:
            raise FailedSendError(NOT_RUNNING)
        return self._connection

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
            queue: partition; None for the partition of the record's key, or without a key the next in turn.
            record: key, value and headers.
            timeout_ms: how long the whole call may take, ms.
            advice: the remedy in the error of an uncertain send.
            late: called with the position, in a thread of the client, if the acknowledgement comes after that.

        Raises:
            FailedSendError: nothing was sent, or Kafka refused the record.
            UncertainSendError: there was no acknowledgement in time, or Kafka answered with another error.
        """
        until = time.monotonic() + timeout_ms / 1_000
        name = self.kafka.topic(topic)
        try:
            sent = self._send(name, queue, record, timeout_ms)
            try:
                return sent.result(max(0.0, until - time.monotonic()))
            except TimeoutError:
                msg = "Kafka did not answer in time"
                raise UncertainSendError(msg) from None
        except FailedSendError as error:
            hint = "" if isinstance(error, RefusedSendError) else "; you may send it again"
            msg = f"nothing was sent to the Kafka topic {name}: {error}{hint}"
            raise type(error)(msg) from error
        except UncertainSendError as error:
            if late is not None:
                sent.add_done_callback(lambda done: None if done.exception() else late(done.result()))
            msg = (
                f"Kafka did not acknowledge a record of {name} within {timeout_ms} ms, "
                f"so it may or may not be there: {error}; {advice}"
            )
            raise UncertainSendError(msg) from error

    def send_soon(self, topic: str, queue: int, record: Encoded, timeout_ms: int, done: Done) -> None:
        """Send without waiting; `done` is called with the outcome.

        The client gives the record up after `timeout_ms`. `topic` is the name without the prefix.
        """
        try:
            sent = self._send(self.kafka.topic(topic), queue, record, timeout_ms)
        except ProducerError as error:
            done(error)
            return
        sent.add_done_callback(lambda outcome: done(outcome.exception()))

    def _send(self, name: str, queue: int | None, record: Encoded, timeout_ms: int) -> Result[Position]:
        engine = self._started()
        try:
            if queue is None:
                number = next(self._turn) if record.key is None else int(murmur2(record.key)) & 0x7FFFFFFF
                return engine.send(name, number.__mod__, record, timeout_ms)
            return engine.send(name, queue, record, timeout_ms)
        except ConfigError as error:  # raised by a new connection that replaces one, for example if a file is gone
            raise FailedSendError(str(error)) from error

    def _started(self) -> Engine:
        return self.connection.engine
