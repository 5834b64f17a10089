"""Checks: where a coordinator sends them, bad records beside them as an instance reads them, and topics of a group."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.namespace import Listener, Namespace, NotUtf8, check
from tests.support.polling import wait_for

from commitlake.coordinator.coordinator import Coordinator
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.kafka.topics import ensure_topics
from commitlake.testing import codecs


def poison(**changes: bytes | None) -> list[tuple[str, bytes]]:
    """The headers of a check, some of them replaced, or left out where None."""
    _, _, headers = codecs.encode_check(check("poison"))
    given = {**dict(headers), **changes}
    return [(name, value) for name, value in given.items() if value is not None]


def send(kafka: Namespace, *records: Any, times: int = 1) -> None:
    client = KafkaProducer(bootstrap_servers=kafka.servers, linger_ms=20, max_request_size=8 << 20)
    for _ in range(times):
        for headers in records:
            client.send(f"{kafka.prefix}check", value=b"", headers=headers, partition=0)
    client.flush()
    client.close()


HALVES = [
    b'[{"queue":1e999,"offset":1}]',
    b"[]",
    b"{}",
    b"null",
    b"NaN",
    b"[NaN]",
    b'[{"queue":NaN,"offset":1}]',
    b'[{"queue":999,"offset":1}]',
    b'[{"queue":-1,"offset":1}]',
    b'[{"queue":0,"offset":-1}]',
    b'[{"queue":0,"offset":' + b"9" * 4_000 + b"}]",
    b'[{"queue":0,"offset":' + b"9" * 9_000 + b"}]",
    b'[{"queue":0.5,"offset":1}]',
    b'[{"queue":true,"offset":1}]',
    b'[{"queue":"0","offset":"1"}]',
    b"[" * 100_000,
    b"\xff\xfe",
    b"",
    b"[" + b",".join([b'{"queue":0,"offset":1}'] * 1_001) + b"]",
]
OTHERS: list[dict[str, bytes | None]] = [
    {"HALF_QUEUE": b"1e999"},
    {"HALF_QUEUE": b"9" * 9_000},
    {"HALF_OFFSET": b"-1"},
    {"HALF_OFFSET": b""},
    {"CHECK_TIMES": b"NaN"},
    {"CHECK_ID": None},
    {"CHECK_ID": b"x" * 500_000},
    {"TRANSACTION_ID": None},
    {"TRANSACTION_ID": b"x" * 500_000},
    {"TRANSACTION_ID": b"\xff\xfe"},
    {"UNIQ_KEY": b""},
    {"REAL_TOPIC": b"\xc3"},
]


def test_no_record_of_check_stops_an_instance(kafka: Namespace, caplog: pytest.LogCaptureFixture) -> None:
    kafka.ask(check("before"))
    send(kafka, *(poison(HALF_MESSAGES=halves) for halves in HALVES), *(poison(**each) for each in OTHERS))
    kafka.ask(check("after"))
    count = 2 + len(HALVES) + len(OTHERS)
    with kafka.producer(Listener(), send_msg_timeout=10) as producer:
        wait_for(lambda: kafka.committed() == count, 60, kafka.committed)
        assert producer.ignored_checks >= len(HALVES)
    assert {"before", "after"} <= {op.transaction_id for op in kafka.answers()}
    warnings = [record for record in caplog.records if "ignored" in record.getMessage()]
    assert 1 <= len(warnings) <= 3
    assert all(len(record.getMessage()) < 1_000 for record in warnings)


def test_thousands_of_bad_records_hold_up_no_check(kafka: Namespace) -> None:
    send(kafka, poison(HALF_MESSAGES=b"[]"), poison(HALF_MESSAGES=b'[{"queue":999,"offset":1}]'), times=1_500)
    kafka.ask(*(check(f"m{number}") for number in range(8)))
    with kafka.producer(Listener()):
        wait_for(lambda: len({op.transaction_id for op in kafka.answers()}) == 8, 60)
        wait_for(lambda: kafka.committed() == 3_008, 60, kafka.committed)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_check_is_read_however_it_was_compressed(kafka: Namespace, codec: str) -> None:
    """kafka-python alone reads gzip only, and would try the others again for ever."""
    key, value, headers = codecs.encode_check(check(body=b"a" * 10_000))
    client = Producer({"bootstrap.servers": kafka.servers, "compression.type": codec})
    client.produce(f"{kafka.prefix}check", key=key, value=value, headers=[*headers], partition=0)
    client.flush(10)
    with kafka.producer(Listener()):
        wait_for(lambda: kafka.committed() == 1, 60)
    assert [op.decision for op in kafka.answers()] == ["COMMIT"]


HUNG = """
import sys, threading, time
from commitlake import LocalTransactionState, TransactionListener, TransactionMQProducer

