"""Kafka's topics, records of Kafka's own transactions, and what tells that a log has lost its end."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.polling import patience, wait_for

from commitlake import config
from commitlake.config import Config
from commitlake.coordinator.coordinator import Coordinator
from commitlake.errors import KafkaError
from commitlake.kafka import admin_client, log_end_watcher, log_ends, topics
from commitlake.kafka.admin_client import connect
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.kafka.log_end_watcher import LogEndWatcher
from commitlake.kafka.log_ends import LogEnd, LogEnds, cuts
from commitlake.protocol import kafka_topics
from commitlake.protocol.clock import now_ms
from commitlake.reading.questions.tables import opened as tables_of
from commitlake.tools import doctor


def configured(broker: EmbeddedBroker, **keys: object) -> config.Config:
    own = {"kafka.bootstrap_servers": broker.bootstrap_servers, "kafka.topic_prefix": f"t{uuid.uuid4().hex[:8]}."}
    return config.from_mapping(own | {name.replace("__", "."): value for name, value in keys.items()})


def create(found: config.Config, name: str, partitions: int, **settings: str) -> None:
    configs = {key.replace("_", "."): value for key, value in settings.items()}
    client = KafkaAdminClient(bootstrap_servers=found.kafka.bootstrap_servers)
    wanted = {found.kafka.topic(name): {"num_partitions": partitions, "configs": configs}}
    client.create_topics(wanted, wait_for_metadata=True)
    client.close()


def test_missing_topics_are_created_as_the_contract_says(broker: EmbeddedBroker) -> None:
    found = configured(broker, kafka__queues=3, kafka__check_topics=["orders"])
    assert topics.ensure_topics(found) == []
    names = (*kafka_topics.ALL, "check.orders")
    ends = topics.end_offsets(found, names)
    counts = {topic.removeprefix(found.kafka.topic_prefix): len(offsets) for topic, offsets in ends.items()}
    assert counts == {"half": 3, "op": 3, "messages": 3, "admin": 1, "check": 3, "check.orders": 3, "settings": 1}
    client = KafkaAdminClient(bootstrap_servers=found.kafka.bootstrap_servers)
    resources = [ConfigResource(ConfigResourceType.TOPIC, found.kafka.topic(name)) for name in names]
    described = client.describe_configs(resources, config_filter="all")["topic"]
    client.close()
    for name in names:
        actual = {key: entry["value"] for key, entry in described[found.kafka.topic(name)].items()}
        assert int(actual["max.message.bytes"]) > 4 * 1024 * 1024
        assert (actual["message.timestamp.type"] == "LogAppendTime") == ("check" not in name)
        is_unpacked = "check" in name or name == "settings"
        assert actual["compression.type"] == ("uncompressed" if is_unpacked else "producer")
        assert actual["cleanup.policy"] == ("compact" if name == "settings" else "delete")
        assert name == "settings" or int(actual["retention.ms"]) >= 7 * 86_400_000


def test_topics_that_are_there_are_left_alone(broker: EmbeddedBroker) -> None:
    found = configured(broker)
    topics.ensure_topics(found)
    before = topics.identity(found)
    assert topics.ensure_topics(found) == []
    assert topics.identity(found) == before
    assert len(before.topic_ids) == len(kafka_topics.ALL)


def test_more_queues_grow_the_topics_and_fewer_are_refused(broker: EmbeddedBroker) -> None:
    found = configured(broker, kafka__queues=2, kafka__topic_prefix="grown.")
    topics.ensure_topics(found)
    topics.ensure_topics(configured(broker, kafka__queues=5, kafka__topic_prefix="grown."))
    ends = topics.end_offsets(found, kafka_topics.QUEUED)
    grown = {f"grown.{name}": 5 for name in kafka_topics.QUEUED}
    assert {topic: len(offsets) for topic, offsets in ends.items()} == grown
    with pytest.raises(KafkaError, match=r"kafka\.queues: 2 is not allowed.*set kafka\.queues to 5"):
        topics.ensure_topics(found)


@pytest.mark.soak  # a minute of the broker's, which then holds 10 202 partitions
def test_topics_grow_by_more_partitions_than_kafka_takes_in_one_request(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "kafka") as own:
        few = configured(own, kafka__queues=1, kafka__topic_prefix="many.")
        topics.ensure_topics(few)
        topics.ensure_topics(configured(own, kafka__queues=2_551, kafka__topic_prefix="many."))
        ends = topics.end_offsets(few, kafka_topics.QUEUED)
        assert {len(offsets) for offsets in ends.values()} == {2_551}


@pytest.mark.soak  # as above
def test_topics_are_made_where_they_and_their_settings_are_too_much_for_one_request(tmp_path: Path) -> None:
    """Kafka counts 10 000 records: 9 986 partitions, the topics, and a record a setting."""
    with EmbeddedBroker(tmp_path / "kafka") as own:
        many = configured(own, kafka__queues=2_496)
        topics.ensure_topics(many)
        ends = topics.end_offsets(many, kafka_topics.QUEUED)
        assert {len(offsets) for offsets in ends.values()} == {2_496}


def test_different_partition_counts_are_an_error(broker: EmbeddedBroker) -> None:
    found = configured(broker)
    create(found, "half", 4)
    create(found, "op", 3)
    with pytest.raises(KafkaError, match=r"different partition counts: \S*half 4, \S*op 3"):
        topics.ensure_topics(found)


def test_a_check_topic_with_more_partitions_is_fine(broker: EmbeddedBroker) -> None:
    found = configured(broker)
    create(found, "check", 7, message_timestamp_type="CreateTime", max_message_bytes=str(20 << 20))
    topics.ensure_topics(found)
    ends = topics.end_offsets(found, kafka_topics.QUEUED)
    assert sorted(map(len, ends.values())) == [4, 4, 4, 7]


def test_a_compacted_topic_is_an_error(broker: EmbeddedBroker) -> None:
    found = configured(broker)
    create(found, "messages", 4, cleanup_policy="compact")
    with pytest.raises(KafkaError, match=r"is compacted.*cleanup\.policy=delete"):
        topics.ensure_topics(found)


def test_a_topic_that_differs_gets_a_warning_that_names_the_fix(broker: EmbeddedBroker) -> None:
    found = configured(broker)
    create(found, "half", 4, retention_ms="1000", message_timestamp_type="CreateTime", max_message_bytes="1000")
    warnings = "\n".join(topics.ensure_topics(found))
    for fix in ("retention.ms=604800000", "message.timestamp.type=LogAppendTime", "max.message.bytes="):
        assert f"--entity-name {found.kafka.topic('half')} --add-config {fix}" in warnings
    assert len(warnings.splitlines()) == 3


def test_the_published_settings_are_what_producers_must_respect(broker: EmbeddedBroker) -> None:
    found = configured(broker, transaction__reject="true")
    topics.ensure_topics(found)
    topics.publish_settings(found, ["b", "a"])
    consumer = KafkaConsumer(
        found.kafka.topic("settings"),
        bootstrap_servers=found.kafka.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    record = next(iter(consumer))
    consumer.close()
    assert record.key == b"limits"
    assert json.loads(record.value) == {
        "max_message_size": 4 * 1024 * 1024,
        "delay_levels": list(found.delay.levels),
        "delay_max_ms": 40 * 86_400_000,
        "reject_transactions": True,
        "queues": 4,
        "max_queues": 64,
        "topics_allowed": ["*"],
        "topics_max": 1_000,
        "topics": ["a", "b"],
        "check_topics": [],
        "batch_head": True,
        "ruled_groups": [],
    }


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no.such.host.invalid:9092"])
def test_a_wrong_address_fails_within_10_seconds(address: str) -> None:
    began = time.monotonic()
    with pytest.raises(KafkaError, match=f"cannot reach Kafka at {address}"):
        admin_client.probe(config.from_mapping({"kafka.bootstrap_servers": address}))
    assert time.monotonic() - began < 10 * patience()


def test_a_wrong_protocol_fails_within_10_seconds(broker: EmbeddedBroker) -> None:
    jaas = 'x.PlainLoginModule required username="a" password="hunter2";'
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    began = time.monotonic()
    with pytest.raises(KafkaError, match=r"security\.protocol") as caught:
        admin_client.probe(configured(broker, kafka__options=sasl))
    assert time.monotonic() - began < 10 * patience()
    assert "hunter2" not in str(caught.value)


LONG_MS = 600_000


def test_what_an_aborted_transaction_holds_never_lands(spark: SparkSession, lake: Lake) -> None:
    pending = lake.half("pending")
    with lake.relay() as relay:
        relay.message("committed")
        relay.producer.commit_transaction()
        relay.producer.begin_transaction()
        relay.message("aborted")
        relay.half("aborted")
        relay.op("COMMIT", "pending", pending)
        relay.producer.abort_transaction()
    lake.run(spark)
    lake.message("after")
    lake.run(spark)
    assert {row["message_id"] for row in lake.topic("delays")} == {"committed", "after"}
    assert [row["transaction_id"] for row in lake.rows("half")] == ["pending"]
    assert lake.rows("transactions") == []


@pytest.mark.timeout(300)
def test_a_deadline_waits_for_an_op_behind_a_transaction_that_is_open_and_that_is_told(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the last stable offset all would seem to have landed, and `t` be discarded though its COMMIT is there."""
    monkeypatch.setattr(log_end_watcher, "_LOOK_S", 0.0)
    monkeypatch.setattr(log_end_watcher, "_LONG_S", 1.0)
    caplog.set_level(logging.WARNING, logger="commitlake")
    settings = lake.configured(transaction_timeout="1s", transaction_check_max=0)
    with lake.relay(LONG_MS) as relay, Coordinator(spark, settings).start():
        opened = relay.op("UNKNOWN", "nothing", lake.end("half", 1), queue=0)
        lake.commit("t")
        lake.half("silent")
        lake.message("n")
        wait_for(lambda: lake.topic("delays"))  # what stands elsewhere lands meanwhile
        name = lake.config.kafka.topic("op")
        told = f"{name}-0 from offset {opened.offset} on; until they end nothing behind them lands"
        wait_for(lambda: told in caplog.text, why=lambda: caplog.text)
        assert lake.rows("transactions") == []
        (kafka,) = [each for each in doctor.examine(settings) if each.what == "kafka"]
        late = r"records? still to land, the oldest for \d+ s, behind Kafka transactions that are open in"
        assert re.search(f"{late} {re.escape(name)}-0", kafka.detail), kafka.detail
        with tables_of(settings.warehouse) as tables, pytest.MonkeyPatch.context() as patched:
            patched.setattr(doctor, "now_ms", lambda: now_ms() + 120_000)
            kafka = doctor._kafka(tables, settings)
        assert not kafka.is_well
        assert re.search(r"the oldest for 1\d\d s, .*; does a coordinator run, and keep up\?$", kafka.detail)
        relay.producer.abort_transaction()
        wait_for(lambda: len(lake.rows("transactions")) == 2)
    ends = {row["transaction_id"]: row["state"] for row in lake.rows("transactions")}
    assert ends == {"t": "COMMITTED", "silent": "DISCARDED"}


