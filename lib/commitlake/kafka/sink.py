"""Writes records to Kafka by Spark; a record that its topic can't take does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.errors import KafkaError, root_reason
from commitlake.kafka.clients import spark_options, spark_sink_limits
from commitlake.kafka.topics import Accepted, accepted

log = logging.getLogger(__name__)

_REFUSALS = ("RecordTooLargeException", "InvalidRecordException", "part of a batch which had one more")
"""Texts in errors of Kafka's client; the last one is the error of a good record whose batch had a bad one."""
_FRAME = 61  # bytes of a batch of records, which a large record has for itself
_FIELDS = 3  # bytes of a record besides lengths, key, value and headers
_NAMED = 20
"""Records that warnings name: each takes a line of the log."""


def write(config: Config, records: DataFrame, more: Mapping[str, str] | None = None) -> None:
    """Writes records; a record that its topic can't take is left out, with a warning.

    Kafka is asked for the limits of a topic only when it has refused a record. The records before that one then go out
    twice.

    The columns are topic, partition, key, value and headers, and `name`, by which a warning names a record.

    Raises:
        KafkaError: a topic refuses a record that it should take.
    """
    options = spark_options(config.kafka) | spark_sink_limits() | dict(more or {})
    try:
        _save(records, options)
    except Exception as error:  # Spark hands on only the text of Kafka's error
        if not _is_refusal(error):
            raise
        for topic in [row["topic"] for row in records.select("topic").distinct().collect()]:
            own, takes = records.where(F.col("topic") == topic), accepted(config, topic)
            _warn(own, topic, takes)
            _save_rest(own.where(_fits(takes)), topic, options)


def _save(records: DataFrame, options: Mapping[str, str]) -> None:
    records.drop("name").write.format("kafka").options(**options).save()


def _save_rest(records: DataFrame, topic: str, options: Mapping[str, str]) -> None:
    try:
        _save(records, options)
    except Exception as error:
        if not _is_refusal(error):
            raise
        msg = (
            f"the Kafka topic {topic} refuses a record: {root_reason(error)}; "
            "compare its settings, and give this client the right to read them (DescribeConfigs)"
        )
        raise KafkaError(msg) from error


def _is_refusal(error: Exception) -> bool:
    return any(name in str(error) for name in _REFUSALS)


def _warn(records: DataFrame, topic: str, takes: Accepted) -> None:
    left_out = records.where(~_fits(takes)).select("name", _bytes().alias("bytes"))
    for number, row in enumerate(left_out.toLocalIterator()):
        if number == _NAMED:
            log.warning("and more that the Kafka topic %s can't take", topic)
            return
        if row["bytes"] > takes.most_bytes:
            log.warning(
                "%s is not sent to the Kafka topic %s: it has %d bytes, and the topic takes %d; "
                "raise its max.message.bytes for those that come",
                *(row["name"], topic, row["bytes"], takes.most_bytes),
            )
        else:
            log.warning(
                "%s is not sent to the Kafka topic %s: it has no key, and the topic is compacted", row["name"], topic
            )


def _fits(takes: Accepted) -> Column:
    fits = _bytes() <= takes.most_bytes
    return fits & F.col("key").isNotNull() if takes.needs_key else fits


def _bytes() -> Column:
    """The bytes that a record takes in Kafka's log, uncompressed."""
    headers = F.aggregate(
        "headers",
        F.lit(0).cast("bigint"),
        lambda total, header: total + _counted(header["key"]) + _counted(header["value"]),
    )
    record = _FIELDS + _counted(F.col("key")) + _counted(F.col("value")) + _varint(F.size("headers")) + headers
    return _FRAME + record + _varint(record)


def _counted(data: Column) -> Column:
    """Bytes of some data and of its length; null has a length too."""
    length = F.octet_length(data)
    return F.coalesce(length + _varint(length), F.lit(1))


def _varint(number: Column) -> Column:
    """Bytes of a varint: one bit of each byte says whether more follow, and one bit of the first is the sign."""
    small = F.when(number < 1 << 6, 1).when(number < 1 << 13, 2).when(number < 1 << 20, 3)
    return small.when(number < 1 << 27, 4).otherwise(5)
