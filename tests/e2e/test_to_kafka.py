"""`topics.to_kafka`: what becomes visible goes to a Kafka topic as well, in order, and kills leave nothing out."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
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

from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.forwarding import to_kafka
from commitlake.errors import ConfigError, KafkaError, StreamError
from commitlake.kafka.embedded import EmbeddedBroker
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
    assert all(len(record.headers) == len(dict(record.headers)) for record in found), "no header comes twice"
    return [
        {
            "partition": record.partition,
            "key": record.key,
            "value": record.value,
            **{name: value.decode() for name, value in record.headers},
        }
        for record in found
    ]


MAINTAINED = ("vacuumed", "forgotten", "compacted")
ERASED = ("erased", "changed")
"""Topics of whose tables the owner deletes, or changes, a row."""
REFUSED = ("wide", "narrow", "keyed")
"""Topics of which Kafka refuses some messages."""


class Log(logging.Handler):
    """Keeps the messages of a logger."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class Story:
    """One warehouse whose topics meet all that can befall them before they are sent: four starts for all of them.

    Attributes:
        told: what was logged at warning level.
        at: where half messages stand, by topic and name.
    """

    def __init__(self, lake: Lake, spark: SparkSession) -> None:
        self.lake, self._spark = lake, spark
        self.at: dict[tuple[str, str], Position] = {}
        self._log = Log(logging.WARNING)
        self.told = self._log.messages

    def play(self) -> None:
        """Targets of all, rows that nobody sends, what befalls the tables meanwhile, and two starts that send."""
        self._run("forgotten", "broken", *REFUSED)
        configure(self.lake, self.target("narrow"), max_message_bytes="900000")
        configure(self.lake, self.target("keyed"), cleanup_policy="compact")
        properties = {"region": "eu", "BATCH_ID": "of the shop"}
        self._commit("orders", "t0", tags="paid", properties=properties, sharding_key=b"c1")
        self.lake.op("ROLLBACK", "no", self.lake.half("no"))
        self.lake.message("n0", topic="orders")
        for topic in (*MAINTAINED, "broken"):
            self._commit(topic, "0", queue_id=0)
        self._run()
        compact_and_vacuum(self._with_many_commits("vacuumed", 20), "vacuumed")
        forget_the_log(self._with_many_commits("forgotten", 5), "forgotten")
        compacted = self._with_many_commits("compacted", 18)
        self._what_kafka_may_refuse()
        self._commit("orders", "t1")
        for topic in ERASED:
            self._commit(topic, "0", queue_id=0)
            self._commit(topic, "1", queue_id=0)
        self._run("orders", *MAINTAINED, *REFUSED, *ERASED)
        for topic in ERASED:
            self._erase(topic)
            self._commit(topic, "next", queue_id=0)
        compacted.table(topic_table("compacted")).optimize().executeCompaction()
        for topic in ("orders", *MAINTAINED):
            self._commit(topic, "next", queue_id=0)
        self._run("orders", *MAINTAINED, *ERASED)  # what stands in the newest commit comes again

    def _erase(self, topic: str) -> None:
        """What an owner may have to do with a person's data."""
        warehouse = Warehouse(session.beside(self._spark, self.lake.config), self.lake.config.warehouse)
        warehouse.set_property(topic_table(topic), "delta.appendOnly", "false")
        table, row = warehouse.table(topic_table(topic)), "message_id = '0'"
        table.delete(row) if topic == "erased" else table.update(row, {"body": F.lit(b"")})

    def _what_kafka_may_refuse(self) -> None:
        for topic in ("wide", "narrow"):
            for number in range(3):
                self._commit(topic, f"a{number}", queue_id=0)
            self.at[topic, "header"] = send_compressed(self.lake, "header", topic, wide=b"x" * (7 << 20))
            send_compressed(self.lake, "keys", topic, KEYS=b"k" * (7 << 20), TAGS=b"t" * (7 << 20))
            self._commit(topic, "b", queue_id=0)
        self._commit("narrow", "body", body=b"x" * 950_000, queue_id=0)
        for name, key in {"a": b"k", "b": None, "c": b"l"}.items():
            self._commit("keyed", name, queue_id=0, sharding_key=key)

    def _commit(self, topic: str, name: str, **more: Any) -> None:
        tid = f"{topic} {name}"
        at = self.lake.half(tid, topic=topic, msg_id=name, **{"body": name.encode(), **more})
        self.lake.op("COMMIT", tid, at)
        self.at[topic, name] = at

    def _run(self, *topics: str) -> None:
        logging.getLogger("commitlake").addHandler(self._log)
        try:
            self.lake.run(self._spark, topics_to_kafka={topic: self.target(topic) for topic in topics})
        finally:
            logging.getLogger("commitlake").removeHandler(self._log)

    def _with_many_commits(self, topic: str, count: int) -> Warehouse:
        """A batch is appended so many times; the ids of the messages are 1, 2, ..."""
        name, conf = topic_table(topic), self.lake.config
        warehouse = Warehouse(session.beside(self._spark, conf), conf.warehouse)
        row = warehouse.read(name).limit(1).localCheckpoint()
        for number in range(1, count + 1):
            offset, batch = F.lit(1_000 + number), F.lit(1_000 + number)
            changed = {"message_id": F.lit(str(number)), "source_offset": offset, "batch_id": batch}
            warehouse.append(row.withColumns(changed), name)
        return warehouse

    def target(self, topic: str) -> str:
        """The Kafka topic that gets it."""
        return f"out-{self.lake.config.kafka.topic_prefix}{topic}"

    def ids(self, topic: str) -> list[str]:
        """Of the records in its Kafka topic, by partition and offset."""
        return [record["UNIQ_KEY"] for record in sent(self.lake, self.target(topic))]

    def left_out(self, topic: str) -> list[str]:
        """What was logged of messages that are not sent."""
        return [each for each in self.told if "is not sent" in each and self.target(topic) in each]

    def not_sent(self, topic: str, name: str) -> str:
        """How the text about one of them begins."""
        at = self.at[topic, name]
        place = f"half-{at.queue}-{at.offset}-0"
        return f"the message {topic} at {place} is not sent to the Kafka topic {self.target(topic)}: it has "