def test_a_start_beside_an_open_transaction_delivers_what_was_due_before_it(spark: SparkSession, lake: Lake) -> None:
    """Where one is open at any time, a run that works off what is there would never deliver, check or discard."""
    lake.message("due", delays={"TIMER_DELAY_MS": "1"})
    time.sleep(0.1)
    with lake.relay(LONG_MS) as relay:
        relay.op("UNKNOWN", "nothing", lake.end("half", 1), queue=0)
        lake.message("due later", delays={"TIMER_DELAY_MS": "1"})
        time.sleep(0.1)
        lake.run(spark)
        assert [row["message_id"] for row in lake.topic("delays")] == ["due"]
        relay.producer.abort_transaction()
    lake.run(spark)
    assert {row["message_id"] for row in lake.topic("delays")} == {"due", "due later"}


def test_uncommitted_records_land_where_that_is_configured(spark: SparkSession, lake: Lake) -> None:
    uncommitted = {"kafka_options": {"isolation.level": "read_uncommitted", "fetch.max.wait.ms": "5"}}
    with lake.relay(LONG_MS) as relay:
        relay.message("open")
        lake.run(spark, **uncommitted)
        assert [row["message_id"] for row in lake.topic("delays")] == ["open"]
        with pytest.raises(
            KafkaError, match=r"messages-0 has a Kafka transaction that is open since offset 0, but 1 is"
        ):
            lake.run(spark)
        relay.producer.abort_transaction()
    lake.run(spark)


