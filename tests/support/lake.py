"""A namespace of one test: its Kafka topics, its warehouse, and what producers, administrators and readers do there."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from pyspark.sql import SparkSession
from tests.support import tables

from commitlake import config
from commitlake.config import Config
from commitlake.coordinator.coordinator import Coordinator
from commitlake.kafka.topics import ensure_topics
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position

Row = dict[str, Any]
HOUR = "1h"
QUIET = {
    "transaction.timeout": HOUR,
    "transaction.check_interval": HOUR,
    "transaction.check_max": 1,
    "transaction.op_park_time": HOUR,
    "trigger_interval": "200ms",
    "kafka.queues": 2,
}
"""Timings with which nothing falls due while a test runs; a test changes what it is about."""


class Record(NamedTuple):
    """Where a record stands in Kafka, as `rejected` names it."""

    source: str
    partition: int
    offset: int

    @property
    def position(self) -> Position:
        return Position(self.partition, self.offset)


class Lake:
    """One topic prefix and one warehouse."""

    def __init__(self, servers: str, prefix: str, root: Path, **changes: object) -> None:
        self.root, self.warehouse = root, root / "warehouse"
        self.tables = changes.get("warehouse", self.warehouse)
        self.settings: dict[str, Any] = {
            **QUIET,
            "kafka.bootstrap_servers": servers,
            "kafka.topic_prefix": prefix,
            "warehouse": str(self.warehouse),
            "checkpoints": str(root / "checkpoints"),
            **changes,
        }
        self.config = self.configured()
        ensure_topics(self.config)
        self.producer = KafkaProducer(bootstrap_servers=servers, acks="all")
        self._answered: set[str] = set()

    def changed(self, **changes: object) -> dict[str, object]:
        """The settings with `changes`; `transaction_timeout` stands for `transaction.timeout`."""
        return {**self.settings, **{key.replace("_", ".", 1): value for key, value in changes.items()}}

    def configured(self, **changes: object) -> Config:
        """The configuration with `changes`."""
        return config.from_mapping(self.changed(**changes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.producer.close()

    @contextmanager
    def copied(self, root: Path) -> Iterator[Lake]:
        """A copy of the warehouse, over the same Kafka topics."""
        shutil.copytree(self.warehouse, root / "warehouse")
        kafka = self.config.kafka
        with Lake(kafka.bootstrap_servers, kafka.topic_prefix, root) as copy:
            yield copy

    # what producers and administrators do

    @contextmanager
    def relay(self, timeout_ms: int = 10_000) -> Iterator[Lake]:
        """Sends within Kafka transactions, as Connect and Streams do; one is open, and Kafka ends it after a time."""
        other = copy.copy(self)
        name = self.config.kafka.topic("relay")
        servers = self.config.kafka.bootstrap_servers
        with closing(
            KafkaProducer(bootstrap_servers=servers, transactional_id=name, transaction_timeout_ms=timeout_ms)
        ) as own:
            other.producer = own
            own.init_transactions()
            own.begin_transaction()
            yield other

    def send(self, source: str, encoded: wire.Encoded, partition: int) -> Record:
        """Writes a record and waits until it is there; each gets an append time of its own, so the order is certain."""
        time.sleep(0.002)
        sent = self.producer.send(
            self.config.kafka.topic(source), encoded.value, encoded.key, encoded.headers, partition
        )
        return Record(source, partition, sent.get(60).offset)

    def half(
        self, tid: str, queue: int = 0, *, first: Position | None = None, group: str = "g", **more: Any
    ) -> Position:
        fields = {"topic": "orders", "msg_id": f"{tid}-{queue}", "body": tid.encode(), "producer_group": group}
        record = wire.HalfRecord(transaction_id=tid, first_half=first, **{**fields, **more})
        return self.send("half", wire.encode_half(record), queue).position

    def commit(self, *names: str) -> None:
        """Sends committed transactions, all to queue 0."""
        for name in names:
            self.op("COMMIT", name, self.half(name))

    def message(self, msg_id: str, queue: int = 0, topic: str = "delays", **more: Any) -> Position:
        fields = {"topic": topic, "msg_id": msg_id, "body": msg_id.encode(), "producer_group": "g"}
        record = wire.MessageRecord(**{**fields, **more})
        return self.send("messages", wire.encode_message(record), queue).position

    def op(self, decision: str, tid: str, *listed: Position, group: str | None = "g", **more: Any) -> Record:
        queue = more.pop("queue", listed[0].queue)
        op = wire.OpRecord(transaction_id=tid, producer_group=group, decision=decision, half_messages=listed, **more)
        return self.send("op", wire.encode_op(op), queue)

    def admin(self, decision: str, tid: str, *listed: Position) -> Record:
        op = wire.OpRecord(transaction_id=tid, producer_group=None, decision=decision, half_messages=listed)
        return self.send("admin", wire.encode_op(op), 0)

    def recall(self, msg_id: str, message: Position, topic: str = "delays") -> Record:
        recall = wire.RecallRecord(msg_id=msg_id, topic=topic, message=message)
        return self.send("op", wire.encode_recall(recall), message.queue)

    def answer_unknown(self) -> None:
        """The producers answer each check that came since the last time: its outcome is still unknown."""
        for check in self.checks():
            if check.check_id not in self._answered:
                self._answered.add(check.check_id)
                answer: Row = {"group": check.producer_group, "from_check": True, "check_id": check.check_id}
                self.op("UNKNOWN", check.transaction_id, *check.half_messages, **answer)

    def end(self, source: str, queue: int) -> Position:
        """Where the next record of a partition will stand."""
        with self._consumer() as consumer:
            partition = TopicPartition(self.config.kafka.topic(source), queue)
            return Position(queue, consumer.end_offsets([partition])[partition])

    # what the coordinator does

    def run(self, spark: SparkSession, **changes: object) -> int:
        """Works off all that is there; returns the highest batch_id so far."""
        with Coordinator(spark, self.configured(**changes)).start(available_now=True):
            pass
        return max((row["batch_id"] for row in self.rows("batches")), default=-1)

    # what readers see

    def rows(self, table: str) -> list[Row]:
        """All rows of a table; none before its first commit."""
        return tables.rows(str(self.tables), table)

    def topic(self, name: str) -> list[Row]:
        """All rows of a topic's table, by its name on disk."""
        return self.rows(f"topics/{name}")

    def topics(self) -> list[str]:
        return tables.topics(str(self.tables))

    def rejected(self) -> dict[Record, Row]:
        """Rows of `rejected` by their record; fails when a record has two."""
        rows = self.rows("rejected")
        found = {Record(row["source"], row["kafka_partition"], row["kafka_offset"]): row for row in rows}
        assert len(found) == len(rows), "a record is rejected twice"
        return found

    def kafka(self, source: str) -> Iterator[Any]:
        with self._consumer() as consumer:
            name = self.config.kafka.topic(source)
            partitions = [TopicPartition(name, at) for at in sorted(consumer.partitions_for_topic(name))]
            for partition, end in consumer.end_offsets(partitions).items():
                consumer.assign([partition])
                consumer.seek_to_beginning()
                while consumer.position(partition) < end:
                    yield from consumer.poll(500).get(partition, [])

    def checks(self, topic: str = "check") -> list[wire.CheckRecord]:
        return [wire.decode_check(record.value, record.headers) for record in self.kafka(topic)]

    @contextmanager
    def _consumer(self) -> Iterator[KafkaConsumer]:
        consumer = KafkaConsumer(bootstrap_servers=self.config.kafka.bootstrap_servers)
        try:
            yield consumer
        finally:
            consumer.close()


def newest(transactions: list[Row]) -> dict[tuple[int, int], Row]:
    """The newest ledger row of each half message, by (queue, offset)."""
    rows = sorted(transactions, key=lambda row: row["batch_id"])
    return {(row["queue"], row["half_offset"]): row for row in rows}


def ended(lake: Lake) -> dict[tuple[int, int], Row]:
    """The newest ledger row of each half message that no RESUME has reopened since."""
    resumed = sorted((row for row in lake.rows("reentries") if row["round"] > 0), key=lambda row: row["round"])
    again = {own_place(row): row["round"] for row in resumed}
    rows = newest(lake.rows("transactions"))
    return {at: row for at, row in rows.items() if again.get(at, 0) <= row["round"]}


def own_place(row: Row) -> tuple[int, int]:
    """Where the half message of a requeued row stands: a part has a place of its own."""
    is_part = row["part_offset"] >= 0
    return (row["part_queue"], row["part_offset"]) if is_part else (row["queue"], row["offset"])
