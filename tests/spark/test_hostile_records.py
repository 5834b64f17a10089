"""What a producer may try with headers, names of topics and sizes: every record lands, and all goes on.

What is refused whatever it is about: test_landing_records.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession
from tests.support.lake import Lake, Record

from commitlake import config
from commitlake.coordinator.coordination import batch_rows
from commitlake.coordinator.coordination.check_requests import MOST_PROPERTIES
from commitlake.coordinator.dedup.dedup_index import DedupIndex
from commitlake.coordinator.landing import parts
from commitlake.coordinator.landing.land import Landed, Landing
from commitlake.coordinator.landing.ordinary import Classification
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.landing.topic_admission import Topics
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol import wire
from commitlake.protocol.clock import BrokerClock
from commitlake.protocol.states import Event
from commitlake.protocol.topic_names import path_name
from commitlake.reading.catalog import location
from commitlake.spark.frames import of_rows
from commitlake.tables import Warehouse
from commitlake.tables.schemas import TABLES
from commitlake.tables.small_files import MOST_BYTES, MOST_ROWS

MANY = 100_000
PARTS = 10_000
ODD_TOPICS = [
    *("_samples", "_change_data", "_SUCCESS", "_temporary", "_spark_metadata", "_", "__HIVE__", "_%"),
    *("-", "%", "%2e%2e", "%2F", "%_samples", "topic_x", "null", "0", "CON", "a" * 127, "Case", "cASE"),
]
"""Legal names: hidden directories and Delta's own, what Hadoop or a URI would decode, the longest, and two that differ
in case only."""


class Hostile:
    """A producer that writes raw records without waiting for each."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.sent: dict[str, Record] = {}
        self._client = KafkaProducer(
            bootstrap_servers=lake.config.kafka.bootstrap_servers, acks="all", max_request_size=32 << 20, linger_ms=5
        )

    def send(self, name: str, source: str, value: bytes | None, headers: dict[str, bytes], queue: int = 0) -> Record:
        topic = self.lake.config.kafka.topic(source)
        sent = self._client.send(topic, value, None, list(headers.items()), queue)
        self.sent[name] = Record(source, queue, sent.get(30).offset)
        return self.sent[name]

    def half(self, name: str, queue: int = 0, body: bytes = b"body", **headers: Any) -> Record:
        own = {"REAL_TOPIC": b"hostile", "UNIQ_KEY": name.encode(), "PGROUP": b"g"}
        return self.send(name, "half", body, {**own, **headers}, queue)

    def message(self, name: str, value: bytes = b"body", **headers: Any) -> Record:
        own = {"REAL_TOPIC": b"hostile", "UNIQ_KEY": name.encode()[:255]}
        return self.send(name, "messages", value, {**own, **headers})

    def parts(self, first: Record, count: int) -> None:
        """Many parts of one transaction."""
        topic, place = self.lake.config.kafka.topic("half"), f"{first.partition}-{first.offset}".encode()
        for number in range(count):
            headers = [
                ("REAL_TOPIC", b"hostile"), ("UNIQ_KEY", b"part %d" % number), ("PGROUP", b"g"),
                ("__transactionId__", b"flood"), ("FIRST_HALF", place),
            ]  # fmt: skip
            self._client.send(topic, b"", None, headers, 1)
        self._client.flush()

    def close(self) -> None:
        self._client.close()


def with_a_null_header(spark: SparkSession, lake: Lake, source: str) -> None:
    """Kafka's Java client can send one, its Python client can't."""
    headers = [("REAL_TOPIC", b"hostile"), ("UNIQ_KEY", b"null header"), ("PGROUP", b"g"), ("null", None)]
    columns = "topic string, value binary, headers array<struct<key: string, value: binary>>"
    rows = spark.createDataFrame([(lake.config.kafka.topic(source), b"body", headers)], columns)
    rows.write.format("kafka").option("kafka.bootstrap.servers", lake.config.kafka.bootstrap_servers).save()


def attack(hostile: Hostile) -> None:
    lake = hostile.lake
    many: dict[str, Any] = {f"h{number}": b"v" for number in range(MANY)}
    hostile.half("many headers", **many)
    hostile.message("many headers on a message", **many)
    odd: dict[str, Any] = {"": b"empty name", "bytes": b"\xff\xfe"}
    hostile.half("odd headers", **odd)
    lake.op("COMMIT", "many headers", hostile.sent["many headers"].position)
    lake.op("COMMIT", "odd headers", hostile.sent["odd headers"].position)
    hostile.half("id of 255 characters", __transactionId__=b"i" * 255)
    for name in ODD_TOPICS:
        hostile.message(f"to {name}", name.encode(), REAL_TOPIC=name.encode())


