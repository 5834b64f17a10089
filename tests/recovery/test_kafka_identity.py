"""A start that finds another Kafka than the one the warehouse was filled from stops, unless that is accepted."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import UnknownTopicOrPartitionError
from pyspark.sql import SparkSession
from tests.support.killing import KILLED, killed_at
from tests.support.lake import Lake, Record
from tests.support.landing import CUT_SHORT, begin, cut_at, land
from tests.support.polling import patience, wait_for

from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.landing import kafka_identity, positions, start
from commitlake.errors import IdentityError
from commitlake.kafka import topics
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.kafka.log_ends import LogEnds
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import LANDED
from commitlake.tables import Warehouse
from commitlake.tools.audit.audit import audit


def visible(lake: Lake) -> list[str]:
    """What consumers see, with what stands there twice."""
    return sorted(row["body"].decode() for row in lake.topic("orders"))


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


def tells(monkeypatch: pytest.MonkeyPatch, **changes: int) -> None:
    """A broker tells another end, or epoch, of partition 0 of `half`."""
    ends = topics.log_ends

    def others(*given: Any) -> LogEnds:
        found = ends(*given)
        return {**found, ("half", 0): found["half", 0]._replace(**changes)}

    monkeypatch.setattr("commitlake.coordinator.landing.start.log_ends", others)


def refusal(spark: SparkSession, lake: Lake, **changes: object) -> str:
    """What the first act of a start says against this Kafka."""
    with pytest.raises(IdentityError) as caught:
        begin(lake.configured(**changes), Warehouse(spark, lake.config.warehouse))
    return str(caught.value)


@pytest.mark.soak
def test_another_cluster_stops_the_start_until_a_copy_is_accepted(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    lake.commit("a", "b", "c")
    lake.run(spark)
    known, half = topics.identity(lake.config).cluster_id, lake.config.kafka.topic("half")
    with ExitStack() as stack:
        other = stack.enter_context(EmbeddedBroker(tmp_path / "other"))
        copy = stack.enter_context(Lake(other.bootstrap_servers, lake.config.kafka.topic_prefix, tmp_path))
        actual = topics.identity(copy.config).cluster_id
        error = refusal(spark, copy)
        assert f"this is the Kafka cluster {actual}, the warehouse was filled from {known}; accept" in error
        # A log that ends before the next offset to land can't be accepted: what is sent there would never land.
        assert f"accept.other_cluster can't accept it: {half}-0 ends at 0, but landing has come to 3" in error
        assert refusal(spark, copy, accept_other_cluster="true") == error
        for source in ("half", "op"):
            for record in lake.kafka(source):
                copy.send(source, wire.Encoded(record.key, record.value, record.headers), record.partition)
        copy.commit("d")
        error = refusal(spark, copy)
        assert f"lost would be {half}-0 offsets 0 to 2" in error
        assert "set accept.other_cluster to go on" in error
        # Its leaders have epochs of their own: the next start must not compare them with those of before.
        accepted = begin(copy.configured(accept_other_cluster="true"), Warehouse(spark, copy.config.warehouse))
        kept = positions.newest(Warehouse(spark, copy.config.warehouse))
        assert kept == accepted.position
        told = {number: end.offset for (source, number), end in kept.held.items() if source == "half"}
        assert told == topics.end_offsets(copy.config, ["half"])[half]
        copy.run(spark)
        begin(copy.config, Warehouse(spark, copy.config.warehouse))  # it is remembered
        other.stop()  # the same address, but with no data it is another cluster
        shutil.rmtree(other.data_dir)
        other.start()
        topics.ensure_topics(copy.config)
        assert f"filled from {actual}" in refusal(spark, copy)
    assert visible(lake) == ["a", "b", "c", "d"]


def test_a_topic_created_again_stops_the_start_until_accepted(
    spark: SparkSession, lake: Lake, admin: KafkaAdminClient
) -> None:
    lake.commit("a", "b")
    lake.run(spark)
    half = lake.config.kafka.topic("half")
    admin.delete_topics([half])
    wait_for(lambda: is_gone(admin, half))
    for accepted in ("false", "true"):
        with pytest.raises(
            IdentityError, match=rf"{half} was deleted; accept.*{half}-0 ends at 0, but landing has come to 2"
        ):
            lake.run(spark, accept_recreated_topic=accepted)
    assert is_gone(admin, half), "a refused start made it anew"
    topics.ensure_topics(lake.config)
    assert f"{half} was deleted and created again; accept.recreated_topic can't" in refusal(spark, lake)
    lake.commit("c")
    error = refusal(spark, lake, accept_recreated_topic="true")
    assert f"accept.recreated_topic can't accept it: {half}-0 ends at 1, but landing has come to 2" in error
    lake.commit("d", "e")
    error = refusal(spark, lake)
    assert f"lost would be {half}-0 offsets 0 to 1; " in error
    assert "set accept.recreated_topic to go on" in error
    lake.run(spark, accept_recreated_topic="true")
    assert visible(lake) == ["a", "b", "e"]


def of_later_leaders(ends: LogEnds) -> LogEnds:
    """The same ends of `half`, as the next leaders would tell them."""
    return {place: end._replace(epoch=end.epoch + (place[0] == "half")) for place, end in ends.items()}


def known_from_a_later_leader(warehouse: Warehouse) -> None:
    """The newest landing was read from leaders that those of now do not know."""
    newest = positions.newest(warehouse)
    assert newest
    landing_id, held = newest.landing_id + 1, of_later_leaders(newest.held)
    positions.append(warehouse, replace(newest, landing_id=landing_id, held=held))


def test_a_start_waits_until_a_leader_of_before_knows_of_its_successor(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes back has less than has landed: queries that began again behind its outage ended for that."""
    lake.commit("a")
    lake.run(spark)
    known_from_a_later_leader(Warehouse(spark, lake.config.warehouse))
    asked: list[LogEnds] = []

    def late(*given: Any) -> LogEnds:
        asked.append(topics.log_ends(*given))
        first = asked[0]["half", 0]
        one_less = {("half", 0): first._replace(offset=first.offset - 1)}
        return of_later_leaders(asked[-1]) if asked[2:] else {**asked[0], **one_less}

    monkeypatch.setattr(start, "log_ends", late)
    found = begin(lake.config, Warehouse(spark, lake.config.warehouse))
    assert len(asked) == 3
    assert found.position.held == of_later_leaders(asked[-1])


