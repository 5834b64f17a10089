"""`topics.to_kafka`: what becomes visible goes to a Kafka topic as well, in order, and kills leave nothing out."""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.support.lake import Lake
from tests.support.polling import wait_for
from tests.support.running import coordinator

from commitlake.errors import ConfigError, KafkaError, StreamError
from commitlake.protocol.encoding import Position
from commitlake.spark import session
from commitlake.tables import Warehouse, topic_table


def sent(lake: Lake, target: str) -> list[dict[str, Any]]:
    """Records of a Kafka topic, by partition and offset, with headers as texts."""
    servers = lake.settings["kafka.bootstrap_servers"]
    with KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest") as reader:
        places = [TopicPartition(target, number) for number in sorted(reader.partitions_for_topic(target) or ())]
        if not places:
            return []
        reader.assign(places)
        ends = reader.end_offsets(places)
        found = []
        while any(reader.position(place) < ends[place] for place in places):
            for records in reader.poll(500).values():
                found += records
    found.sort(key=lambda record: (record.partition, record.offset))
    return [
        {
            "partition": record.partition,
            "key": record.key,
            "value": record.value,
            **{name: value.decode() for name, value in record.headers},
        }
        for record in found
    ]


def test_committed_messages_go_to_kafka_in_the_order_of_the_topic(spark: SparkSession, lake: Lake, prefix: str) -> None:
    target = f"out-{prefix}orders"
    to = {"topics_to_kafka": {"orders": target}}
    lake.op("COMMIT", "t0", lake.half("t0", msg_id="t0", tags="paid", properties={"region": "eu"}, sharding_key=b"c1"))
    lake.op("ROLLBACK", "no", lake.half("no"))
    lake.message("n0", topic="orders")
    lake.run(spark)  # before anything is forwarded
    for number in range(1, 3):
        lake.op("COMMIT", f"t{number}", lake.half(f"t{number}", msg_id=f"t{number}"))
        lake.run(spark, **to)
    found = sent(lake, target)
    ids = [record["UNIQ_KEY"] for record in found]
    assert list(dict.fromkeys(each for each in ids if each != "n0")) == ["t0", "t1", "t2"]
    assert "n0" in ids
    first = next(record for record in found if record["UNIQ_KEY"] == "t0")
    assert (first["value"], first["key"], first["region"], first["TAGS"]) == (b"t0", b"c1", "eu", "paid")
    assert (first["REAL_TOPIC"], first["__transactionId__"], first["PGROUP"]) == ("orders", "t0", "g")
    assert first["MESSAGE_POSITION"] == "half-0-0-0"
    assert len({(record["UNIQ_KEY"], record["MESSAGE_POSITION"]) for record in found}) == 4
    assert ids.count("t0") == 1, "what was sent long ago does not come again"


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_coordinator_that_is_killed_misses_no_message(lake: Lake, prefix: str, tmp_path: Path) -> None:
    target = f"out-{prefix}orders"
    given: dict[str, Any] = {**lake.settings, "topics.to_kafka": f"{{orders: {target}}}"}
    expected: list[str] = []

    def commit(count: int) -> None:
        for _ in range(count):
            name = f"t{len(expected)}"
            expected.append(name)
            lake.op("COMMIT", name, lake.half(name, msg_id=name, queue_id=0))

    for run in range(2):
        with coordinator(tmp_path / str(run), **given) as running:
            running.ready()
            commit(20)
            seen = len(expected) - 10
            wait_for(lambda least=seen: len({r["UNIQ_KEY"] for r in sent(lake, target)}) >= least, 120)  # type: ignore[misc]
            commit(5)
            os.killpg(running.process.pid, signal.SIGKILL if run < 1 else signal.SIGCONT)
            if run == 1:
                wait_for(lambda: {r["UNIQ_KEY"] for r in sent(lake, target)} == set(expected), 120)
    found = [record["UNIQ_KEY"] for record in sent(lake, target)]
    assert list(dict.fromkeys(found)) == expected


def test_a_target_that_is_the_coordinators_own_or_no_name_is_refused(
    spark: SparkSession, lake: Lake, prefix: str
) -> None:
    with pytest.raises(KafkaError, match="are the coordinator's own topics"):
        lake.run(spark, topics_to_kafka={"orders": f"{prefix}half"})
    with pytest.raises(ConfigError, match=r"topics.to_kafka: .* is not allowed; allowed is a map of topics"):
        lake.run(spark, topics_to_kafka={"orders": "no name"})


