"""Where checks go; one that can't be sent ends neither the coordinator nor a start."""

from __future__ import annotations

import logging
from contextlib import closing

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from pyspark.sql import SparkSession
from tests.support.lake import Lake


def test_a_check_too_large_for_its_topic_holds_up_no_other(
    spark: SparkSession, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    topic = lake.config.kafka.topic("check")
    with closing(KafkaAdminClient(bootstrap_servers=lake.settings["kafka.bootstrap_servers"])) as admin:
        given = {"max.message.bytes": "100000"}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=given)])
    lake.half("small")
    large = lake.half("large", body=b"x" * 100_000)
    caplog.set_level(logging.WARNING, logger="commitlake")
    lake.run(spark, transaction_timeout="0s")
    assert {check.transaction_id for check in lake.checks()} == {"small"}
    assert f"the check {large}-0-1 is not sent to the Kafka topic {topic}" in caplog.text
    lake.run(spark, transaction_timeout="0s")  # it sends the newest checks again
    assert {check.transaction_id for check in lake.checks()} == {"small"}


def test_a_client_that_can_not_send_checks_ends_nothing(
    spark: SparkSession, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    lake.half("a")
    wrong = {"transaction_timeout": "0s", "kafka_options": {"compression.type": "nonsense"}}
    caplog.set_level(logging.WARNING, logger="commitlake")
    lake.run(spark, **wrong)
    lake.op("COMMIT", "b", lake.half("b"))
    lake.run(spark, **wrong)
    told = [each for each in caplog.messages if each.startswith("checks can't be sent to the Kafka topic")]
    assert len(told) >= 2
    assert "nonsense" in told[0]
    assert [row["transaction_id"] for row in lake.topic("orders")] == ["b"]
    lake.run(spark, transaction_timeout="0s")
    assert {check.transaction_id for check in lake.checks()} == {"a"}


def test_checks_of_a_group_with_a_topic_of_its_own_go_only_there(spark: SparkSession, lake: Lake) -> None:
    lake.half("own", group="own-group")
    lake.half("other")
    lake.run(spark, transaction_timeout="0s", kafka_check_topics=["own-group"])
    assert {check.transaction_id for check in lake.checks()} == {"other"}
    assert {check.transaction_id for check in lake.checks("check.own-group")} == {"own"}
    lake.run(spark, transaction_timeout="0s")  # the group is out of the list; the newest checks go out again
    assert {check.transaction_id for check in lake.checks()} == {"other", "own"}


def test_a_check_too_large_for_a_groups_own_topic_holds_up_no_other_group(spark: SparkSession, lake: Lake) -> None:
    own = {"transaction_timeout": "0s", "kafka_check_topics": ["own-group"]}
    lake.run(spark, **own)
    with closing(KafkaAdminClient(bootstrap_servers=lake.settings["kafka.bootstrap_servers"])) as admin:
        topic = lake.config.kafka.topic("check.own-group")
        given = {"max.message.bytes": "100000"}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=given)])
    lake.half("large", group="own-group", body=b"x" * 100_000)
    lake.half("small", group="own-group")
    lake.half("other", body=b"x" * 100_000)
    lake.run(spark, **own)
    assert {check.transaction_id for check in lake.checks()} == {"other"}
    assert {check.transaction_id for check in lake.checks("check.own-group")} == {"small"}
