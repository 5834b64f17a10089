"""Records that kafka-python can't read: those with a header's name that is not UTF-8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CorruptRecordError

Records = dict[TopicPartition, list[Any]]
Passed = Callable[[TopicPartition, int, str], object]
"""Gets a partition, an offset, and what is wrong there."""


def poll(consumer: KafkaConsumer, passed: Passed, **options: Any) -> Records:
    """Return the next records, none where the next one can't be read: it is passed over.

    The client reads a batch from its begin, so the rest of its batch is passed over, too.

    Args:
        consumer: has its partitions.
        passed: is told of that record.
        options: of `KafkaConsumer.poll`.
    """
    try:
        found: Records = consumer.poll(**options)
    except CorruptRecordError as error:
        found_in = consumer._fetcher._next_partition_records  # only its fetcher knows
        if not found_in:  # none: the broker says that it can't read its own log
            raise
        partition = found_in.topic_partition
        at = consumer.position(partition)
        consumer.seek(partition, at + 1)
        passed(partition, at, f"it can't be read; is a header's name not UTF-8? {error}")
        return {}
    return found
