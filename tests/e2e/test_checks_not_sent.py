"""Where checks and settings go; one that can't be sent ends neither the coordinator nor a start."""

from __future__ import annotations

import logging
from contextlib import closing

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.polling import wait_for

from commitlake.coordinator.coordinator import Coordinator

LARGE = b"x" * 100_000


def test_a_check_too_large_for_its_topic_holds_up_no_other_and_each_goes_where_its_group_reads(
    spark: SparkSession, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    own = {"transaction_timeout": "0s", "kafka_check_topics": ["own-group", "wide-group"]}
    lake.run(spark, **own)
    for source in ("check", "check.own-group"):
        limit(lake, source)
    large = {group: lake.half(f"large of {group}", body=LARGE, group=group) for group in ("g", "own-group")}
    lake.half("small")
    lake.half("own", group="own-group")
    lake.half("wide", group="wide-group", body=LARGE)  # its topic takes that
    caplog.set_level(logging.WARNING, logger="commitlake")
    lake.run(spark, **own)
    assert asked(lake, "check") == {"small"}
    assert asked(lake, "check.own-group") == {"own"}
    assert asked(lake, "check.wide-group") == {"wide"}
    assert (
        f"the check {large['g']}-0-1 is not sent to the Kafka topic {lake.config.kafka.topic('check')}" in caplog.text
    )
    assert f"the check {large['own-group']}-0-1 is not sent to the Kafka topic" in caplog.text
    lake.run(spark, transaction_timeout="0s")  # the groups are out of the list; the newest checks go out again
    assert asked(lake, "check") == {"small", "own"}


def limit(lake: Lake, source: str, most: int = 100_000) -> None:
    """Lets a topic take records of so many bytes."""
    with closing(KafkaAdminClient(bootstrap_servers=lake.settings["kafka.bootstrap_servers"])) as admin:
        given = {"max.message.bytes": str(most)}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, lake.config.kafka.topic(source), configs=given)])


def asked(lake: Lake, source: str) -> set[str]:
    """The transactions that a topic of checks asks about."""
    return {check.transaction_id for check in lake.checks(source)}


def test_a_new_topic_lands_though_settings_can_not_be_published(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While its topic has no leader, for example. Producers learn of the new topic later."""
    monkeypatch.setattr("commitlake.coordinator.settings_publisher._AGAIN_S", 1.0)
    caplog.set_level(logging.WARNING, logger="commitlake")
    with Coordinator(spark, lake.config).start():
        limit(lake, "settings", 100)
        lake.op("COMMIT", "a", lake.half("a", topic="fresh"))
        wait_for(lambda: lake.topic("fresh"))
        assert "the settings are published later, with the names of new topics" in caplog.text
        limit(lake, "settings")
        wait_for(lambda: any(b"fresh" in record.value for record in lake.kafka("settings")))


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