NOW = LogEnd(9, 5)
"""Of a leader that this broker has never heard of: it has epoch 0 itself."""


@pytest.fixture
def created(broker: EmbeddedBroker, prefix: str) -> Config:
    found = config.from_mapping({"kafka.bootstrap_servers": broker.bootstrap_servers, "kafka.topic_prefix": prefix})
    topics.ensure_topics(found)
    wait_for(lambda: leads(found))
    return found


def leads(found: Config) -> bool:
    """Whether the broker leads the new topics; it says for a moment that it does not."""
    with suppress(KafkaError), connect(found) as opened:
        log_ends._kept(opened, found, {("half", 0): (LogEnd(0, 0), LogEnd(0, 0))})
        return True
    return False


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[KafkaAdminClient]:
    opened = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield opened
    opened.close()


def test_the_same_leader_has_lost_nothing(client: KafkaAdminClient, created: Config) -> None:
    ends = topics.log_ends(client, created)
    assert cuts(client, created, ends, ends) == {}
    assert {*ends.values()} == {LogEnd(0, 0)}


def test_a_broker_that_leads_no_more_says_nothing_of_an_end(created: Config) -> None:
    """Deadlines would pass: what a COMMIT is in would look as if it had landed."""
    told: list[LogEnds] = []
    held = LogEndWatcher(created, {("half", 0): NOW}, told.append)
    with pytest.raises(KafkaError, match="half-0"):
        held.ends()
    assert told == []


def test_a_broker_with_earlier_epochs_is_named_and_says_nothing_of_a_cut(
    client: KafkaAdminClient, created: Config
) -> None:
    """It was restored, or is a leader of before."""
    now = topics.log_ends(client, created)
    assert cuts(client, created, {("half", 0): NOW}, now) == {}
    assert log_ends.deposed({("half", 0): NOW, ("half", 1): LogEnd(9, 0)}, now) == [("half", 0)]


def test_a_log_without_a_leader_counts_not_as_whole(client: KafkaAdminClient, created: Config) -> None:
    with pytest.raises(kafka_errors.LeaderNotAvailableError, match="77"):
        cuts(client, created, {("half", 77): LogEnd(9, 0)}, {("half", 77): NOW})


def test_a_leader_of_before_may_not_answer_for_the_one_of_now(client: KafkaAdminClient, created: Config) -> None:
    """Cut off from the others it has all that it had, and knows of no other leader."""
    with pytest.raises(kafka_errors.UnknownLeaderEpochError):
        cuts(client, created, {("half", 0): LogEnd(9, 0)}, {("half", 0): NOW})
