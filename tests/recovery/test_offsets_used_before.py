"""A broker that was restored from an older copy gives offsets a second time: each record that gets one is told."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession
from tests.support.killing import KILLED, killed_at
from tests.support.lake import Lake, Record
from tests.support.landing import begin

from commitlake.errors import IdentityError
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.tables import Warehouse
from commitlake.tools.audit.audit import audit

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
        lake.op("COMMIT", "a", lake.half("a"))
        made = Restored(lake, broker, tmp_path / "copy")
        broker.stop()
        shutil.copytree(broker.data_dir, made.copy)
        broker.start()
        broker.restart()  # so that its leaders have later epochs than those of the copy ever get
        for name in "bc":
            lake.op("COMMIT", name, lake.half(name))
        lake.op("COMMIT", "e", Position(0, 3))
        lake.message("n1", topic="orders")
        lake.run(spark)
        assert visible(lake) == ["a", "b", "c", "n1"]
        made.restore()
        yield made


def visible(lake: Lake) -> list[str]:
    return sorted(row["body"].decode() for row in lake.topic("orders"))


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
        lake.op("COMMIT", "a", lake.half("a"))
        lake.run(spark)
        lake.op("COMMIT", "b", lake.half("b"))
        bad = lake.send("op", wire.Encoded(None, b"bad", []), 0)
        made = Restored(lake, broker, tmp_path / "copy")
        broker.stop()
        shutil.copytree(broker.data_dir, made.copy)
        made.start()
        lake.op("COMMIT", "c", lake.half("c"))
        assert killed_at(lake, "landing:positions", "before") == KILLED
        made.restore()
        expected = use_again(lake, "x")
        lake.op("COMMIT", "y", lake.half("y"))
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
