"""Commands of administrators: records in the topic `admin`, which an ACL can guard."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

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
    """Send a decision, and return its position in `admin`.

    Coordination applies it: a COMMIT or ROLLBACK ends a pending transaction, a RESUME reopens a discarded one. A
    decision that changes nothing gets a row in the table `rejected`.

    Args:
        kafka: the coordinator's Kafka.
        decision: RESUME, COMMIT or ROLLBACK.
        transaction_id: the transaction's id, which must be that of `first`.
        first: the position of its first half message in `half`.
        remark: why; kept in the table `op`.

    Raises:
        KafkaError: Kafka did not acknowledge the record.
    """
    with Sender(kafka) as sender:
        return sender.send(decision, transaction_id, first, remark)


class Sender:
    """A connection that sends decisions one after the other, each acknowledged before the next."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka, self._stack = kafka, ExitStack()
        self._topic = kafka.topic(ADMIN)

    def __enter__(self) -> Self:
        try:
            self._producer = self._stack.enter_context(single_records(self._kafka))
        except kafka_errors.KafkaError as error:
            raise KafkaError(explain(self._kafka, error)) from error
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def send(self, decision: str, transaction_id: str, first: Position, remark: str | None) -> Position:
        """Send a decision; see `send`."""
        op = wire.OpRecord(
            transaction_id=transaction_id, producer_group=None, decision=decision, half_messages=(first,), remark=remark
        )
        record = wire.encode_op(op)
        try:
            sent = self._producer.send(self._topic, key=record.key, value=record.value, partition=0)
            stored = sent.get(timeout=_ACKNOWLEDGED_WITHIN_S)
        except kafka_errors.KafkaError as error:
            if is_refusal(error):
                raise KafkaError(explain(self._kafka, error)) from error
            at = self._kafka.bootstrap_servers
            msg = f"Kafka at {at} did not acknowledge {decision}: {error}; it is safe to send it again"
            raise KafkaError(msg) from error
        return Position(stored.partition, stored.offset)
