"""Rows of `rejected` for refused ops, with the original bytes, read from Kafka a second time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.landing.classify import normalise
from commitlake.kafka.clients import spark_options, spark_source_limits
from commitlake.protocol.states import Event, Refusal
from commitlake.tables import Warehouse
from commitlake.tables.columns import moment, named
from commitlake.tables.spans import Span, spans_of, within

_DETAILS = {
    Refusal.WRONG_TRANSACTION_ID: "the half message at that offset has another transaction id",
    Refusal.WRONG_PRODUCER_GROUP: "the half message at that offset is of another producer group",
    Refusal.ALREADY_COMMITTED: "the transaction was committed before",
    Refusal.ALREADY_ROLLED_BACK: "the transaction was rolled back before",
    Refusal.ALREADY_DISCARDED: "the transaction was discarded before; RESUME reopens it",
    Refusal.NO_HALF_MESSAGE: "a half message that it lists did not come within transaction.op_park_time",
    Refusal.BAD_FIRST_HALF: "it lists a further half message first, or one further that belongs to another first one",
    Refusal.NOT_DISCARDED: "only a DISCARDED transaction can be resumed, no ORPHAN, and none with a refused part",
    Refusal.NO_DELAYED_MESSAGE: "there is no delayed message with that offset, id and topic",
    Refusal.RECALL_TOO_LATE: "the message was delivered before",
}
OP, ADMIN = "op", "admin"
_OP = ["op_queue", "op_offset", "admin"]


def rejected_rows(warehouse: Warehouse, config: Config, events: Events) -> DataFrame:
    """Rows of `rejected` for the REFUSED events, one each.

    Kafka may have dropped an old record by now, or lost it and hold another at its offset. The value is then its row of
    `op`, as JSON.

    Args:
        warehouse: the tables.
        config: says where Kafka is.
        events: the batch's events.
    """
    refused = events.frame.where(F.col("event") == int(Event.REFUSED)).select(
        *_OP, F.col("reason").alias("refusal"), "now"
    )
    spans = {
        topic: spans_of(refused.where(F.col("admin") == number), "op_queue", "op_offset")
        for number, topic in enumerate((OP, ADMIN))
    }
    record = _records(warehouse, config, spans)
    near = within([*spans[OP], *spans[ADMIN]], "queue", "op_offset")
    stored = (
        warehouse.read("op")
        .where(near)
        .select(
            F.col("queue").alias("op_queue"),
            "op_offset",
            F.col("admin").cast("int").alias("admin"),
            F.col("transaction_id").cast("binary").alias("stored_key"),
            F.to_json(F.struct("transaction_id", "producer_group", "decision", "half_messages", "remark")).alias(
                "stored_value"
            ),
            F.col("stored_at").alias("op_stored_at"),
        )
    )
    is_same = F.coalesce(F.col("stored_at") == F.col("op_stored_at"), F.lit(True))
    original = {name: F.when(is_same, F.col(name)) for name in ("key", "value", "headers")}
    details = F.create_map(*[F.lit(item) for code, text in _DETAILS.items() for item in (int(code), text)])
    return (
        refused.join(record, _OP, "left")
        .join(stored, _OP, "left")
        .select(
            F.when(F.col("admin") == 1, "admin").otherwise("op").alias("source"),
            F.col("op_queue").alias("kafka_partition"),
            F.col("op_offset").alias("kafka_offset"),
            named(Refusal, "refusal").alias("reason"),
            details[F.col("refusal")].alias("detail"),
            F.coalesce(original["key"], "stored_key").alias("key"),
            F.coalesce(original["value"], F.col("stored_value").cast("binary")).alias("value"),
            original["headers"].alias("headers"),
            moment("now").alias("rejected_at"),
        )
    )


def _records(warehouse: Warehouse, config: Config, spans: Mapping[str, Sequence[Span]]) -> DataFrame:
    """The Kafka records in the spans, as (op_queue, op_offset, admin, key, value, headers, stored_at).

    A read takes one range of each partition. So the first read takes the first span of all partitions, the second read
    the second spans, and so on. All ops between a refusal of now and one of ten minutes ago are then not read.
    """
    reads: list[dict[str, dict[int, Span]]] = []
    for source, each in spans.items():
        for span in each:
            place = config.kafka.topic(source)
            free = next((read for read in reads if span.queue not in read.get(place, {})), None)
            if free is None:
                reads.append(free := {})
            free.setdefault(place, {})[span.queue] = span
    found = reduce(DataFrame.unionAll, [_read(warehouse, config, ranges) for ranges in reads])
    is_admin = (F.col("source") == ADMIN).cast("int").alias("admin")
    at = [F.col("partition").alias("op_queue"), F.col("offset").alias("op_offset"), is_admin]
    return normalise(found, config.kafka.topic_prefix).select(*at, "key", "value", "headers", "stored_at")


def _read(warehouse: Warehouse, config: Config, ranges: Mapping[str, Mapping[int, Span]]) -> DataFrame:
    """The records of one range of each partition; those that Kafka has dropped are left out."""
    begins = {topic: {number: span.low for number, span in each.items()} for topic, each in ranges.items()}
    ends = {topic: {number: span.high + 1 for number, span in each.items()} for topic, each in ranges.items()}
    found: DataFrame = (
        warehouse.spark.read.format("kafka")
        .options(**spark_options(config.kafka) | spark_source_limits(config))
        .options(includeHeaders="true", failOnDataLoss="false")
        .option("assign", json.dumps({topic: list(each) for topic, each in ranges.items()}))
        .option("startingOffsets", json.dumps(begins))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )
    return found
