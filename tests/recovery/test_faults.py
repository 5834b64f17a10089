"""What else may fail: Kafka for a while, a producer for ever, the disk."""

from __future__ import annotations

import logging
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.support import producer_child
from tests.support.killing import ENVIRONMENT, Run, kill
from tests.support.lake import Lake
from tests.support.polling import WAIT_S, patience, wait_for
from tests.support.traffic import HASTY, Traffic

from commitlake import TransactionMQProducer
from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.forwarding import to_kafka
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.spark import session
from commitlake.tables import Warehouse, topic_table

pytestmark = pytest.mark.soak

AT_ONCE = {key.replace(".", "_"): value for key, value in HASTY.items()}


def is_visible(lake: Lake, body: str) -> bool:
    return body.encode() in {row["body"] for row in lake.topic("orders")}


@pytest.mark.timeout(300)
def test_after_an_outage_of_kafka_overdue_checks_are_sent(
    spark: SparkSession, lake: Lake, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    settings = lake.configured(transaction_timeout="20s", transaction_check_interval="1h")
    with Coordinator(spark, settings).start() as coordinator:
        lake.op("COMMIT", "a", lake.half("a"))
        wait_for(lambda: is_visible(lake, "a"))
        at = lake.half("open")
        wait_for(lambda: len(lake.rows("half")) == 2)
        broker.stop()
        try:
            wait_for(lambda: "nothing is decided while Kafka is away" in caplog.text)  # once the check is due
            assert lake.rows("checks") == []  # what came in time may not have landed yet
        finally:
            broker.start()  # other tests need it
        lake.producer.close()  # its own waits between two attempts to connect have grown
        lake.producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all")
        lake.op("COMMIT", "b", lake.half("b"))
        wait_for(lambda: is_visible(lake, "b") and lake.checks(), why=lambda: coordinator.await_termination(0))
        lake.op("COMMIT", "open", at)
        wait_for(lambda: is_visible(lake, "open"))
    assert {check.half for check in lake.checks()} == {at}
    assert sorted(row["body"] for row in lake.topic("orders")) == [b"a", b"b", b"open"]
    assert "it works again" in caplog.text


@pytest.mark.timeout(600)
def test_messages_for_a_kafka_topic_outlast_an_outage(
    spark: SparkSession,
    lake: Lake,
    broker: EmbeddedBroker,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(to_kafka, "_OUTAGE_FIRST_S", 1.0)
    caplog.set_level(logging.WARNING, logger="commitlake.coordinator.forwarding")
    target = f"out-{prefix}delays"
    settings = lake.configured(topics_to_kafka={"delays": target})

    def sent() -> list[str]:
        with KafkaConsumer(target, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as reader:
            found = [record for records in reader.poll(5_000, 1_000).values() for record in records]
        return [record.value.decode() for record in found]

    def show(*names: str) -> None:
        """Messages of one queue that become visible while Kafka is away: a batch may have begun before."""
        for number, name in enumerate(names, len(lake.topic("delays"))):
            changed = {"body": F.lit(name.encode()), "source_offset": F.lit(number)}
            warehouse.append(first.withColumns(changed), topic_table("delays"))

    with Coordinator(spark, settings).start() as coordinator:
        lake.message("first")
        wait_for(lambda: sent() == ["first"])
        warehouse = Warehouse(session.beside(spark, settings), settings.warehouse)
        first = warehouse.read(topic_table("delays")).localCheckpoint()
        broker.stop()
        try:
            show("a", "b", "c")
            wait_for(lambda: "the query to-kafka-delays waits for" in caplog.text)
            assert not coordinator.await_termination(150)  # longer than Kafka's client tries by itself
        finally:
            broker.start()  # other tests need it
        wait_for(lambda: len(sent()) >= 4, why=lambda: coordinator.await_termination(0))
        assert sent() == ["first", "a", "b", "c"]
        broker.stop()
        try:
            show("d")
            time.sleep(5)
            forwarder = next(each for each in coordinator.spark.streams.active if each.name == "to-kafka-delays")
            begun = time.monotonic()
            forwarder.stop()
            assert time.monotonic() - begun < 15 * patience()
        finally:
            broker.start()
    assert len([each for each in caplog.messages if "waits for" in each]) <= 5
    lake.run(spark, topics_to_kafka={"delays": target})
    assert list(dict.fromkeys(sent())) == ["first", "a", "b", "c", "d"]


@pytest.mark.timeout(300)
def test_checks_of_a_killed_producer_are_answered_by_its_group(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    database = str(tmp_path / "orders.db")
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE orders (id PRIMARY KEY)")
    settings = lake.configured(transaction_timeout="2s", transaction_check_interval="2s", transaction_check_max=15)
    kafka = lake.config.kafka
    where: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": kafka.topic_prefix}
    with (
        Coordinator(spark, settings).start(),
        TransactionMQProducer("shop", producer_child.Orders(database), **where, options=producer_child.QUICK),
    ):
        with ExitStack() as processes:
            killed = [
                processes.enter_context(a_producer([*where.values(), database, moment, moment]))
                for moment in ("before", "after")
            ]
            assert [process.wait(WAIT_S) for process in killed] == [-signal.SIGKILL] * 2
        sent = producer_child.COUNT * 2
        wait_for(lambda: len(lake.rows("transactions")) == sent, why=lambda: lake.rows("transactions"))
    with sqlite3.connect(database) as db:
        orders = sorted(row[0] for row in db.execute("SELECT id FROM orders"))
    assert len(orders) == sent - 1
    assert sorted(row["keys"] for row in lake.topic("orders")) == orders
    keys = {row["message_id"]: row["keys"] for row in lake.rows("half")}
    checked = {keys[row["message_id"]]: row["state"] for row in lake.rows("transactions") if row["reason"] == "CHECK"}
    last = producer_child.COUNT - 1
    assert (checked[f"before-{last}"], checked[f"after-{last}"]) == ("ROLLED_BACK", "COMMITTED")


@contextmanager
def a_producer(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """An instance of the group in a process of its own; for the arguments see `producer_child`."""
    command = [sys.executable, "-m", producer_child.__name__, *arguments]
    process = subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True)
    try:
        yield process
    finally:
        kill(process)


@pytest.mark.timeout(400)
def test_a_full_disk_ends_the_coordinator_and_a_restart_goes_on(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    traffic = Traffic(lake)
    with Run(lake.settings, tmp_path) as child:
        wait_for(child.begin(serves=True, pauses=[]).is_ready)
        no_file_above(200_000, child.jvm)
        traffic.send()
        commit = traffic.large(1_000_000)  # a body of which `half` gets a file of this size
        error = child.end(120)
        assert f"cannot write to the table at {lake.root}/warehouse/half: " in error
        assert "File too large" in error
    with Run(lake.settings, tmp_path) as child:
        child.begin(serves=True, pauses=[0.5])
        wait_for(lambda: any(len(row["body"]) == 1_000_000 for row in lake.rows("half")))
        no_file_above(200_000, child.jvm)
        commit()
        traffic.send()
        assert f"cannot write to the table at {lake.root}/warehouse/topics/a: " in child.end(120)
    traffic.settle(spark, **AT_ONCE)
    traffic.assert_outcome()


def no_file_above(size: int, jvm: int) -> None:
    """Takes a full disk's part without its privileges: what the JVM writes to a file beyond `size` bytes fails."""
    resource.prlimit(jvm, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
