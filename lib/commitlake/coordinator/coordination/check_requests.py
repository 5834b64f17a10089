"""Check requests: the records that a producer group gets when its transaction is still open."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.config import Config, KafkaConfig
from commitlake.config.terminal import printable
from commitlake.errors import root_reason
from commitlake.kafka import sink
from commitlake.kafka.throttled import Throttle
from commitlake.protocol import database_row, headers
from commitlake.protocol.kafka_topics import CHECK, check_topic
from commitlake.protocol.wire import MAX_HALF_MESSAGES

log = logging.getLogger(__name__)

_TIMES = {headers.BORN_TIMESTAMP: "born_at", headers.STORED_TIMESTAMP: "stored_at"}
_TEXTS = {
    headers.PGROUP: "producer_group",
    headers.UNIQ_KEY: "message_id",
    headers.TRANSACTION_ID: "transaction_id",
    headers.REAL_TOPIC: "topic",
    headers.REAL_QID: "queue_id",
    headers.HALF_QUEUE: "queue",
    headers.HALF_OFFSET: "queue_offset",
    headers.HALF_MESSAGES: "half_messages",
    headers.CHECK_TIMES: "check_no",
    headers.CHECK_ID: "check_id",
}
_OPTIONAL = {headers.TAGS: "tags", headers.KEYS: "keys"}
MOST_PROPERTIES = 128 * 1024
"""Bytes of user properties, tags and keys that a check carries; with more it carries none. A record may have twice as
many besides its message (`kafka.clients.record_bytes`), so no producer can make a check too large for Kafka."""
_EACH = 10  # bytes that Kafka needs for the two lengths of a header


def records(checked: DataFrame, parts: DataFrame | None, kafka: KafkaConfig) -> DataFrame:
    """Kafka records of check requests; a repeated check is the same record, except for parts that landed since.

    Each check of a transaction goes to the next partition, a repeated one too: the instance that has the partition
    before may hang, or not see what others see.

    Args:
        checked: half messages, bodies and all, with `round`, `check_no` and `repeat`.
        parts: (first_queue, first_offset, queue, queue_offset) of the parts that have landed; None: there are none.
        kafka: names the topics, the groups with a check topic of their own, and how many partitions are used.
    """
    listed = checked.withColumn("parts", F.array()) if parts is None else _with_parts(checked, parts)
    first = F.struct("queue", F.col("queue_offset").alias("offset"))
    return (
        listed.withColumn("half_messages", F.to_json(F.concat(F.array(first), F.col("parts").cast(_LIST))))
        .withColumn("check_id", F.concat_ws("-", "queue", "queue_offset", "round", "check_no"))
        .select(
            _topic(kafka).alias("topic"),
            F.expr(f"pmod(queue + check_no - 1 + repeat, {kafka.queues})").alias("partition"),
            F.col("transaction_id").cast("binary").alias("key"),
            F.col("body").alias("value"),
            _headers().alias("headers"),
            F.concat(F.lit("the check "), "check_id").alias("name"),
        )
    )


def _topic(kafka: KafkaConfig) -> Column:
    """The group's own check topic, or the one of all groups."""
    group, of_all = F.col("producer_group"), F.lit(kafka.topic(CHECK))
    own = F.concat(F.lit(kafka.topic(check_topic(""))), group)
    return F.when(group.isin(*kafka.check_topics), own).otherwise(of_all) if kafka.check_topics else of_all


def tell_unanswered(config: Config, checked: DataFrame) -> None:
    """Warn of groups that have no rule and answer nothing, as a repeated check shows; `checked` as in `records`."""
    repeated = checked.where("repeat > 0").select("producer_group").distinct().limit(_MOST_TOLD).collect()
    silent = sorted({str(row[0]) for row in repeated} - set(config.checks))
    if silent:
        log.warning(
            "nobody has answered the checks of %s for %d s or more: no instance with a listener runs, and `checks` has "
            "no rule; their transactions stay open until transaction.retention, see `commitlake tx hanging`",
            printable(", ".join(silent)),
            config.transaction.check_repeat_ms // 1_000,
        )


