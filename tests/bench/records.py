"""Kafka records of benchmarks, sent by librdkafka: 6 us of a core each, where kafka-python needs 60.

Making a record comes on top. Up to 2 000 transactions a second the load takes a few hundredths of a core.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import Producer


class Record(NamedTuple):
    """A record to send, without its topic."""

    queue: int
    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


class Appended(NamedTuple):
    """Where a record stands in its partition, and when the broker appended it (ms since epoch, UTC)."""

    offset: int
    at_ms: int


class RecordSender:
    """Sends records, those of a call in one batch for each partition, and waits until all are acknowledged."""

    def __init__(self, servers: str) -> None:
        limits = {"batch.num.messages": 100_000, "batch.size": 5 << 20, "message.max.bytes": 16 << 20}
        once = {"enable.idempotence": True}  # a request that times out is sent again
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 1_000, **once, **limits})

    def send(self, topic: str, records: Sequence[Record]) -> list[Appended]:
        """Where they stand, in the order of the records."""
        found: dict[int, Appended] = {}
        for number, each in enumerate(records):
            taken = partial(_take, found, number)
            self._producer.produce(topic, each.value, each.key, each.queue, on_delivery=taken, headers=[*each.headers])
        self._producer.flush()
        return [found[number] for number in range(len(records))]


def _take(found: dict[int, Appended], number: int, error: object, message: Any) -> None:
    assert error is None, error
    found[number] = Appended(message.offset(), message.timestamp()[1])
