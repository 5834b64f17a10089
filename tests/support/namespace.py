"""What stands in for the coordinator in tests of the producer: its settings and its checks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from tests.support.polling import wait_for

from commitlake.clients.producer import (
    LocalTransactionState,
    Message,
    MessageExt,
    ProducerError,
    TransactionListener,
    TransactionMQProducer,
)
from commitlake.config import Config, from_mapping
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.kafka.topics import ensure_topics, publish_settings
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.testing import codecs

COMMIT, ROLLBACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE
NUMBERS = itertools.count()


class Listener(TransactionListener):
    """Answers as given, a local transaction as its send says first, and keeps what it was called with."""

    def __init__(self, execute: Any = COMMIT, check: Any = COMMIT) -> None:
        self.answers = {"execute": execute, "check": check}
        self.executed: list[tuple[Message, object]] = []
        self.checked: list[MessageExt] = []

    def execute_local_transaction(self, message: Message, arg: object) -> Any:
        self.executed.append((message, arg))
        return arg if isinstance(arg, LocalTransactionState) else self._answer("execute", message)

    def check_local_transaction(self, message: MessageExt) -> Any:
        self.checked.append(message)
        return self._answer("check", message)

    def _answer(self, kind: str, message: Message) -> Any:
        answer = self.answers[kind]
        return answer(message) if callable(answer) else answer


class Namespace:
    """Topics of one test, and what a coordinator would do with them."""

    def __init__(self, broker: EmbeddedBroker, **changes: object) -> None:
        self.servers = broker.bootstrap_servers
        self.prefix = f"producer-test-{next(NUMBERS)}."
        self.engine = "kafka-python"
        self.config = self.configured(**changes)
        ensure_topics(self.config)

    def configured(self, **changes: object) -> Config:
        values = {"kafka.bootstrap_servers": self.servers, "kafka.topic_prefix": self.prefix, "kafka.queues": 2}
        return from_mapping({**values, **changes})

    def publish(self, *topics: str, **changes: object) -> None:
        publish_settings(self.configured(**changes), topics)

    def producer(self, listener: TransactionListener | None = None, group: str = "group", **more: Any) -> Any:
        where = {"bootstrap_servers": self.servers, "topic_prefix": self.prefix, "engine": self.engine}
        return TransactionMQProducer(group, listener, **{**where, **more})

    def read(self, topic: str) -> list[Any]:
        """All records that stand in the topic now, by partition and offset."""
        consumer = KafkaConsumer(bootstrap_servers=self.servers)
        partitions = [TopicPartition(self.prefix + topic, at) for at in (0, 1)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        found: list[Any] = []
        while any(consumer.position(each) < ends[each] for each in partitions):
            for records in consumer.poll(timeout_ms=200).values():
                found.extend(records)
        consumer.close()
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def ops(self) -> list[Any]:
        return [codecs.decode_op(record.value) for record in self.read("op")]

    def answers(self) -> list[Any]:
        """Ops that answer checks."""
        return [op for op in self.ops() if isinstance(op, wire.OpRecord) and op.from_check]

    def wait_for_ops(self, count: int) -> list[Any]:
        wait_for(lambda: len(self.read("op")) >= count)
        return self.ops()

    def ask(self, *checks: wire.CheckRecord, partition: int = 0, topic: str = "check") -> None:
        client = KafkaProducer(bootstrap_servers=self.servers)
        for check in checks:
            key, value, headers = codecs.encode_check(check)
            client.send(self.prefix + topic, key=key, value=value, headers=headers, partition=partition)
        client.close()

    def committed(self, group: str = "group", partition: int = 0) -> int | None:
        consumer = KafkaConsumer(bootstrap_servers=self.servers, group_id=f"{self.prefix}check.{group}")
        found = consumer.committed(TopicPartition(f"{self.prefix}check", partition))
        consumer.close(autocommit=False)
        return found  # type: ignore[no-any-return]


def published(broker: EmbeddedBroker, engine: str = "kafka-python") -> Namespace:
    """Empty topics with published settings."""
    namespace = Namespace(broker)
    namespace.engine = engine
    namespace.publish()
    return namespace


def failed(send: Callable[[Message], object], message: Message) -> ProducerError | None:
    """The error of a send, if there was one."""
    try:
        send(message)
    except ProducerError as error:
        return error
    return None


class NotUtf8(str):
    """The name of a header that no client of Python can read."""

    def encode(self, *_: str) -> bytes:
        return b"\xff"


def check(msg_id: str = "m", group: str = "group", **changes: Any) -> wire.CheckRecord:
    fields: dict[str, Any] = {
        "transaction_id": msg_id,
        "producer_group": group,
        "msg_id": msg_id,
        "topic": "orders",
        "body": b"body",
        "half": Position(1, 5),
        "half_messages": (Position(1, 5), Position(0, 9)),
        "check_times": 1,
        "check_id": "1-5-0-1",
    }
    return wire.CheckRecord(**{**fields, **changes})