@pytest.fixture(scope="module")
def story(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with Lake(broker.bootstrap_servers, "to-kafka.", tmp_path_factory.mktemp("to-kafka")) as lake:
        played = Story(lake, spark)
        played.play()
        yield played


def compact_and_vacuum(warehouse: Warehouse, topic: str) -> None:
    """What maintenance does, a week later."""
    table = warehouse.table(topic_table(topic))
    table.optimize().executeCompaction()
    warehouse.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    time.sleep(1.1)
    table.vacuum(0)


def forget_the_log(warehouse: Warehouse, topic: str) -> None:
    """What maintenance does, a week later: a checkpoint stands for old commits."""
    name = topic_table(topic)
    place = warehouse.locate(name)
    DeltaTable(place).create_checkpoint()
    for number in range(warehouse.version(name)):
        Path(place, "_delta_log", f"{number:020}.json").unlink()
    assert warehouse.keeps_versions(name, 0) is False


def configure(lake: Lake, topic: str, **settings: str) -> None:
    """Sets what a Kafka topic takes; `max_message_bytes` stands for `max.message.bytes`."""
    with closing(KafkaAdminClient(bootstrap_servers=lake.settings["kafka.bootstrap_servers"])) as admin:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=given)])


def send_compressed(lake: Lake, name: str, topic: str, **headers: bytes) -> Position:
    """A half message whose record is small only while it is compressed, and its COMMIT."""
    servers, tid = lake.settings["kafka.bootstrap_servers"], f"{topic} {name}"
    own = {"REAL_TOPIC": topic.encode(), "UNIQ_KEY": tid.encode(), "PGROUP": b"g", "REAL_QID": b"0"}
    with closing(
        KafkaProducer(bootstrap_servers=servers, compression_type="gzip", max_request_size=64 << 20)
    ) as client:
        at = client.send(lake.config.kafka.topic("half"), b"body", None, [*own.items(), *headers.items()], 0).get(30)
    lake.op("COMMIT", tid, Position(0, at.offset))
    return Position(0, at.offset)


def test_committed_messages_go_to_kafka_in_the_order_of_the_topic(story: Story) -> None:
    found = sent(story.lake, story.target("orders"))
    ids = [record["UNIQ_KEY"] for record in found]
    assert list(dict.fromkeys(each for each in ids if each != "n0")) == ["t0", "t1", "next"]
    assert "n0" in ids
    first = next(record for record in found if record["UNIQ_KEY"] == "t0")
    assert (first["value"], first["key"], first["region"], first["TAGS"]) == (b"t0", b"c1", "eu", "paid")
    assert (first["REAL_TOPIC"], first["__transactionId__"], first["PGROUP"]) == ("orders", "orders t0", "g")
    assert first["MESSAGE_POSITION"] == "half-0-0-0"
    assert len({(record["UNIQ_KEY"], record["MESSAGE_POSITION"]) for record in found}) == 4
    assert ids.count("t0") == 1, "what was sent long ago does not come again"


