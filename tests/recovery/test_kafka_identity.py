"""A start that finds another Kafka than the one the warehouse was filled from stops, unless that is accepted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import UnknownTopicOrPartitionError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.e2e.running import wait_for
from tests.lake import Lake
from tests.recovery.test_landing_recovery import Cut, cut_at, land

from commitlake.errors import IdentityError
from commitlake.kafka import topics
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol import wire
from commitlake.tables import Warehouse


def commit(lake: Lake, *names: str) -> None:
    """Sends committed transactions, all to queue 0."""
    for name in names:
        lake.op("COMMIT", name, lake.half(name))


def visible(lake: Lake) -> list[str]:
    """What consumers see, with what stands there twice."""
    return sorted(row["body"].decode() for row in lake.topic("orders"))


def end_of_half(lake: Lake) -> int:
    return lake.end("half", 0).offset


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


def test_another_cluster_stops_the_start_and_an_accepted_copy_goes_on(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    commit(lake, "a", "b", "c")
    lake.run(spark)
    known = topics.identity(lake.config).cluster_id
    with EmbeddedBroker(tmp_path / "other") as other:
        copy = Lake(other.bootstrap_servers, lake.config.kafka.topic_prefix, tmp_path)
        actual = topics.identity(copy.config).cluster_id
        with pytest.raises(IdentityError) as caught:
            copy.run(spark)
        for part in (
            f"the Kafka cluster {actual}",
            f"filled from {known}",
            "no record would be lost",
            "accept.other_cluster",
        ):
            assert part in str(caught.value)
        # A log that ends before the next offset to land can't be accepted: what is sent there would never land.
        with pytest.raises(IdentityError, match=r"can't accept it: .*half-0 ends at 0, 3 is the next to land"):
            copy.run(spark, accept_other_cluster="true")
        for source in ("half", "op"):
            for record in lake.kafka(source):
                copy.send(source, wire.Encoded(record.key, record.value, record.headers), record.partition)
        commit(copy, "d")
        with pytest.raises(IdentityError, match=r"lost would be .*half-0 offsets 0 to 2.*accept\.other_cluster"):
            copy.run(spark)
        copy.run(spark, accept_other_cluster="true")
        commit(copy, "e")
        copy.run(spark)  # remembered
        assert visible(copy) == ["a", "b", "c", "d", "e"]
        copy.close()
        # The same address, but with no data it is another cluster.
        other.stop()
        shutil.rmtree(other.data_dir)
        other.start()
        with pytest.raises(IdentityError, match=rf"this is the Kafka cluster .* filled from {actual}"):
            copy.run(spark)
    assert visible(lake) == ["a", "b", "c", "d", "e"]


def test_a_topic_created_again_stops_the_start_and_goes_on_when_accepted(
    spark: SparkSession, lake: Lake, admin: KafkaAdminClient
) -> None:
    commit(lake, "a", "b")
    lake.run(spark)
    half = lake.config.kafka.topic("half")
    admin.delete_topics([half])
    wait_for(lambda: is_gone(admin, half), 30)
    with pytest.raises(
        IdentityError, match=rf"{half} was deleted and created again; no record.*accept\.recreated_topic"
    ):
        lake.run(spark)
    commit(lake, "c")
    with pytest.raises(IdentityError, match=rf"{half} .*lost would be {half}-0 offsets 0 to 0;"):
        lake.run(spark)
    with pytest.raises(IdentityError, match=rf"can't accept it: {half}-0 ends at 1, 2 is the next to land"):
        lake.run(spark, accept_recreated_topic="true")
    commit(lake, "d", "e")
    with pytest.raises(IdentityError, match=rf"lost would be {half}-0 offsets 0 to 1; .*accept\.recreated_topic"):
        lake.run(spark)
    lake.run(spark, accept_recreated_topic="true")
    commit(lake, "f")
    lake.run(spark)
    assert visible(lake) == ["a", "b", "e", "f"]


def is_gone(admin: KafkaAdminClient, topic: str) -> bool:
    code: int = admin.describe_topics([topic])[0]["error_code"]
    return code == UnknownTopicOrPartitionError.errno


def expire(admin: KafkaAdminClient, lake: Lake, source: str, before: int) -> None:
    """Deletes the records of queue 0 below an offset, as Kafka's retention does."""
    admin.delete_records({TopicPartition(lake.config.kafka.topic(source), 0): before})


def test_a_log_that_begins_beyond_the_next_offset_stops_the_start_and_goes_on_when_accepted(
    spark: SparkSession, lake: Lake, admin: KafkaAdminClient
) -> None:
    commit(lake, "a", "b")
    lake.run(spark)
    expire(admin, lake, "half", end_of_half(lake))
    lake.run(spark)  # all that is gone has landed
    commit(lake, "c", "d", "e")
    expire(admin, lake, "half", 4)
    half = lake.config.kafka.topic("half")
    told = rf"{half} begins at offset 4 of partition 0, but 2 is the next to land: offsets 2 to 3 are lost"
    for _ in range(2):  # nothing of what a refused start does makes the next one pass
        with pytest.raises(IdentityError, match=rf"{told}; set accept\.lost_range"):
            lake.run(spark)
    lake.run(spark, accept_lost_range="true")
    commit(lake, "f")
    lake.run(spark)
    assert visible(lake) == ["a", "b", "e", "f"]


def test_a_landing_that_was_cut_short_and_then_expired_stops_the_start_and_the_rest_lands_once(
    spark: SparkSession, lake: Lake, admin: KafkaAdminClient
) -> None:
    commit(lake, "a")
    lake.run(spark)
    commit(lake, "b", "c", "d")
    with pytest.raises((Cut, StreamingQueryException)):  # `op` stands, `half` does not
        land(spark, lake.config, cut_at(Warehouse(spark, lake.config.warehouse), commit=2))
    expire(admin, lake, "half", 2)
    half = lake.config.kafka.topic("half")
    told = rf"landing 2 was cut short, and {half} no longer holds its offsets 1 to 1 of partition 0"
    with pytest.raises(IdentityError, match=rf"{told}; set accept\.lost_range"):
        lake.run(spark)
    lake.run(spark, accept_lost_range="true")
    commit(lake, "e")
    lake.run(spark)
    assert visible(lake) == ["a", "c", "d", "e"]
    assert sorted(row["op_offset"] for row in lake.rows("op")) == [0, 1, 2, 3, 4]