begun = threading.Event()

class Hung(TransactionListener):
    def execute_local_transaction(self, message, arg):
        return LocalTransactionState.UNKNOW

    def check_local_transaction(self, message):
        begun.set()
        time.sleep(1_000)

producer = TransactionMQProducer("group", Hung(), bootstrap_servers=sys.argv[1], topic_prefix=sys.argv[2])
producer.start()
assert begun.wait(60)
producer.shutdown(2)
print("shut down", flush=True)
"""


def test_a_process_ends_though_a_check_that_was_given_up_hangs(kafka: Namespace) -> None:
    kafka.ask(check())
    child = subprocess.Popen(
        [sys.executable, "-c", HUNG, kafka.servers, kafka.prefix], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "shut down\n"
    begun = time.monotonic()
    try:
        assert child.wait(30) == 0
    finally:
        child.kill()
    assert time.monotonic() - begun < 20


def test_a_header_whose_name_is_not_utf8_is_passed_with_its_batch(kafka: Namespace) -> None:
    send(kafka, [(NotUtf8("x"), b"")], times=20)
    kafka.ask(check())
    with kafka.producer(Listener()):
        wait_for(lambda: kafka.committed() == 21, 60)
    assert [op.decision for op in kafka.answers()] == ["COMMIT"]


OWN = {"kafka.check_topics": ["group"]}


@pytest.fixture
def own(broker: EmbeddedBroker) -> Namespace:
    """Empty topics, one of them the check topic of `group`, and settings that name none of its own."""
    namespace = Namespace(broker, **OWN)
    namespace.publish()
    return namespace


def answered(kafka: Namespace) -> set[str]:
    return {op.transaction_id for op in kafka.answers()}


def test_an_instance_goes_to_the_topic_of_its_group_and_back_while_it_runs(own: Namespace) -> None:
    with own.producer(Listener()):
        own.ask(check("1"))
        wait_for(lambda: answered(own) == {"1"})
        own.publish(**OWN)
        own.ask(check("2"), topic="check.group")
        wait_for(lambda: answered(own) == {"1", "2"})
        own.ask(check("of all"))
        own.ask(check("3"), topic="check.group")
        wait_for(lambda: answered(own) == {"1", "2", "3"})
        assert own.committed() == 1, "what is for others is not even read"
        own.publish()
        wait_for(lambda: answered(own) == {"1", "2", "3", "of all"})


def test_a_group_without_a_topic_of_its_own_reads_that_of_all(own: Namespace) -> None:
    own.publish(**OWN)
    own.ask(check("1", "other"))
    with own.producer(Listener(), "other"):
        wait_for(lambda: answered(own) == {"1"})


def test_a_check_topic_of_a_group_is_made_like_check(own: Namespace) -> None:
    assert ensure_topics(own.config) == []
    assert len(own.read("check.group")) == 0
    assert ensure_topics(own.configured(**OWN, **{"kafka.queues": 3})) == [], "it grows with the others"


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
    lake.commit("b")
    lake.run(spark, **wrong)
    told = [each for each in caplog.messages if each.startswith("checks can't be sent to the Kafka topic")]
    assert len(told) >= 2
    assert "nonsense" in told[0]
    assert [row["transaction_id"] for row in lake.topic("orders")] == ["b"]
    lake.run(spark, transaction_timeout="0s")
    assert {check.transaction_id for check in lake.checks()} == {"a"}