ORDERS = topic_table("orders")


def with_many_commits(spark: SparkSession, lake: Lake, count: int) -> Warehouse:
    """A table of a topic to which a batch was appended so many times; the ids of the messages are 1, 2, ..."""
    lake.op("COMMIT", "0", lake.half("0", msg_id="0", queue_id=0))
    lake.run(spark)
    warehouse = Warehouse(session.beside(spark, lake.config), lake.config.warehouse)
    row = warehouse.read(ORDERS).limit(1).localCheckpoint()
    for number in range(1, count + 1):
        changed = {"message_id": F.lit(str(number)), "source_offset": F.lit(number), "batch_id": F.lit(1_000 + number)}
        warehouse.append(row.withColumns(changed), ORDERS)
    return warehouse


def compact_and_vacuum(warehouse: Warehouse) -> None:
    """What maintenance does, a week later."""
    warehouse.table(ORDERS).optimize().executeCompaction()
    warehouse.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    time.sleep(1.1)
    warehouse.table(ORDERS).vacuum(0)


def forget_the_log(warehouse: Warehouse) -> None:
    """What maintenance does, a week later: a checkpoint stands for old commits."""
    place = warehouse.locate(ORDERS)
    DeltaTable(place).create_checkpoint()
    for number in range(warehouse.version(ORDERS)):
        Path(place, "_delta_log", f"{number:020}.json").unlink()
    assert warehouse.keeps_versions(ORDERS, 0) is False


def test_a_topic_whose_first_files_are_gone_is_sent_from_its_first_row_in_order(
    spark: SparkSession, lake: Lake, prefix: str
) -> None:
    compact_and_vacuum(with_many_commits(spark, lake, 20))
    lake.run(spark, topics_to_kafka={"orders": f"out-{prefix}orders"})
    lake.op("COMMIT", "next", lake.half("next", msg_id="next", queue_id=0))
    lake.run(spark, topics_to_kafka={"orders": f"out-{prefix}orders"})
    wanted = [str(number) for number in range(21)]
    assert [record["UNIQ_KEY"] for record in sent(lake, f"out-{prefix}orders")] == [*wanted, "next"]


def test_what_came_after_a_version_that_has_left_the_log_is_sent(
    spark: SparkSession, lake: Lake, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    target, to = f"out-{prefix}orders", {"topics_to_kafka": {"orders": f"out-{prefix}orders"}}
    lake.run(spark, **to)
    warehouse = with_many_commits(spark, lake, 5)
    forget_the_log(warehouse)
    caplog.set_level(logging.WARNING, logger="commitlake")
    lake.run(spark, **to)
    (told,) = [each for each in caplog.messages if "again" in each]
    assert told.startswith(f"all of the topic orders goes to the Kafka topic {target} again")
    lake.op("COMMIT", "next", lake.half("next", msg_id="next", queue_id=0))
    lake.run(spark, **to)
    found = [record["UNIQ_KEY"] for record in sent(lake, target)]
    assert found == [*[str(number) for number in range(6)], "next"]


def test_a_version_whose_files_were_compacted_and_are_still_there_is_the_begin(
    spark: SparkSession, lake: Lake, prefix: str
) -> None:
    target, to = f"out-{prefix}orders", {"topics_to_kafka": {"orders": f"out-{prefix}orders"}}
    warehouse = with_many_commits(spark, lake, 18)
    lake.run(spark, **to)
    warehouse.table(ORDERS).optimize().executeCompaction()
    lake.op("COMMIT", "next", lake.half("next", msg_id="next", queue_id=0))
    lake.run(spark, **to)
    ids = [record["UNIQ_KEY"] for record in sent(lake, target)]
    assert list(dict.fromkeys(ids)) == [*[str(number) for number in range(19)], "next"]
    assert len(ids) <= 21


def configure(lake: Lake, topic: str, **settings: str) -> None:
    """Sets what a Kafka topic takes; `max_message_bytes` stands for `max.message.bytes`."""
    with closing(KafkaAdminClient(bootstrap_servers=lake.settings["kafka.bootstrap_servers"])) as admin:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=given)])