@pytest.fixture(scope="module")
def hostile(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    with (
        Lake(broker.bootstrap_servers, "hostile.", tmp_path_factory.mktemp("hostile")) as lake,
        closing(Hostile(lake)) as acting,
    ):
        attack(acting)
        with_a_null_header(spark, lake, "messages")
        lake.run(spark)
        for name in ODD_TOPICS:
            lake.op("COMMIT", name, lake.half(name, topic=name))
        lake.run(spark)
        yield acting


def test_a_record_with_a_hundred_thousand_headers_lands_whole(hostile: Hostile) -> None:
    assert hostile.lake.rejected() == {}
    rows = {row["message_id"]: row for row in hostile.lake.topic("hostile")}
    for name in ("many headers", "many headers on a message"):
        assert len(rows[name]["properties"]) == MANY
    assert dict(rows["odd headers"]["properties"]) == {"": "empty name", "bytes": "\ufffd\ufffd"}
    assert dict(rows["null header"]["properties"]) == {"null": None}


@pytest.mark.parametrize("name", ODD_TOPICS)
def test_every_legal_topic_name_is_a_table_of_its_own_below_topics(
    hostile: Hostile, spark: SparkSession, name: str
) -> None:
    assert [row["body"] for row in hostile.lake.topic(path_name(name))] == [name.encode()] * 2
    place = str(hostile.lake.root / "warehouse" / "topics" / path_name(name))
    assert [bytes(row["body"]) for row in spark.read.format("delta").load(place).collect()] == [name.encode()] * 2
    assert location(str(hostile.lake.root / "warehouse"), f"topics/{name}").uri == place


def test_no_topic_name_leads_out_of_the_directory_of_topics(hostile: Hostile) -> None:
    inside = {"hostile", *map(path_name, ODD_TOPICS)}
    assert set(hostile.lake.topics()) == inside
    assert "_delta_log" not in {path.name for path in hostile.lake.root.iterdir()}


@pytest.fixture(scope="module")
def checked(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """The smallest records Kafka is configured to take, 257 KiB, and transactions whose checks would be larger."""
    place = tmp_path_factory.mktemp("small")
    with (
        Lake(broker.bootstrap_servers, "small.", place, max_message_size="1KiB") as lake,
        closing(Hostile(lake)) as acting,
    ):
        acting.half("wide", 0, b"x" * 1024, TAGS=b"t", bytes=b"\xff" * (220 << 10))
        acting.half("narrow", TAGS=b"t", bytes=b"v" * (MOST_PROPERTIES - 100))
        acting.half("stored", STORED_TIMESTAMP=b"1")
        with_a_null_header(spark, lake, "half")
        acting.parts(acting.half("flood", __transactionId__=b"flood"), PARTS)
        lake.run(spark, transaction_timeout="0s")
        yield lake


def test_a_check_too_large_for_kafka_goes_without_user_properties(checked: Lake) -> None:
    found = {check.msg_id: check for check in checked.checks()}
    assert (found["wide"].properties, found["wide"].tags, found["wide"].body) == ({}, None, b"x" * 1024)
    assert (list(found["narrow"].properties), found["narrow"].tags) == (["bytes"], "t")
    assert found["null header"].properties == {}


def test_a_check_has_each_header_once(checked: Lake) -> None:
    for check in checked.kafka("check"):
        assert len(check.headers) == len(dict(check.headers))
    assert {check.msg_id: check.properties for check in checked.checks()}["stored"] == {}


def test_a_check_lists_as_many_half_messages_as_an_op_may(checked: Lake) -> None:
    flood = next(check for check in checked.checks() if check.msg_id == "flood")
    assert len(flood.half_messages) == len(set(flood.half_messages)) == wire.MAX_HALF_MESSAGES
    assert flood.half_messages[0] == flood.half


@pytest.mark.soak
def test_an_answer_that_lists_a_thousand_parts_decides_all_of_them(checked: Lake, spark: SparkSession) -> None:
    flood = next(check for check in checked.checks() if check.msg_id == "flood")
    checked.op("COMMIT", "flood", *flood.half_messages)
    checked.run(spark)
    assert len(checked.topic("hostile")) == PARTS + 1
    assert checked.rejected() == {}


@pytest.mark.soak
def test_the_largest_batch_there_may_be_lands(
    spark: SparkSession, broker: EmbeddedBroker, prefix: str, tmp_path: Path
) -> None:
    with Lake(broker.bootstrap_servers, prefix, tmp_path, max_message_size="15MiB") as lake:
        count = send_largest(lake)
        lake.run(spark)
    assert lake.rejected() == {}
    assert len(lake.topic("hostile")) == count + 2


def send_largest(lake: Lake) -> int:
    """A batch of as many members as fit, which is returned, one of a single member, and a plain message."""
    acting = Hostile(lake)
    member = b'{"body":"","properties":{"UNIQ_KEY":"k","a":"","b":"","c":"","d":"","e":"","f":""}},'
    count = (15 << 20) // len(member) - 1
    value = b'{"messages":[' + (member * count)[:-1] + b"]}"
    acting.message("members", value, BATCH=str(count).encode())
    text = b"A" * (15 << 20)
    one = b'{"messages":[{"body":"%s","properties":{"UNIQ_KEY":"k"}}]}'
    acting.message("one", one % text[: (len(text) - len(one)) // 4 * 4], BATCH=b"1")
    acting.message("plain", b"x" * (15 << 20))
    acting.close()
    return count


@pytest.mark.parametrize(("most_bytes", "rounds"), [(parts.MOST_BYTES, 1), (18_000, 3)])
def test_what_waits_at_a_start_lands_in_as_few_rounds_as_memory_allows(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, most_bytes: int, rounds: int
) -> None:
    monkeypatch.setattr(parts, "MOST_BYTES", most_bytes)
    for number in range(150):
        lake.message(f"m{number}", queue=number % 2)
    lake.run(spark)
    assert len(lake.rows("topics/delays")) == 150
    assert len(lake.rows("positions")) == 1 + rounds  # a start writes one, too


RAW = """topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary,
    headers array<struct<key: string, value: binary>>"""
STORED = datetime(2026, 1, 1, tzinfo=UTC)
GOOD = {"REAL_TOPIC": b"orders", "UNIQ_KEY": b"m", "PGROUP": b"g"}
Sent = tuple[str, bytes | None, bytes, dict[str, bytes]]
"""Source, key, value and headers of a record."""


def batch(members: int, key: bytes) -> Sent:
    head = json.dumps({"ends": [*range(1, members + 1)], "properties": [{}] * members}).encode()
    own = {**GOOD, "BATCH": b"%d" % members, "BATCH_HEAD": b"%d" % len(head)}
    return "messages", key, head + b"x" * members, own


def op(listed: int) -> Sent:
    places = [{"queue": 0, "offset": offset} for offset in range(listed)]
    fields = {"transaction_id": "t", "producer_group": "g", "decision": "COMMIT", "half_messages": places}
    return "op", None, json.dumps(fields).encode(), {}


@pytest.fixture(scope="module")
def landing(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Landing:
    spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
    warehouse, clock = Warehouse(spark, str(tmp_path_factory.mktemp("sizes"))), BrokerClock()
    warehouse.create()
    conf = config.from_mapping({})
    topics, dedup = Topics(warehouse, 9, lambda _: None), DedupIndex(warehouse, {}, clock)
    return Landing(warehouse, conf, Classification.of(conf), topics, dedup, LandingPosition(0, {}), clock)


def landed(landing: Landing, spark: SparkSession, sent: Sequence[Sent]) -> Landed:
    rows = [
        (f"commitlake.{source}", 0, at, STORED, key, value, list(headers.items()))
        for at, (source, key, value, headers) in enumerate(sent)
    ]
    found = landing.classify(spark.createDataFrame(rows, RAW), {})
    found.release()
    return found


def test_the_driver_holds_the_key_of_a_batch_once_for_each_member(spark: SparkSession, landing: Landing) -> None:
    """20 000 members with a key of 3 kB are 60 MB, of a record of half a megabyte."""
    key = b"k" * (MOST_BYTES // 100)
    assert landed(landing, spark, [batch(90, key)]).few
    found = landed(landing, spark, [batch(110, key)])
    assert (found.few, found.rejected, found.bytes < MOST_BYTES // 10) == (False, {}, True)


def test_names_of_headers_are_counted_as_their_values_are(spark: SparkSession, landing: Landing) -> None:
    name = "n" * (MOST_BYTES // 10)
    sent: Sent = ("messages", None, b"", {**GOOD, name: b""})
    assert landed(landing, spark, [sent] * 9).few
    assert not landed(landing, spark, [sent] * 10).few


def test_each_half_message_that_an_op_lists_is_a_row(spark: SparkSession, landing: Landing) -> None:
    assert landed(landing, spark, [op(1_000)] * (MOST_ROWS // 1_000)).few
    assert not landed(landing, spark, [op(1_000)] * (MOST_ROWS // 1_000 + 1)).few


@pytest.mark.parametrize(
    ("column", "value", "size"),
    [
        ("body", b"\xff" * 500, 500),
        ("sharding_key", b"\xff" * 500, 500),
        ("tags", "ü" * 250, 500),
        ("keys", "k" * 500, 500),
        ("properties", [("n" * 300, "v" * 190), ("null", None)], 494),
        ("message_id", "m", 0),
    ],
)
def test_what_ends_is_counted_with_all_that_a_producer_may_make_long(
    spark: SparkSession, column: str, value: object, size: int
) -> None:
    half = {"queue": 0, "queue_offset": 7, "stored_at": STORED, column: value}
    event = "struct(0 AS state, 0 AS reason, -1 AS op_queue, -1L AS op_offset, -1L AS op_stored, 0 AS checks,"
    event += " 0 AS repeat, 0 AS round, -1L AS deliver_at, 0L AS now) AS e"
    kind = f"{int(Event.DECIDED)} AS event"
    met = of_rows(spark, [half], TABLES["half"].schema).selectExpr(
        "*", kind, event, "CAST(NULL AS STRING) AS duplicate_of"
    )
    assert [row["bytes"] for row in batch_rows.transactions(met, 0).collect()] == [size]