_MOST_TOLD = 20
_SOON = {
    "kafka.delivery.timeout.ms": "20000",
    "kafka.request.timeout.ms": "15000",
    "kafka.max.block.ms": "15000",
}
"""Kafka's default of two minutes would delay all commits for a check, which may get lost."""


def send(config: Config, checked: DataFrame, parts: DataFrame | None, throttle: Throttle) -> None:
    """Writes check requests to Kafka, as far as it takes them: an unanswered check is sent again.

    Args:
        config: says where Kafka is.
        checked: as in `records`.
        parts: as in `records`.
        throttle: says when a warning is due that checks can't be sent.
    """
    try:
        sink.write(config, records(checked, parts, config.kafka), _SOON)
    except Exception as error:  # Kafka's, a missing right, or ours; raised, one that lasts would end each start
        if throttle.is_due():
            told = config.kafka.topic(CHECK), root_reason(error), config.transaction.check_repeat_ms // 1_000
            log.warning("checks can't be sent to the Kafka topic %s: %s; they are sent again after %d s", *told)


_LIST = "array<struct<queue:int,offset:bigint>>"


def _with_parts(found: DataFrame, parts: DataFrame) -> DataFrame:
    """Adds `parts`, in the order of (queue, offset): a repeated check names the same parts in the same order."""
    item = F.struct(F.col("queue"), F.col("queue_offset").alias("offset"))
    others = MAX_HALF_MESSAGES - 1  # an op lists so many besides the first; it decides on the parts beyond too
    lists = (
        parts.withColumn("item", item)
        .groupBy(F.col("first_queue").alias("queue"), F.col("first_offset").alias("queue_offset"))
        .agg(F.slice(F.sort_array(F.collect_set("item")), 1, others).alias("parts"))
    )
    joined = found.join(lists, ["queue", "queue_offset"], "left")
    return joined.withColumn("parts", F.coalesce("parts", F.array().cast(_LIST)))


def _headers() -> Column:
    """User properties, then the contract's own headers; a header without a value is left out."""
    own = own_headers(_TEXTS) | {database_row.NAME: F.col("properties")[database_row.NAME]}  # else nobody could answer
    named = present({name: F.col(column) for name, column in _OPTIONAL.items()})
    optional = F.concat(property_headers(own), named)
    sent = F.when(_bytes(optional) <= MOST_PROPERTIES, optional).otherwise(F.array().cast(_HEADERS))
    return F.concat(sent, present(own))


def own_headers(texts: Mapping[str, str]) -> dict[str, Column]:
    """The values of the contract's headers, as texts; `texts` are headers by name, each with a column of messages."""
    times = {name: F.unix_millis(F.col(column)).cast("string") for name, column in _TIMES.items()}
    return {name: F.col(column).cast("string") for name, column in texts.items()} | times


def property_headers(own: Iterable[str]) -> Column:
    """User properties of a message as headers, except those with a name of the record's `own` headers."""
    every = F.coalesce("properties", F.create_map().cast("map<string,string>"))
    return F.transform(
        F.map_entries(F.map_filter(every, lambda name, _: ~name.isin(*own))),
        lambda entry: F.struct(entry["key"].alias("key"), entry["value"].cast("binary").alias("value")),
    )


_HEADERS = "array<struct<key:string,value:binary>>"


def present(headers: Mapping[str, Column]) -> Column:
    """Headers of these names; those without a value are left out."""
    each = [F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in headers.items()]
    return F.filter(F.array(*each), lambda header: header["value"].isNotNull())


def _bytes(headers: Column) -> Column:
    """The bytes that headers take in a Kafka record, at most."""
    return F.aggregate(
        headers,
        F.lit(0).cast("bigint"),
        lambda total, header: (
            total + F.octet_length(header["key"]) + F.coalesce(F.octet_length(header["value"]), F.lit(0)) + _EACH
        ),
    )
