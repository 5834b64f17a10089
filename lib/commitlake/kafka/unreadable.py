"""Records that kafka-python can't read: those with a header's name that is not UTF-8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CorruptRecordError

Records = dict[TopicPartition, list[Any]]
Passed = Callable[[TopicPartition, int, str], object]
"""Called with a partition, an offset, and a text of the error there."""


def poll(consumer: KafkaConsumer, passed: Passed, **options: Any) -> Records:
    """Return the next records; none when the next record can't be read, which is then skipped.

    The client reads a batch from its begin, so all later records of the batch are skipped, too.
    """
    try:
        found: Records = consumer.poll(**options)
    except CorruptRecordError as error:
        found_in = consumer._fetcher._next_partition_records  # only the fetcher knows the partition
        if not found_in:  # none: the broker reports that it can't read its own log
            raise
        partition = found_in.topic_partition
        at = consumer.position(partition)
        consumer.seek(partition, at + 1)
        passed(partition, at, f"it can't be read; is a header's name not UTF-8? {error}")
        return {}
    return found
