"""Every Kafka record stands in exactly one table, wherever landing is cut short and whatever has changed since."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.support.killing import KILLED, Runs
from tests.support.lake import Lake
from tests.support.landing import CUT_SHORT, cut_at, land

from commitlake import config
from commitlake.config import Config
from commitlake.coordinator.landing import parts, positions, start
from commitlake.coordinator.landing.land import Landing
from commitlake.kafka import topics
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol.kafka_topics import LANDED
from commitlake.tables import Warehouse, topic_table

TABLES = 6
"""One batch of `send` writes op, half, delayed, rejected and two topics, several at once, and then its position."""


def given(broker: EmbeddedBroker, place: Path, prefix: str) -> dict[str, Any]:
    return {
        "warehouse": str(place / "warehouse"),
        "checkpoints": str(place / "checkpoints"),
        "kafka": {"bootstrap_servers": broker.bootstrap_servers, "topic_prefix": prefix, "queues": 2},
        "topics": {"allowed": ["a", "b"]},
    }


@pytest.fixture
def settings(broker: EmbeddedBroker, tmp_path: Path, prefix: str) -> dict[str, Any]:
    return given(broker, tmp_path, prefix)


@pytest.fixture(scope="module")
def landed(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Config, Warehouse, Landing]:
    """What two landings, one after the other, have left; and the second one."""
    loaded, warehouse = prepare(spark, given(broker, tmp_path_factory.mktemp("landed"), "landed."))
    for _ in range(2):
        send(loaded)
        landing = land(spark, loaded, warehouse)
    return loaded, warehouse, landing


def prepare(spark: SparkSession, settings: dict[str, Any]) -> tuple[Config, Warehouse]:
    loaded = config.from_mapping(settings)
    topics.ensure_topics(loaded)
    warehouse = Warehouse(spark, loaded.warehouse)
    warehouse.create()
    return loaded, warehouse


def send(loaded: Config, sources: Container[str] = ("half", "op", "messages", "admin")) -> None:
    """Write records of every kind to both queues: half messages, ops, normal, batch and delayed messages, bad input."""
    producer = KafkaProducer(bootstrap_servers=loaded.kafka.bootstrap_servers, acks="all")
    good = {"REAL_TOPIC": "a", "UNIQ_KEY": "m", "PGROUP": "g"}
    decision = {"transaction_id": "m", "producer_group": "g", "half_messages": [{"queue": 0, "offset": 0}]}
    batch = {"messages": [{"body": "YQ==", "properties": {"UNIQ_KEY": f"k{n}"}} for n in range(3)]}
    for queue in (0, 1):
        for source, headers, value in [
            ("half", good, b"1"),
            ("half", {**good, "REAL_TOPIC": "c"}, b"2"),
            ("half", {**good, "REAL_TOPIC": "b"}, b"3"),
            ("op", {}, json.dumps({**decision, "decision": "COMMIT"}).encode()),
            ("op", {}, b"bad"),
            ("messages", good, b"4"),
            ("messages", {**good, "REAL_TOPIC": "b"}, b"5"),
            ("messages", {**good, "BATCH": "3"}, json.dumps(batch).encode()),
            ("messages", {**good, "DELAY": "5"}, b"6"),
            ("messages", {**good, "REAL_TOPIC": "c"}, b"7"),
        ]:
            pairs = [(name, text.encode()) for name, text in headers.items()]
            if source in sources:
                producer.send(loaded.kafka.topic(source), value, headers=pairs, partition=queue)
    if "admin" in sources:
        rollback = json.dumps({**decision, "decision": "ROLLBACK"}).encode()
        producer.send(loaded.kafka.topic("admin"), rollback, partition=0)
    producer.close()


def standing(warehouse: Warehouse) -> Counter[tuple[str, int, int, int]]:
    """How often each Kafka record stands in a table: by source, partition, offset and place in its batch."""
    found: Counter[tuple[str, int, int, int]] = Counter()
    for table in ("op", "half", "delayed", "rejected"):
        place = positions.coordinates(warehouse, table)
        found.update((*row, 0) for row in place.collect())
    for topic in warehouse.topics():
        rows = warehouse.read(topic_table(topic)).where(F.col("source") == "messages")
        found.update(
            tuple(row) for row in rows.select("source", "source_queue", "source_offset", "source_index").collect()
        )
    return found


def expected(loaded: Config) -> Counter[tuple[str, int, int, int]]:
    """Each record of Kafka once; a batch (always the third of five in `messages`) with its three members."""
    found: Counter[tuple[str, int, int, int]] = Counter()
    for topic, ends in topics.end_offsets(loaded).items():
        source = topic.removeprefix(loaded.kafka.topic_prefix)
        for number, end in ends.items():
            for offset in range(end):
                members = 3 if source == "messages" and offset % 5 == 2 else 1
                found.update((source, number, offset, index) for index in range(members))
    return found


def test_a_landing_goes_on_where_the_one_before_ended(landed: tuple[Config, Warehouse, Landing]) -> None:
    loaded, warehouse, landing = landed
    assert standing(warehouse) == expected(loaded)
    assert landing.position == positions.newest(warehouse)
    assert start.ends(loaded) == landing.position.offsets
    reasons = {row["reason"] for row in warehouse.read("rejected").collect()}
    assert reasons == {"TOPIC_NOT_ALLOWED", "BAD_OP"}


@pytest.mark.parametrize(
    ("step", "moment", "nth"),
    [
        pytest.param("landing:op", "after", 1, marks=pytest.mark.soak),
        pytest.param("landing:rejected", "before", 1, marks=pytest.mark.short(core_seconds=30)),
        pytest.param("landing:topic", "after", 2, marks=pytest.mark.soak),
        pytest.param("landing:positions", "before", 2, marks=pytest.mark.soak),  # the first is of the start
    ],
)
def test_a_killed_landing_is_completed_and_lands_each_record_once(
    spark: SparkSession, settings: dict[str, Any], tmp_path: Path, step: str, moment: str, nth: int
) -> None:
    loaded, warehouse = prepare(spark, settings)
    send(loaded)
    with Runs(settings, tmp_path) as coordinators:
        assert coordinators.killed_at(step, moment, nth, is_last=True) == KILLED
    shutil.rmtree(loaded.checkpoints)
    send(loaded)
    land(spark, loaded, warehouse)
    assert standing(warehouse) == expected(loaded)


def test_a_landing_cut_short_again_and_again_lands_each_record_once(
    spark: SparkSession, settings: dict[str, Any]
) -> None:
    loaded, warehouse = prepare(spark, settings)
    send(loaded)
    for commit in (3, 2, 2):
        with pytest.raises(CUT_SHORT):
            land(spark, loaded, cut_at(warehouse, commit))
    assert standing(warehouse) != expected(loaded)
    land(spark, loaded, warehouse)
    assert standing(warehouse) == expected(loaded)


@pytest.mark.parametrize("commits", [(2, 2), (4, 2), pytest.param((TABLES,), marks=pytest.mark.soak)])
def test_a_landing_cut_short_after_a_whole_one_is_found(
    spark: SparkSession, settings: dict[str, Any], commits: Sequence[int]
) -> None:
    """A start looks only into tables that have commits of a landing after the newest whole one."""
    loaded, warehouse = prepare(spark, settings)
    send(loaded)
    land(spark, loaded, warehouse)
    send(loaded)
    for commit in commits:
        with pytest.raises(CUT_SHORT):
            land(spark, loaded, cut_at(warehouse, commit))
    send(loaded)
    land(spark, loaded, warehouse)
    assert standing(warehouse) == expected(loaded)


def test_after_a_whole_landing_no_table_is_looked_into(
    spark: SparkSession, landed: tuple[Config, Warehouse, Landing], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, warehouse, landing = landed
    assert landing.position.clean_id == landing.position.landing_id
    monkeypatch.setattr(positions, "above", lambda *_: pytest.fail("a scan"))
    assert positions.uncommitted(warehouse, landing.position) is None


@pytest.mark.soak
def test_a_changed_configuration_leaves_what_has_landed_alone(spark: SparkSession, settings: dict[str, Any]) -> None:
    loaded, warehouse = prepare(spark, settings)
    send(loaded)
    with pytest.raises(CUT_SHORT):
        land(spark, loaded, cut_at(warehouse, TABLES))
    before = standing(warehouse)
    changed = config.from_mapping({**settings, "topics": {"allowed": ["c"]}})
    land(spark, changed, warehouse)
    after = standing(warehouse)
    assert not before - after
    # A batch that had not landed is rejected now, in one row; one that had still has its members.
    whole = Counter(record for record in expected(loaded) if record[3] == 0)
    assert Counter({record: count for record, count in after.items() if record[3] == 0}) == whole


@pytest.mark.soak
def test_topics_beyond_topics_max_are_rejected_and_known_ones_go_on(
    spark: SparkSession, settings: dict[str, Any]
) -> None:
    loaded, warehouse = prepare(spark, {**settings, "topics": {"allowed": ["*"], "max": 1}})
    for _ in range(2):
        send(loaded)
        land(spark, loaded, warehouse)
    assert warehouse.topics() == {"a"}
    assert standing(warehouse) == expected(loaded)


def test_a_warehouse_without_positions_goes_on_at_its_highest_offsets(
    spark: SparkSession, landed: tuple[Config, Warehouse, Landing], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, warehouse, landing = landed
    monkeypatch.setattr(positions, "newest", lambda _: None)
    assert start.reached(warehouse, loaded).position.offsets == landing.position.offsets


def test_a_warehouse_of_version_0_1_goes_on_at_its_newest_marker(spark: SparkSession, settings: dict[str, Any]) -> None:
    """Version 0.1 kept offsets in the markers of its commits to `op`: here, those of a landing that was cut short."""
    loaded, warehouse = prepare(spark, settings)
    send(loaded)
    with pytest.raises(CUT_SHORT):
        land(spark, loaded, cut_at(warehouse, TABLES))
    warehouse.table("positions").delete()
    since = {loaded.kafka.topic(source): {"0": 0} for source in LANDED}
    until = {loaded.kafka.topic(source): {"0": 5} for source in LANDED}
    marker = {"landing_id": 7, "from": since, "until": until, "tables": ["op", "half"], "earlier": []}
    spark.conf.set("spark.databricks.delta.skipRecordingEmptyCommits", "false")  # as version 0.1 did
    empty = warehouse.read("op").limit(0).write.format("delta").mode("append")
    empty.option("userMetadata", json.dumps(marker)).save(warehouse.locate("op"))
    spark.conf.unset("spark.databricks.delta.skipRecordingEmptyCommits")
    renamed = replace(loaded, kafka=replace(loaded.kafka, topic_prefix="other."))
    assert start.reached(warehouse, renamed).position.offsets == {(source, 0): 0 for source in LANDED}
    landing = land(spark, loaded, warehouse)
    assert landing.position.landing_id == 8
    assert standing(warehouse) == expected(loaded)


@pytest.mark.parametrize("large", ["body", "property"])
def test_a_backlog_of_large_messages_lands_in_several_rounds(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, large: str
) -> None:
    monkeypatch.setattr(parts, "MOST_BYTES", 4 << 20)  # one of the largest
    sent = {f"t{number}": os.urandom(250_000).hex() for number in range(24)}
    for number, (tid, text) in enumerate(sent.items()):
        own: dict[str, Any] = {"body": text.encode()} if large == "body" else {"properties": {"text": text}}
        lake.op("COMMIT", tid, lake.half(tid, number % 2, **own))
    lake.run(spark)
    shown = [
        row["body"].decode() if large == "body" else dict(row["properties"])["text"] for row in lake.topic("orders")
    ]
    assert sorted(shown) == sorted(sent.values())
    landed = [row for row in lake.rows("positions") if row["landing_id"] > 0]
    assert 24 * 500_000 / parts.MOST_BYTES < len(landed) < 10
    lake.run(spark)
    assert (len(lake.rows("half")), len(lake.rejected())) == (24, 0)


def test_a_backlog_lands_in_parts_also_with_other_options_of_kafka(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one JVM, as of a notebook: Spark refuses other options under a consumer group that it has met."""
    monkeypatch.setattr(parts, "MOST_BYTES", 2 * parts.RECORD + 100)  # two records
    for name, timeout_ms in (("a", 31_000), ("b", 32_000)):
        for number in range(3):
            lake.message(f"{name}{number}", topic="orders")
        lake.run(spark, **{"kafka.options.request.timeout.ms": timeout_ms})
    assert len(lake.topic("orders")) == 6


def test_what_a_landing_that_was_cut_short_has_written_is_passed_in_few_rounds(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MOST_BYTES", 4 << 20)  # one record, where nothing is known
    monkeypatch.setattr(positions, "_AT_ONCE", 2)  # as with hundreds of topics
    for number in range(20):
        lake.message(f"m{number}", topic="orders")
    warehouse = Warehouse(spark, lake.config.warehouse)
    warehouse.create()
    with pytest.raises(CUT_SHORT):
        land(spark, lake.config, cut_at(warehouse, 4))  # after `positions` of the start, `destinations` and the topic
    assert len(lake.topic("orders")) == 20
    lake.run(spark)
    assert len(lake.topic("orders")) == 20
    assert len(lake.rows("positions")) <= 4
