"""What else may fail: Kafka for a while, a producer for ever, disks that others fill."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.support import order_load
from tests.support.cluster import free_port
from tests.support.killing import ENVIRONMENT, Run, kill
from tests.support.lake import Lake
from tests.support.misfortune import SmallDisk
from tests.support.polling import WAIT_S, patience, wait_for
from tests.support.running import coordinator
from tests.support.traffic import HASTY, Traffic

from commitlake import TransactionMQProducer
from commitlake.config import disks
from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.forwarding import to_kafka
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.spark import session
from commitlake.tables import Warehouse, topic_table
from commitlake.tools.audit.audit import audit

AT_ONCE = {key.replace(".", "_"): value for key, value in HASTY.items()}


def is_visible(lake: Lake, body: str) -> bool:
    return body.encode() in {row["body"] for row in lake.topic("orders")}


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_after_an_outage_of_kafka_overdue_checks_are_sent(
    spark: SparkSession, lake: Lake, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    settings = lake.configured(transaction_timeout="20s", transaction_check_interval="1h")
    with Coordinator(spark, settings).start() as coordinator:
        lake.commit("a")
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
        lake.commit("b")
        wait_for(lambda: is_visible(lake, "b") and lake.checks(), why=lambda: coordinator.await_termination(0))
        lake.op("COMMIT", "open", at)
        wait_for(lambda: is_visible(lake, "open"))
    assert {check.half for check in lake.checks()} == {at}
    assert sorted(row["body"] for row in lake.topic("orders")) == [b"a", b"b", b"open"]
    assert "it works again" in caplog.text


@pytest.mark.soak
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


@pytest.mark.soak
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
        TransactionMQProducer("shop", order_load.Orders(database), **where, options=order_load.QUICK),
    ):
        with ExitStack() as processes:
            killed = [
                processes.enter_context(a_producer([*where.values(), database, moment, moment]))
                for moment in ("before", "after")
            ]
            assert [process.wait(WAIT_S) for process in killed] == [-signal.SIGKILL] * 2
        sent = order_load.COUNT * 2
        wait_for(lambda: len(lake.rows("transactions")) == sent, why=lambda: lake.rows("transactions"))
    with sqlite3.connect(database) as db:
        orders = sorted(row[0] for row in db.execute("SELECT id FROM orders"))
    assert len(orders) == sent - 1
    assert sorted(row["keys"] for row in lake.topic("orders")) == orders
    keys = {row["message_id"]: row["keys"] for row in lake.rows("half")}
    checked = {keys[row["message_id"]]: row["state"] for row in lake.rows("transactions") if row["reason"] == "CHECK"}
    last = order_load.COUNT - 1
    assert (checked[f"before-{last}"], checked[f"after-{last}"]) == ("ROLLED_BACK", "COMMITTED")


@contextmanager
def a_producer(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """An instance of the group in a process of its own; for the arguments see `order_load`."""
    command = [sys.executable, "-m", order_load.__name__, *arguments]
    process = subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True)
    try:
        yield process
    finally:
        kill(process)


@pytest.mark.soak
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


MIB = 1 << 20
ROOM = "nothing lands until there is more room"


@contextmanager
def filled(place: Path, left: int = 0) -> Iterator[None]:
    """Others have all of a disk but a rest, for a while."""
    place.mkdir(parents=True, exist_ok=True)
    file = place / "others"
    with file.open("wb") as others:
        for tries in range(5):
            try:
                os.posix_fallocate(others.fileno(), 0, disks.Disk.of("", place).free - left)
                break
            except OSError as error:  # the coordinator has written between the look and this
                if error.errno != errno.ENOSPC or tries == 4:
                    raise
                others.truncate(0)
    yield
    file.unlink()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[SmallDisk, SmallDisk]]:
    """Disks for a warehouse and for checkpoints."""
    with ExitStack() as stack:
        found = [stack.enter_context(SmallDisk(tmp_path / name, 300 * MIB)) for name in ("tables", "scratch")]
        if not all(disk.is_mounted for disk in found):
            pytest.skip("mounting a tmpfs takes root, and the right to mount")
        yield found[0], found[1]


def test_landing_waits_for_room_on_each_disk_and_loses_nothing(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, small: tuple[SmallDisk, SmallDisk]
) -> None:
    tables, scratch = small
    port = free_port()
    settings: dict[str, Any] = {
        "kafka__bootstrap_servers": broker.bootstrap_servers,
        "kafka__topic_prefix": "full.",
        "kafka__queues": 2,
        "checkpoints": scratch.place / "checkpoints",
        "maintenance__interval": "10s",
        "metrics__port": port,
    }
    of_lake = {key.replace("__", "."): value for key, value in settings.items()}
    with Lake(broker.bootstrap_servers, "full.", tables.place, **of_lake) as lake:
        ballast = lake.warehouse / disks.BALLAST

        def seen() -> set[str]:
            return {row["message_id"] for row in lake.topic("plain")} if "plain" in lake.topics() else set()

        def metrics() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                return str(answer.read().decode())

        sent, halves = set[str](), []

        def send(name: str, size: int = 100) -> None:
            halves.append(lake.half(f"t{name}", body=os.urandom(size)))  # stays open
            lake.message(name, topic="plain")
            sent.add(name)

        with filled(scratch.place), coordinator(tables.place, **settings) as running:
            assert running.end(300) == 1
            (line,) = [line for line in running.said.splitlines() if line.startswith("error: ")]
            assert "0 MiB free" in line and f"{scratch.place}/checkpoints" in line, running.said
            assert "Traceback" not in running.said and "\tat " not in running.said
        with coordinator(tables.place, **settings) as running:
            running.ready()
            send("first")
            running.until(lambda: seen() == sent, 300)
            running.until(ballast.exists, 120)
            with filled(scratch.place):
                send("second")
                running.until(lambda: ROOM in running.said and f"checkpoints {scratch.place}" in running.said, 120)
                assert "commitlake_landing_waits_for_room 1.0" in metrics()
                assert 'commitlake_disk_free_ratio{directory="checkpoints"} 0.0' in metrics()
                assert seen() == {"first"}
            running.until(lambda: seen() == sent, 300)
            # Landing has waited, or a write under way had failed before and all queries began again.
            assert "it works again" in running.said or "all queries run again" in running.said
            with filled(tables.place, left=25 * MIB):
                told = running.said.count(ROOM)
                for number in range(250):  # 12.5 MB, of 10 MiB above the low-water mark
                    if running.said.count(ROOM) == told:
                        send(f"more-{number}", 50_000)
                running.until(lambda: running.said.count(ROOM) > told, 300)
                with filled(tables.place / "all"):
                    send("last")
                    assert disks.free_ballast(lake.config) == 15 * MIB
                    running.until(lambda: disks.Disk.of("", tables.place).free > 0, 60)
                assert "last" not in seen()
                tables.resize(500 * MIB)  # a larger disk
                running.until(lambda: seen() == sent, 300)
            running.until(ballast.exists, 300)
            running.stop()
        lake.op("COMMIT", "tfirst", halves[0])
        lake.run(spark)
        assert [row["message_id"] for row in lake.topic("orders")] == ["tfirst-0"]
        assert sorted(row["message_id"] for row in lake.topic("plain")) == sorted(sent)
        found = audit(spark, str(lake.warehouse))
        assert found.is_well, found.findings