def send_compressed(lake: Lake, name: str, topic: str = "orders", **headers: bytes) -> None:
    """A half message whose record is small only while it is compressed, and its COMMIT."""
    servers = lake.settings["kafka.bootstrap_servers"]
    own = {"REAL_TOPIC": topic.encode(), "UNIQ_KEY": name.encode(), "PGROUP": b"g", "REAL_QID": b"0"}
    with closing(
        KafkaProducer(bootstrap_servers=servers, compression_type="gzip", max_request_size=64 << 20)
    ) as client:
        at = client.send(lake.config.kafka.topic("half"), b"body", None, [*own.items(), *headers.items()], 0).get(30)
    lake.op("COMMIT", name, Position(0, at.offset))


@pytest.mark.parametrize("max_bytes", ["", "900000"])
def test_a_message_too_large_for_the_topic_is_left_out_and_all_others_go(
    spark: SparkSession, lake: Lake, prefix: str, max_bytes: str, caplog: pytest.LogCaptureFixture
) -> None:
    target, to = f"out-{prefix}orders", {"topics_to_kafka": {"orders": f"out-{prefix}orders"}}
    lake.run(spark, **to)
    if max_bytes:
        configure(lake, target, max_message_bytes=max_bytes)
    for number in range(3):
        lake.op("COMMIT", f"a{number}", lake.half(f"a{number}", msg_id=f"a{number}", queue_id=0))
    send_compressed(lake, "header", wide=b"x" * (7 << 20))
    send_compressed(lake, "keys", KEYS=b"k" * (7 << 20), TAGS=b"t" * (7 << 20))
    lake.op("COMMIT", "b", lake.half("b", msg_id="b", queue_id=0))
    if max_bytes:
        lake.op("COMMIT", "body", lake.half("body", msg_id="body", body=b"x" * 950_000, queue_id=0))
    caplog.set_level(logging.WARNING, logger="commitlake")
    lake.run(spark, **to)
    ids = [record["UNIQ_KEY"] for record in sent(lake, target)]
    assert set(ids) == {"a0", "a1", "a2", "b"}
    assert ids[-4:] == ["a0", "a1", "a2", "b"], "what stands close to one that is left out comes again, in order"
    left_out = [each for each in caplog.messages if "is not sent" in each]
    assert len(left_out) == (3 if max_bytes else 2)
    assert left_out[0].startswith(
        f"the message orders at half-0-3-0 is not sent to the Kafka topic {target}: it has 734"
    )
    assert "raise its max.message.bytes" in left_out[0]
    assert len(lake.rows("topics/orders")) == len(left_out) + 4


def test_a_compacted_topic_gets_the_messages_that_have_a_key(
    spark: SparkSession, lake: Lake, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    target, to = f"out-{prefix}orders", {"topics_to_kafka": {"orders": f"out-{prefix}orders"}}
    lake.run(spark, **to)
    configure(lake, target, cleanup_policy="compact")
    for name, key in {"a": b"k", "b": None, "c": b"l"}.items():
        lake.op("COMMIT", name, lake.half(name, msg_id=name, queue_id=0, sharding_key=key))
    caplog.set_level(logging.WARNING, logger="commitlake")
    lake.run(spark, **to)
    names = [record["UNIQ_KEY"] for record in sent(lake, target)]
    assert set(names) == {"a", "c"}
    assert names[-2:] == ["a", "c"], "c may have gone before a was refused with b, and both come again"
    assert f"the message orders at half-0-1-0 is not sent to the Kafka topic {target}: it has no key" in caplog.text


def test_what_ends_a_forwarder_names_it(spark: SparkSession, lake: Lake, prefix: str) -> None:
    lake.run(spark, topics_to_kafka={"orders": f"out-{prefix}orders"})
    lake.op("COMMIT", "a", lake.half("a"))
    lake.run(spark)
    for file in lake.warehouse.glob("topics/orders/queue_id=*/*.parquet"):
        file.unlink()
    with pytest.raises(StreamError, match=r"the to-kafka-orders query failed: .*NoSuchFile"):
        lake.run(spark, topics_to_kafka={"orders": f"out-{prefix}orders"})
