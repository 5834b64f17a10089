"""Three brokers, each record on all of them: what producers and the coordinator do when brokers are killed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession
from tests.support.brokers import BROKERS, KafkaCluster, kafka_cluster
from tests.support.lake import Lake
from tests.support.order_load import SETTINGS, OrderLoad
from tests.support.polling import patience, wait_for
from tests.support.running import Coordinator, coordinator

from commitlake import FailedSendError, UncertainSendError
from commitlake.coordinator import coordinator as coordinators
from commitlake.errors import IdentityError
from commitlake.kafka.topics import ensure_topics, publish_settings
from commitlake.testing import codecs

LONG_S = 900
"""For a busy machine. On a quiet one a broker that is started again waits 9 s for its old session, and catches up."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with kafka_cluster(tmp_path_factory.mktemp("brokers")) as running:
        yield running


@pytest.fixture
def lake(cluster: KafkaCluster, prefix: str, tmp_path: Path) -> Iterator[Lake]:
    cluster.start()  # what a test that failed has left dead
    with Lake(cluster.bootstrap_servers, prefix, tmp_path, **SETTINGS) as opened:
        yield opened


# the topics


def test_topics_that_may_lose_what_was_acknowledged_get_a_warning(cluster: KafkaCluster, lake: Lake) -> None:
    """Those of the fixture have three replicas; they were created with the brokers' own settings."""
    assert ensure_topics(lake.config) == []
    changed = lake.configured(kafka_topic_prefix="unsafe.")
    unsafe = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    wanted: dict[str, dict[str, Any]] = {
        "half": {"configs": unsafe},
        "op": {"replication_factor": 1, "configs": unsafe},
        "messages": {},
    }
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    own = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(20 << 20)}
    client.create_topics(
        {
            f"unsafe.{name}": {"num_partitions": 2, **more, "configs": own | more.get("configs", {})}
            for name, more in wanted.items()
        },
        wait_for_metadata=True,
    )
    client.close()
    half, op = ensure_topics(changed)
    assert half.endswith(
        "run kafka-configs.sh --alter --entity-type topics --entity-name unsafe.half "
        "--add-config min.insync.replicas=2,unclean.leader.election.enable=false"
    )
    assert "unsafe.op has one replica" in op


# brokers that are killed


def test_sends_go_on_when_a_leader_is_killed(cluster: KafkaCluster, lake: Lake, tmp_path: Path) -> None:
    publish_settings(lake.config, ())
    load = OrderLoad(lake, tmp_path)
    with load.steadily():
        wait_for(load.goes_on(), LONG_S)
        killed = cluster.leader(lake.config.kafka.topic("half"))
        cluster.kill(killed)
        wait_for(load.goes_on(20), LONG_S, load.errors)
    cluster.start(killed)
    assert load.errors() <= {FailedSendError, UncertainSendError}
    notices = [codecs.decode_message(each.key, each.value, each.headers).keys for each in lake.kafka("messages")]
    halves = [codecs.decode_half(each.key, each.value, each.headers).keys for each in lake.kafka("half")]
    for found, outcomes in ((notices, load.notices), (halves, load.orders)):
        assert len(found) == len(set(found))
        assert {key for key, outcome in outcomes.items() if outcome is None} <= set(found)
        assert {key for key, outcome in outcomes.items() if outcome is FailedSendError}.isdisjoint(found)
    assert {key for key, outcome in load.orders.items() if outcome is None} == load.booked()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_leader_that_is_killed_ends_no_coordinator(cluster: KafkaCluster, lake: Lake, tmp_path: Path) -> None:
    load = OrderLoad(lake, tmp_path)
    with coordinator(tmp_path, **settings(lake)) as running:
        running.ready()
        with load.steadily():
            for topic in ("half", "op"):
                wait_for(load.goes_on(), LONG_S)
                killed = cluster.leader(lake.config.kafka.topic(topic))
                cluster.kill(killed)
                wait_for(load.goes_on(20), LONG_S, load.errors)
                wait_for(load.is_shown(), LONG_S, lambda: running.said[-4_000:])
                cluster.start(killed)
            over(load, running)
    load.assert_outcome()
    assert load.errors() <= {FailedSendError, UncertainSendError}


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("killed", [BROKERS[:2], BROKERS], ids=["two", "all"])
def test_with_too_few_brokers_all_wait_and_nothing_acknowledged_is_lost(
    cluster: KafkaCluster, lake: Lake, tmp_path: Path, killed: tuple[int, ...]
) -> None:
    load = OrderLoad(lake, tmp_path)
    with coordinator(tmp_path, **settings(lake)) as running:
        running.ready()
        with load.steadily():
            wait_for(load.goes_on(), LONG_S)
            cluster.kill(*killed)
            time.sleep(20)  # what was under way
            acknowledged, said = load.acknowledged(), len(running.said)
            time.sleep(120)  # it is told once a minute
            assert load.acknowledged() == acknowledged
            assert running.process.poll() is None
            assert 1 <= running.said[said:].count("while Kafka is away") <= 3 * patience(), running.said
            cluster.start(*killed)
            wait_for(load.goes_on(), LONG_S, load.errors)
            over(load, running)
    load.assert_outcome()
    assert load.errors() <= {FailedSendError, UncertainSendError}


