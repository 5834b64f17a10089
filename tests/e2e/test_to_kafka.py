"""`topics.to_kafka`: what becomes visible goes to a Kafka topic as well, in order, and kills leave nothing out."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.polling import wait_for
from tests.support.running import coordinator

from commitlake.errors import ConfigError, KafkaError


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
