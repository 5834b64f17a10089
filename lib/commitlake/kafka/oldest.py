"""The time since which records wait in Kafka: the true lateness of their reader."""

from __future__ import annotations

import time
from collections.abc import Mapping

from kafka import KafkaConsumer, TopicPartition
from kafka import errors as kafka_errors

from commitlake.config import Config
from commitlake.errors import KafkaError
from commitlake.kafka.admin_client import CONNECT_TIMEOUT_MS, explain
from commitlake.kafka.clients import python_options
from commitlake.kafka.log_ends import Place

_WAIT_S = 5.0


def oldest_ms(config: Config, offsets: Mapping[Place, int]) -> int | None:
    """When the oldest of the next records was appended, ms since epoch, UTC; None when there is none.

    `offsets` has the next offset of each partition that has records to read.

    Raises:
        KafkaError: Kafka is out of reach, or refuses.
    """
    if not offsets:
        return None
    wanted = {TopicPartition(config.kafka.topic(source), number): at for (source, number), at in offsets.items()}
    options = {**python_options(config.kafka), "bootstrap_timeout_ms": CONNECT_TIMEOUT_MS}
    try:
        consumer = KafkaConsumer(**options, auto_offset_reset="earliest", enable_auto_commit=False)
        try:
            consumer.assign(list(wanted))
            for partition, offset in wanted.items():
                consumer.seek(partition, offset)
            return _oldest(consumer, len(wanted))
        finally:
            consumer.close()
    except kafka_errors.KafkaError as error:
        raise KafkaError(explain(config.kafka, error)) from error


def _oldest(consumer: KafkaConsumer, partitions: int) -> int | None:
    """The oldest time among the first records of the partitions, or None.

    The wait takes 5 s at most: a partition may have only markers of transactions left.
    """
    first: dict[TopicPartition, int] = {}
    until = time.monotonic() + _WAIT_S
    while len(first) < partitions and time.monotonic() < until:
        for partition, records in consumer.poll(timeout_ms=200, max_records=partitions * 10).items():
            first.setdefault(partition, records[0].timestamp)
            consumer.pause(partition)
    return min(first.values(), default=None)