def settings(lake: Lake) -> dict[str, Any]:
    own = ("warehouse", "checkpoints")
    return {key: value for key, value in lake.settings.items() if key not in own}


def over(load: OrderLoad, running: Coordinator) -> None:
    """Waits until all that was sent has come to its end, and stops the coordinator."""
    load.stop_sending()
    running.until(load.is_over, LONG_S)
    running.stop()


# an unclean election


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_records_at_offsets_that_an_unclean_election_gives_again_are_told(spark: SparkSession, tmp_path: Path) -> None:
    """The log is longer than before when the coordinator looks: an offset alone does not tell."""
    unsafe = {"default_replication_factor": "2", "min_insync_replicas": "1", "unclean_leader_election_enable": "true"}
    one_queue = {"kafka.queues": 1}
    with kafka_cluster(tmp_path / "kafka", **unsafe) as cluster:
        with Lake(cluster.bootstrap_servers, "cut.", tmp_path, **one_queue) as lake:
            half = lake.config.kafka.topic("half")
            leader = cluster.leader(half)
            (follower,) = cluster.in_sync(half) - {leader}
            with coordinators.Coordinator(spark, lake.config).start() as running:
                lake.commit("a")
                cluster.kill(follower)
                wait_for(lambda: cluster.in_sync(half) == {leader}, LONG_S)
                lake.commit("b", "c")
                wait_for(lambda: sorted(row["body"] for row in lake.topic("orders")) == [b"a", b"b", b"c"], LONG_S)
                cluster.kill(leader)
                cluster.start(follower)
                wait_for(lambda: cluster.leader(half) == follower, LONG_S)
                with Lake(cluster.bootstrap_servers, "cut.", tmp_path, **one_queue) as later:  # another producer
                    later.commit("x", "y", "z")
                    numbers = itertools.count()

                    def has_ended() -> bool:
                        later.commit(f"later {next(numbers)}")  # Kafka is asked in each round
                        return running.await_termination(timeout=2)

                    with pytest.raises(IdentityError, match=r"lost records .*half-0 from offset 1 on"):
                        wait_for(has_ended, LONG_S)
                    sent = {record.value for record in later.kafka("half")}
        with Lake(cluster.bootstrap_servers, "cut.", tmp_path, **one_queue) as lake:
            lost = (
                r"half, partition 0 ends at offset \d+ \(it has lost its end from 1 on, and grown again\), but \d+ is"
            )
            with pytest.raises(IdentityError, match=lost):
                lake.run(spark)
            lake.run(spark, accept_lost_range="true")
            lake.run(spark)
        assert {row["reason"] for row in lake.rows("rejected")} == {"OFFSET_USED_BEFORE"}
        told = [row["value"] for row in lake.rows("rejected") if row["source"] == "half"]
        assert sorted(told) == [b"x", b"y"]
        assert {row["body"] for row in lake.rows("half")} == {b"b", b"c", *sent} - {b"x", b"y"}
