"""What a producer may try against the coordinator of its prefix: every record lands or is refused, and all goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession
from tests.support.lake import Lake, Record

from commitlake.coordinator.coordination.check_requests import MOST_PROPERTIES
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol import wire
from commitlake.protocol.encoding import MAX_OFFSET, Position
from commitlake.protocol.topic_names import path_name
from commitlake.reading.table import location

MANY = 100_000
MANY_MEMBERS = 800_000
PARTS = 10_000
DEEP = "[" * MANY + "]" * MANY
DIGITS = "9" * 10_000
ODD_TOPICS = [
    *("_samples", "_change_data", "_SUCCESS", "_temporary", "_spark_metadata", "_", "__HIVE__", "_%"),
    *("-", "%", "%2e%2e", "%2F", "%_samples", "topic_x", "null", "0", "CON", "a" * 127, "Case", "cASE"),
]
"""Legal names: hidden directories and Delta's own, what Hadoop or a URI would decode, the longest, and two that differ
in case only."""
ILLEGAL_TOPICS = ["_delta_log", "..", ".", "a/b", "~", "~2e", "a~b", "orders\x00", "a b", "é"]


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

    def op(self, name: str, *listed: Position, transaction: str = "t", group: str = "g", **more: Any) -> Record:
        op = wire.OpRecord(transaction_id=transaction, producer_group=group, decision="COMMIT", half_messages=listed)
        content = {**json.loads(wire.encode_op(op).value), **more}
        return self.send(name, "op", json.dumps(content).encode(), {})

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


def many_headers(count: int = MANY) -> dict[str, Any]:
    return {f"h{number}": b"v" for number in range(count)}


def attack(hostile: Hostile) -> None:
    lake, far = hostile.lake, Position(0, MAX_OFFSET + 1)
    hostile.half("many headers", **many_headers())
    hostile.message("many headers on a message", **many_headers())
    hostile.send("many headers on an op", "op", b"{}", many_headers())
    odd: dict[str, Any] = {"": b"empty name", "bytes": b"\xff\xfe"}
    hostile.half("odd headers", **odd)
    lake.op("COMMIT", "many headers", hostile.sent["many headers"].position)
    lake.op("COMMIT", "odd headers", hostile.sent["odd headers"].position)

    hostile.half("id of 255 characters", __transactionId__=b"i" * 255)
    hostile.half("id of 256 characters", __transactionId__=b"i" * 256)
    hostile.half("far first half", FIRST_HALF=str(far).encode())
    hostile.op("far offset", far)
    hostile.op("far further offset", Position(0, 0), far)
    hostile.op("offset beyond 64 bits", Position(0, 2**64))
    recall = wire.RecallRecord(msg_id="m", topic="hostile", message=far)
    hostile.send("far recall", "op", wire.encode_recall(recall).value, {})

    for name in ODD_TOPICS:
        hostile.message(f"to {name}", name.encode(), REAL_TOPIC=name.encode())
    for name in ILLEGAL_TOPICS:
        hostile.message(f"to {name}", REAL_TOPIC=name.encode())

    hostile.send("deep op", "op", DEEP.encode(), {})
    hostile.op("deep half messages", half_messages=json.loads("[[[]]]"))
    hostile.send("long number", "op", f'{{"decision":"COMMIT","half_messages":{DIGITS}}}'.encode(), {})
    hostile.op("huge exponent", half_messages=[{"queue": 0, "offset": 1e300}])
    hostile.message("deep batch", f'{{"messages":{DEEP}}}'.encode(), BATCH=b"1")
    hostile.message("batch of a long number", f'{{"messages":[{DIGITS}]}}'.encode(), BATCH=b"1")
    hostile.message("batch of many", b'{"messages":[' + b"0," * MANY + b"0]}", BATCH=str(MANY + 1).encode())

    for name, ends in (("deep", DEEP), ("long", f"[{DIGITS}]"), ("many", "[" + "0," * MANY + "0]")):
        head = f'{{"ends":{ends},"properties":{ends}}}'.encode()
        count = str(MANY + 1 if name == "many" else 1).encode()
        hostile.message(f"{name} head", head, BATCH=count, BATCH_HEAD=str(len(head)).encode())

    # Few bytes a member, and a long id for each: 200 MB of ids, if they were made.
    many = b'{"ends":[' + b"0," * (MANY_MEMBERS - 1) + b'0],"properties":[' + b"{}," * (MANY_MEMBERS - 1) + b"{}]}"
    size = {"BATCH": str(MANY_MEMBERS).encode(), "BATCH_HEAD": str(len(many)).encode()}
    hostile.message("batch of empty members", many, **size, UNIQ_KEY=b"i" * 248)
    twice = b'{"ends":[1],"ends":[1],"properties":[{}]}'
    hostile.message("head with a name twice", twice + b"a", BATCH=b"1", BATCH_HEAD=str(len(twice)).encode())
    mine = lake.half("mine", group="honest")
    hostile.op("another group", mine, transaction="mine", group="hostile")
    hostile.op("another id", mine, transaction="yours", group="honest")
    lake.op("ROLLBACK", "mine", mine, group="honest")


@pytest.fixture(scope="module")
def hostile(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    with (
        Lake(broker.bootstrap_servers, "hostile.", tmp_path_factory.mktemp("hostile")) as lake,
        closing(Hostile(lake)) as acting,
    ):
        attack(acting)
        with_a_null_header(spark, lake, "messages")
        lake.run(spark, transaction_op_park_time="0s")
        for name in ODD_TOPICS:
            lake.op("COMMIT", name, lake.half(name, topic=name))
        lake.run(spark)
        yield acting


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("many headers on an op", "BAD_OP"),
        ("id of 256 characters", "MISSING_UNIQ_KEY"),
        ("far first half", "BAD_FIRST_HALF"),
        ("far offset", "BAD_OP"),
        ("far further offset", "BAD_OP"),
        ("offset beyond 64 bits", "BAD_OP"),
        ("far recall", "BAD_OP"),
        ("deep op", "BAD_OP"),
        ("deep half messages", "BAD_OP"),
        ("long number", "BAD_OP"),
        ("huge exponent", "BAD_OP"),
        ("deep batch", "BAD_BATCH"),
        ("batch of a long number", "BAD_BATCH"),
        ("batch of many", "BAD_BATCH"),
        ("deep head", "BAD_BATCH"),
        ("long head", "BAD_BATCH"),
        ("many head", "BAD_BATCH"),
        ("batch of empty members", "BAD_BATCH"),
        ("head with a name twice", "BAD_BATCH"),
        ("another group", "WRONG_PRODUCER_GROUP"),
        ("another id", "WRONG_TRANSACTION_ID"),
        *[(f"to {name}", "ILLEGAL_TOPIC") for name in ILLEGAL_TOPICS],
    ],
)
def test_what_no_honest_producer_sends_is_rejected(hostile: Hostile, name: str, reason: str) -> None:
    assert hostile.lake.rejected()[hostile.sent[name]]["reason"] == reason


def test_a_record_with_a_hundred_thousand_headers_lands_whole(hostile: Hostile) -> None:
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
    assert location(str(hostile.lake.root / "warehouse"), f"topics/{name}") == place


def test_no_topic_name_leads_out_of_the_directory_of_topics(hostile: Hostile) -> None:
    inside = {"hostile", "orders", *map(path_name, ODD_TOPICS)}
    assert set(hostile.lake.topics()) == inside
    assert "_delta_log" not in {path.name for path in hostile.lake.root.iterdir()}


def test_ops_of_another_group_or_id_do_not_decide(hostile: Hostile) -> None:
    ends = [row["state"] for row in hostile.lake.rows("transactions") if row["transaction_id"] == "mine"]
    assert ends == ["ROLLED_BACK"]


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
