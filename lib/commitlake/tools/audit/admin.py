"""Commands of administrators: records in the topic `admin`, which an ACL can guard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from kafka import KafkaProducer
from kafka import errors as kafka_errors

from commitlake.config import KafkaConfig
from commitlake.errors import KafkaError, TransactionNotFoundError
from commitlake.kafka.admin_client import explain, single_records
from commitlake.kafka.refusals import is_refusal
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import ADMIN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ACKNOWLEDGED_WITHIN_S = 15


def first_half_message(spark: SparkSession, warehouse: str, transaction_id: str) -> Position:
    """Return the position of a transaction's first half message, the only one that a decision names.

    Raises:
        TransactionNotFoundError: no half message, or those of several transactions, have this transaction id.
    """
    from commitlake.tables import Warehouse  # `send` needs no Spark

    half = Warehouse(spark, warehouse).read("half").where("queue = first_queue AND queue_offset = first_offset")
    found = half.where(half["transaction_id"] == transaction_id).select("queue", "queue_offset", "producer_group")
    rows = found.limit(10).collect()
    if len(rows) == 1:
        return Position(rows[0]["queue"], rows[0]["queue_offset"])
    if not rows:
        msg = f"no first half message with the transaction id {transaction_id!r} has landed; check the id"
        raise TransactionNotFoundError(msg)
    places = ", ".join(f"{Position(row[0], row[1])} of group {row['producer_group']}" for row in rows)
    msg = f"{transaction_id!r} is the id of several transactions: {places}; name one of them with --at QUEUE-OFFSET"
    raise TransactionNotFoundError(msg)


def send(kafka: KafkaConfig, decision: str, transaction_id: str, first: Position, remark: str | None) -> Position:
    """Send a decision on the transaction of the half message at `first`, and return its position in `admin`.

    Coordination applies it: a COMMIT or ROLLBACK ends a pending transaction, a RESUME reopens a discarded one. A
    decision that changes nothing gets a row in the table `rejected`. The table `op` keeps the remark.

    Raises:
        KafkaError: Kafka did not acknowledge the record.
    """
    with sending(kafka) as send_one:
        return send_one(decision, transaction_id, first, remark)


@contextmanager
def sending(kafka: KafkaConfig) -> Iterator[Callable[[str, str, Position, str | None], Position]]:
    """Yield `send` over one connection: each decision is acknowledged before the next."""
    try:
        with single_records(kafka) as producer:
            yield partial(_send, producer, kafka)
    except kafka_errors.KafkaError as error:
        raise KafkaError(explain(kafka, error)) from error


def _send(
    producer: KafkaProducer, kafka: KafkaConfig, decision: str, transaction_id: str, first: Position, remark: str | None
) -> Position:
    op = wire.OpRecord(
        transaction_id=transaction_id, producer_group=None, decision=decision, half_messages=(first,), remark=remark
    )
    record = wire.encode_op(op)
    try:
        sent = producer.send(kafka.topic(ADMIN), key=record.key, value=record.value, partition=0)
        stored = sent.get(timeout=_ACKNOWLEDGED_WITHIN_S)
    except kafka_errors.KafkaError as error:
        if is_refusal(error):
            raise
        msg = f"Kafka at {kafka.bootstrap_servers} did not acknowledge {decision}: {error}; it is safe to send it again"
        raise KafkaError(msg) from error
    return Position(stored.partition, stored.offset)