def test_a_topic_created_again_hides_no_lost_end_of_another(
    spark: SparkSession, lake: Lake, admin: KafkaAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_SUCCESSORS_S", 0)
    a = lake.half("a")
    lake.op("COMMIT", "a", a)
    lake.run(spark)
    known_from_a_later_leader(Warehouse(spark, lake.config.warehouse))
    op, half = lake.config.kafka.topic("op"), lake.config.kafka.topic("half")
    admin.delete_topics([op])
    wait_for(lambda: is_gone(admin, op))
    topics.ensure_topics(lake.config)
    lake.op("COMMIT", "a", a)  # so that its log ends where it did
    assert f"brokers that led earlier than those of the last landing have answered for {half}-0, " in refusal(
        spark, lake, accept_recreated_topic="true"
    )
    lake.run(spark, accept_recreated_topic="true", accept_lost_range="true")
    lake.run(spark)
    assert visible(lake) == ["a"]


def test_another_kafka_that_ends_below_what_a_cut_short_landing_wrote_stops_the_start(
    spark: SparkSession, lake: Lake
) -> None:
    """Its next records got offsets of messages that had landed, and were refused; also where it lacks the partition."""
    lake.commit("a")
    lake.run(spark)
    warehouse = Warehouse(spark, lake.config.warehouse)
    servers, prefix, three = lake.config.kafka.bootstrap_servers, lake.config.kafka.topic_prefix, {"kafka.queues": 3}
    with Lake(servers, prefix, lake.root, **three) as grown:
        grown.half("x", queue=2)
        with pytest.raises(CUT_SHORT):  # the first landing with the new partition, whose position is missing
            land(spark, grown.config, cut_at(warehouse, commit=2))
    before = positions.newest(warehouse)
    assert before
    found = positions.uncommitted(warehouse, before)
    assert found
    assert found.ends == {("half", 2): 1}
    with Lake(servers, f"{prefix}other.", lake.root) as other:
        other.commit("a")
        with pytest.raises(IdentityError, match=rf"{prefix}half, .*topic_prefix is '{prefix}other\.'; ") as caught:
            other.run(spark, accept_recreated_topic="true")
        half = other.config.kafka.topic("half")
        assert f"can't accept it: {half}-2 ends at 0, but landing has come to 1" in str(caught.value)
    with Lake(servers, f"{prefix}other.", lake.root, **three) as other:
        topics.ensure_topics(other.config)
        assert f"can't accept it: {half}-2 ends at 0" in refusal(spark, other, accept_recreated_topic="true")
        other.half("y", queue=2)
        assert f"lost would be {half}-0 offsets 0 to 0, {half}-2 offsets 0 to 0, " in refusal(spark, other)
        other.half("z", queue=2)
        known = json.loads(warehouse.property("half", "commitlake.kafka") or "")
        del known["topics"][f"{prefix}admin"]  # Kafka was late to tell of it
        warehouse.set_property("half", "commitlake.kafka", json.dumps(known))
        accepting = other.configured(accept_recreated_topic="true")
        assert {*kafka_identity.check(warehouse, accepting, kafka_identity.remembered(warehouse), before)} == {
            *LANDED
        }, "each is of another prefix"
        other.run(spark, accept_recreated_topic="true")
    assert sorted(row["transaction_id"] for row in lake.rows("half") if row["queue"] == 2) == ["x", "z"]
    assert [row["reason"] for row in lake.rows("rejected")] == ["OFFSET_USED_BEFORE"]


def is_gone(admin: KafkaAdminClient, topic: str) -> bool:
    return bool(admin.describe_topics([topic])[0]["error_code"] == UnknownTopicOrPartitionError.errno)


def expire(admin: KafkaAdminClient, lake: Lake, before: int) -> None:
    """Deletes the half messages of queue 0 below an offset, as Kafka's retention does."""
    admin.delete_records({TopicPartition(lake.config.kafka.topic("half"), 0): before})


@pytest.mark.soak
def test_a_log_that_lost_offsets_stops_the_start_until_accepted(
    spark: SparkSession, lake: Lake, admin: KafkaAdminClient
) -> None:
    lake.commit("a", "b")
    lake.run(spark)
    expire(admin, lake, before=2)
    begin(lake.config, Warehouse(spark, lake.config.warehouse))  # all that is gone has landed
    lake.commit("c", "d", "e")
    expire(admin, lake, before=4)
    half = lake.config.kafka.topic("half")
    error = f"{half}, partition 0 begins at offset 4, but 2 is the next to land: records at the offsets 2 to 3 are lost"
    assert error in refusal(spark, lake)
    with pytest.raises(IdentityError, match="offsets 2 to 3 are lost"):  # nor does a refusal make the next start pass
        lake.run(spark)
    lake.run(spark, accept_lost_range="true")
    assert visible(lake) == ["a", "b", "e"]


@pytest.mark.soak
def test_offsets_lost_before_the_first_landing_stop_the_start(
    spark: SparkSession, lake: Lake, admin: KafkaAdminClient
) -> None:
    lake.run(spark)
    lake.commit("a", "b", "c")
    expire(admin, lake, before=2)
    assert "partition 0 begins at offset 2, but 0 is the next to land: records at the offsets 0 to 1" in refusal(
        spark, lake
    )
    lake.run(spark, accept_lost_range="true")
    assert visible(lake) == ["c"]


def test_a_start_on_another_cluster_writes_nothing_there(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    lake.commit("a")
    lake.run(spark)
    with EmbeddedBroker(tmp_path / "other") as other:
        changed = replace(lake.config, kafka=replace(lake.config.kafka, bootstrap_servers=other.bootstrap_servers))
        with pytest.raises(IdentityError, match="this is the Kafka cluster"):
            Coordinator(spark, changed).start(available_now=True)
        assert topics.identity(changed).topic_ids == {}


def test_a_coordinator_without_traffic_ends_when_a_log_has_lost_its_end(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    factor = min(5.0, patience())
    with Coordinator(spark, lake.configured(transaction_timeout=f"{30 * factor:.0f}s")).start() as running:
        lake.half("open")
        scheduler = running._served.scheduler
        assert scheduler is not None
        wait_for(lambda: scheduler.rounds.records >= 1, 60 * factor)
        with scheduler.between_rounds():  # a round asks at its end, too
            monkeypatch.setattr("commitlake.kafka.log_end_watcher.cuts", lambda *_: {("half", 0): 0})
        rounds = scheduler.rounds.count
        with pytest.raises(IdentityError, match="half-0 from offset 0 on; start again"):  # asked when the check is due
            wait_for(lambda: running.await_termination(timeout=0.5), 120 * factor)
        assert scheduler.rounds.count == rounds
    assert lake.rows("checks") == []


def test_a_log_that_ends_early_stops_the_start_until_accepted(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.commit("a", "b", "c")
    lake.run(spark)
    with monkeypatch.context() as restored:
        tells(restored, offset=2)  # from before the last record of queue 0
        error = refusal(spark, lake)
        assert f"{lake.config.kafka.topic('half')}, partition 0 ends at offset 2, but 3 is the next to land" in error
        begun = begin(lake.configured(accept_lost_range="true"), Warehouse(spark, lake.config.warehouse))
    assert (begun.offsets["half", 0], begun.position.next("half", 0)) == (2, 3)
    assert begun.position.again == {("half", 0): 2}, "offset 2 names a message that has landed"


def test_a_broker_that_was_restored_and_has_grown_again_stops_the_start_until_accepted(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ends tell nothing, its leaders' epochs do: they begin again with earlier ones. So does a leader of before."""
    topics.ensure_topics(lake.config)
    warehouse = Warehouse(spark, lake.config.warehouse)
    warehouse.create()
    with monkeypatch.context() as before:
        tells(before, epoch=3)
        begin(lake.config, warehouse)
    half = lake.config.kafka.topic("half")
    assert f"answered for {half}-0: start again in a minute" in refusal(spark, lake)
    begin(lake.configured(accept_lost_range="true"), warehouse)
    begin(lake.config, warehouse)  # what was accepted once is done with


@pytest.mark.soak
def test_a_cut_short_landing_that_expired_in_kafka_stops_the_start(
    spark: SparkSession, lake: Lake, admin: KafkaAdminClient
) -> None:
    lake.commit("a")
    lake.run(spark)
    lake.commit("b", "c", "d")
    with pytest.raises(CUT_SHORT):
        land(spark, lake.config, cut_at(Warehouse(spark, lake.config.warehouse), commit=1))
    expire(admin, lake, before=2)
    half = lake.config.kafka.topic("half")
    error = f"{half}, partition 0 begins at offset 2, but 1 is the next to land: records at the offsets 1 to 1 are lost"
    assert error in refusal(spark, lake)
    lake.run(spark, accept_lost_range="true")
    lake.run(spark)  # what was accepted once is done with
    assert visible(lake) == ["a", "c", "d"]
    assert sorted(row["op_offset"] for row in lake.rows("op")) == [0, 1, 2, 3]


REASON = "OFFSET_USED_BEFORE"
Told = Counter[tuple[Record, bytes]]


class Restored(NamedTuple):
    """A warehouse that is ahead of its Kafka.

    Queue 0 had in `half` a, b, c; in `op` their decisions, and at offset 3 one on a half message e that is to come; in
    `messages` one record. The broker holds a and its decision.
    """

    lake: Lake
    broker: EmbeddedBroker
    copy: Path

    def restore(self) -> None:
        """Brings the broker back to the copy."""
        self.broker.stop()
        shutil.rmtree(self.broker.data_dir)
        shutil.copytree(self.copy, self.broker.data_dir)
        self.start()

    def start(self) -> None:
        """Starts the broker again, and a producer that has not waited for it."""
        self.broker.start()
        self.lake.producer.close()  # an idempotent producer goes on with numbers that the log has lost, and gets errors
        self.lake.producer = KafkaProducer(bootstrap_servers=self.broker.bootstrap_servers, acks="all")


@pytest.fixture
def restored(spark: SparkSession, tmp_path: Path, prefix: str) -> Iterator[Restored]:
    with EmbeddedBroker(tmp_path / "kafka") as broker, Lake(broker.bootstrap_servers, prefix, tmp_path) as lake:
        lake.commit("a")
        made = Restored(lake, broker, tmp_path / "copy")
        broker.stop()
        shutil.copytree(broker.data_dir, made.copy)
        broker.start()
        broker.restart()  # so that its leaders have later epochs than those of the copy ever get
        lake.commit("b", "c")
        lake.op("COMMIT", "e", Position(0, 3))
        lake.message("n1", topic="orders")
        lake.run(spark)
        assert visible(lake) == ["a", "b", "c", "n1"]
        made.restore()
        yield made


def told(lake: Lake, *others: str) -> Told:
    """The rows of `rejected`: where the record stands, and its bytes."""
    rows = lake.rows("rejected")
    assert {row["reason"] for row in rows} <= {REASON, *others}
    return Counter((Record(row["source"], row["kafka_partition"], row["kafka_offset"]), row["value"]) for row in rows)


def use_again(lake: Lake, name: str) -> Told:
    """Sends a half message and its decision; returns what must be in `rejected` about them."""
    half = lake.half(name)
    op = lake.op("COMMIT", name, half)
    sent = next(record.value for record in lake.kafka("op") if record.offset == op.offset and record.partition == 0)
    return Counter([(Record("half", *half), name.encode()), (op, sent)])


def test_each_record_at_an_offset_that_was_used_before_is_told_once(spark: SparkSession, restored: Restored) -> None:
    lake = restored.lake
    with pytest.raises(IdentityError, match="ends at offset 1, but 3 is the next to land"):
        lake.run(spark)
    lake.run(spark, accept_lost_range="true")  # nothing was appended yet
    assert told(lake) == Counter()

    expected = use_again(lake, "x")
    assert killed_at(lake, "landing:rejected", "after") == KILLED
    assert told(lake) == expected, "the landing was cut short before its position"
    expected += use_again(lake, "y")
    n2 = lake.message("n2", topic="orders")
    expected[Record("messages", *n2), b"n2"] += 1
    bad = lake.send("op", wire.Encoded(None, b"neither JSON nor an op", []), 0)
    expected[bad, b"neither JSON nor an op"] += 1
    lake.run(spark)  # the logs of `half` and `messages` end where landing goes on, `op` does too: all was told
    assert told(lake) == expected
    assert bad.offset == 3, "where the op waits that decides on e"

    assert lake.half("e").offset == 3
    lake.message("n3", topic="orders")
    lake.run(spark)
    lake.run(spark)
    assert told(lake) == expected
    assert visible(lake) == ["a", "b", "c", "e", "n1", "n3"]
    assert audit(spark, str(lake.warehouse)).is_well


def test_what_a_cut_short_landing_has_written_is_not_taken_for_what_gets_its_offsets_next(
    spark: SparkSession, tmp_path: Path, prefix: str
) -> None:
    """The log is cut above the position, so by that nothing that had landed was lost."""
    with EmbeddedBroker(tmp_path / "kafka") as broker, Lake(broker.bootstrap_servers, prefix, tmp_path) as lake:
        lake.commit("a")
        lake.run(spark)
        lake.commit("b")
        bad = lake.send("op", wire.Encoded(None, b"bad", []), 0)
        made = Restored(lake, broker, tmp_path / "copy")
        broker.stop()
        shutil.copytree(broker.data_dir, made.copy)
        made.start()
        lake.commit("c")
        assert killed_at(lake, "landing:positions", "before") == KILLED
        made.restore()
        expected = use_again(lake, "x")
        lake.commit("y")
        lake.run(spark)
        assert told(lake, "BAD_OP") == expected + Counter({(bad, b"bad"): 1})
        assert visible(lake) == ["a", "b", "c", "y"], "c was in the tables already"
        lake.run(spark)
        assert told(lake, "BAD_OP") == expected + Counter({(bad, b"bad"): 1})
        assert audit(spark, str(lake.warehouse)).is_well


@pytest.mark.soak
def test_a_second_cut_is_accepted_anew_and_its_records_are_told_too(spark: SparkSession, restored: Restored) -> None:
    lake = restored.lake
    lake.run(spark, accept_lost_range="true")
    expected = use_again(lake, "x")
    lake.run(spark)
    restored.restore()
    with pytest.raises(IdentityError, match="ends at offset 1, but 2 is the next to read"):
        lake.run(spark)
    begun = begin(lake.configured(accept_lost_range="true"), Warehouse(spark, lake.config.warehouse))
    assert (begun.offsets["half", 0], begun.position.next("half", 0)) == (1, 3)
    expected += use_again(lake, "z")
    lake.run(spark)
    assert told(lake) == expected
    assert {record.offset for record, _ in expected} == {1}, "both stood there"
    # An op about the record x or z is about the message that the offset names. The op on e, which waits in vain, has
    # lost its place in Kafka to a record that is told, too.
    lost = next(row["op_offset"] for row in lake.rows("op") if row["transaction_id"] == "e")
    while lake.send("op", wire.Encoded(None, b"bad", []), 0).offset < lost:
        pass
    lake.op("ROLLBACK", "x", Position(0, 1), queue=1)
    lake.run(spark, transaction_op_park_time="0s")
    found = {(row["kafka_partition"], row["kafka_offset"], row["reason"]): row for row in lake.rows("rejected")}
    assert (1, 0, "WRONG_TRANSACTION_ID") in found
    assert found[0, lost, REASON]["value"] == b"bad"
    assert b'"transaction_id":"e"' in found[0, lost, "NO_HALF_MESSAGE"]["value"]