def test_a_topic_whose_first_files_are_gone_is_sent_from_its_first_row_in_order(story: Story) -> None:
    assert story.ids("vacuumed") == [*map(str, range(21)), "next"]


def test_what_came_after_a_version_that_has_left_the_log_is_sent(story: Story) -> None:
    (told,) = [each for each in story.told if "again" in each]
    assert told.startswith(f"all of the topic forgotten goes to the Kafka topic {story.target('forgotten')} again")
    assert story.ids("forgotten") == [*map(str, range(6)), "next"]


def test_a_version_whose_files_were_compacted_and_are_still_there_is_the_begin(story: Story) -> None:
    ids = story.ids("compacted")
    assert list(dict.fromkeys(ids)) == [*map(str, range(19)), "next"]
    assert len(ids) <= 21


@pytest.mark.parametrize("topic", ERASED)
def test_a_row_that_its_owner_deletes_or_changes_is_sent_as_it_was_and_all_others_go(story: Story, topic: str) -> None:
    """Each later start ended with DELTA_SOURCE_TABLE_IGNORE_CHANGES, or DELTA_SOURCE_IGNORE_DELETE."""
    assert list(dict.fromkeys(story.ids(topic))) == ["0", "1", "next"]


@pytest.mark.parametrize(("topic", "count"), [("wide", 2), ("narrow", 3)])
def test_a_message_too_large_for_the_topic_is_left_out_and_all_others_go(story: Story, topic: str, count: int) -> None:
    ids = story.ids(topic)
    assert set(ids) == {"a0", "a1", "a2", "b"}
    assert ids[-4:] == ["a0", "a1", "a2", "b"], "what stands close to one that is left out comes again, in order"
    left_out = story.left_out(topic)
    assert len(left_out) == count
    assert left_out[0].startswith(f"{story.not_sent(topic, 'header')}734")
    assert "raise its max.message.bytes" in left_out[0]
    assert len(story.lake.rows(f"topics/{topic}")) == count + 4


def test_a_compacted_topic_gets_the_messages_that_have_a_key(story: Story) -> None:
    names = story.ids("keyed")
    assert set(names) == {"a", "c"}
    assert names[-2:] == ["a", "c"], "c may have gone before a was refused with b, and both come again"
    (told,) = story.left_out("keyed")
    assert told.startswith(f"{story.not_sent('keyed', 'b')}no key")


def test_what_ends_a_forwarder_names_it(story: Story, spark: SparkSession) -> None:
    for file in story.lake.warehouse.glob("topics/broken/queue_id=*/*.parquet"):
        file.unlink()
    with pytest.raises(StreamError, match=r"the to-kafka-broken query failed: .*NoSuchFile"):
        story.lake.run(spark, topics_to_kafka={"broken": story.target("broken")})


@pytest.mark.timeout(300)
def test_a_forwarder_that_fails_stops_its_own_topic_only_and_is_tried_again(
    lake: Lake, spark: SparkSession, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All topics ended with it, landing too."""
    monkeypatch.setattr(to_kafka, "_FIRST_PAUSE_S", 0.5)
    monkeypatch.setattr(to_kafka, "_LONGEST_PAUSE_S", 1.0)
    targets = {topic: f"out-{prefix}{topic}" for topic in ("broken", "orders")}

    def ids(topic: str) -> set[str]:
        return {record["UNIQ_KEY"] for record in sent(lake, targets[topic])}

    for topic in targets:
        lake.message("a", topic=topic)
    lake.run(spark)
    (file,) = lake.warehouse.glob("topics/broken/queue_id=*/*.parquet")
    hidden = file.rename(file.with_suffix(".hidden"))
    with Coordinator(spark, lake.configured(topics_to_kafka=targets)).start() as running:
        wait_for(lambda: caplog.text.count("to-kafka-broken has ended") > 1, why=lambda: caplog.text)
        assert running._served.forwarders.failed() == {"broken": True, "orders": False}
        lake.message("b", topic="orders")
        wait_for(lambda: ids("orders") == {"a", "b"}, why=lambda: running.await_termination(0))
        hidden.rename(file)
        wait_for(lambda: ids("broken") == {"a"}, why=lambda: caplog.text)
        assert not running.await_termination(0)
    assert not [each.name for each in spark.streams.active if each.name and each.name.startswith("to-kafka")]


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
