"""Producers, for asyncio too, over a Kafka that is a list, without checks; and the settings that they read."""

from __future__ import annotations

import threading

from commitlake import AsyncTransactionMQProducer, TransactionMQProducer
from commitlake.config import KafkaConfig
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.testing.producer import MemoryEngine, MemoryLink


class Kafka:
    """Appends records; one whose body is `hang` waits until `go_on`, or the end of the test."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes]] = []
        self.encoded: list[wire.Encoded] = []
        self.hangs, self.go_on = threading.Event(), threading.Event()

    def append(self, topic: str, queue: int, record: wire.Encoded) -> Position:
        if record.value == b"hang":
            self.hangs.set()
            self.go_on.wait(30)
        self.records.append((topic, record.value))
        self.encoded.append(record)
        return Position(queue, len(self.records) - 1)

    def sent(self, topic: str) -> list[bytes]:
        return [value for name, value in self.records if name == topic]


def producer(kafka: Kafka, listener: object | None = None, threads: int = 1) -> AsyncTransactionMQProducer:
    made = AsyncTransactionMQProducer("group", listener, threads=threads, bootstrap_servers="memory:9092")
    connect(made._producer, kafka)
    return made


def connect(producer: TransactionMQProducer, kafka: Kafka) -> None:
    producer._answer_checks = lambda: None  # type: ignore[method-assign]
    conf = KafkaConfig("memory:9092", "commitlake.", queues=1, options={})
    producer._link = MemoryLink(conf, MemoryEngine("commitlake.", 1, kafka.append), lambda: SETTINGS)


SETTINGS = wire.Settings(
    max_message_size=1_000,
    delay_levels=("1s", "5s"),
    delay_max_ms=60_000,
    reject_transactions=False,
    queues=4,
    max_queues=64,
    topics_allowed=("*",),
    topics_max=10,
    topics=(),
)
