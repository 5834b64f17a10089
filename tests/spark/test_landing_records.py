"""Which table a Kafka record goes to, and the reason when it is rejected. One Spark job classifies all."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from tests.support import message_values

from commitlake import config
from commitlake.config import Config
from commitlake.coordinator.landing import classify, land, landed_rows
from commitlake.errors import RecordError
from commitlake.protocol import delay, wire
from commitlake.protocol.encoding import MAX_OFFSET, born_ms
from commitlake.protocol.kafka_topics import LANDED
from commitlake.tables.columns import visible_at_sql
from commitlake.testing import landing
from commitlake.testing.codecs import Limits

pytestmark = pytest.mark.short

RAW = """topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary,
    headers array<struct<key: string, value: binary>>"""
STORED = datetime(2026, 1, 1, tzinfo=UTC)
STORED_MS = int(STORED.timestamp() * 1_000)
DAY_MS = 86_400_000
LARGEST = 5 << 20
CONFIG = {
    "topics": {"allowed": ["order*", "%RETRY%g", "pay?"], "max_queues": 8},
    "max_message_size": LARGEST,
    "delay": {"max": "40d"},
}
GOOD = {"REAL_TOPIC": "orders", "UNIQ_KEY": "m1", "PGROUP": "g"}
OP = {"transaction_id": "t", "producer_group": "g", "decision": "COMMIT", "half_messages": [{"queue": 0, "offset": 1}]}
RECALL: dict[str, Any] = {
    "decision": "RECALL",
    "message_id": "m",
    "topic": "orders",
    "messages": [{"queue": 0, "offset": 7}],
}
A = base64.b64encode(b"a").decode()
GOOD_OP = json.dumps(OP).encode()
FAR = MAX_OFFSET + 1
MANY = 100_000
DEEP = "[" * MANY + "]" * MANY
DIGITS = "9" * 10_000
BAD_LISTS: list[Any] = [[], None, [[[]]], {"queue": 0, "offset": 1}, [None], [{"queue": 0}]]
BAD_FIELDS: list[dict[str, Any]] = [
    *({"decision": decision} for decision in ("commit", ["COMMIT"], None)),
    *({"transaction_id": tid} for tid in (None, "", 7, {"a": 1})),
    *({"producer_group": None}, {"from_check": "true"}, {"remark": 5}),
    *({"half_messages": listed} for listed in BAD_LISTS),
    *({"half_messages": [{"queue": 0, "offset": offset}]} for offset in ("1", True, 1.0, 1.5, 1e300, -1, FAR, 2**64)),
    *({"half_messages": [{"queue": queue, "offset": 1}]} for queue in ("0", 32768)),
    {"half_messages": [{"queue": 0, "offset": offset} for offset in (0, FAR)]},
]
"""Each is what is wrong with an op."""
DELAYS = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
TRANSACTIONS = ("TRAN_MSG", "__transactionId__", "FIRST_HALF")

Headers = Mapping[str, Any]
Sent = tuple[str, bytes | None, bytes | None, list[tuple[str, bytes]] | None]
"""Topic, value, key and headers of a record."""


def record(
    source: str, headers: Headers | list[tuple[str, bytes]], value: bytes | None = b"body", key: bytes | None = None
) -> Sent:
    pairs = headers if isinstance(headers, list) else [(k, str(v).encode()) for k, v in headers.items()]
    return (f"commitlake.{source}", value, key, pairs or None)


def half(value: bytes | None = b"body", **headers: Any) -> Sent:
    return record("half", {**GOOD, **headers}, value)


def message(value: bytes | None = b"body", **headers: Any) -> Sent:
    return record("messages", {**GOOD, **headers}, value)


def op(source: str = "op", **fields: Any) -> Sent:
    return record(source, {}, json.dumps({**OP, **fields}).encode())


def op_bytes(value: bytes | None) -> Sent:
    return record("op", {}, value)


def batch(members: Any, count: Any = 1, **headers: Any) -> Sent:
    return message(json.dumps({"messages": members}).encode(), BATCH=count, **headers)


def joined(properties: Any, bodies: bytes = b"", ends: Any = None, count: Any = None, **headers: Any) -> Sent:
    """A batch with `BATCH_HEAD`; one body a byte where no ends are given."""
    ends = list(range(1, len(bodies) + 1)) if ends is None else ends
    head = json.dumps({"ends": ends, "properties": properties}).encode()
    named = {"BATCH": len(properties) if count is None else count, "BATCH_HEAD": len(head), **headers}
    return message(head + bodies, **named)


def raw_joined(head: bytes, bodies: bytes = b"", count: int = 1, **headers: Any) -> Sent:
    """A batch with a head that no honest producer writes."""
    return message(head + bodies, BATCH=count, BATCH_HEAD=len(head), **headers)


def keyed(sent: Sent, size: int) -> Sent:
    """A record with a sharding key of so many bytes."""
    topic, value, _, headers = sent
    return topic, value, b"k" * size, headers


def member(body: Any = A, **properties: Any) -> dict[str, Any]:
    return {"body": body, "properties": {"UNIQ_KEY": "k", **properties}}


def without(source: str, *names: str, **headers: Any) -> Sent:
    return record(source, {k: v for k, v in {**GOOD, **headers}.items() if k not in names})


REASONS: dict[str, dict[str, Sent]] = {
    "MISSING_REAL_TOPIC": {
        "no topic": without("half", "REAL_TOPIC"),
        "an empty topic": half(REAL_TOPIC=""),
        "a topic of 128 characters": half(REAL_TOPIC="o" * 128),
        "no headers at all": record("messages", {}),
        "no topic, before a bad queue id": without("half", "REAL_TOPIC", REAL_QID=-1),
    },
    "MISSING_UNIQ_KEY": {
        "no message id": without("half", "UNIQ_KEY"),
        "a message id of 256 characters": message(UNIQ_KEY="k" * 256),
        "an empty message id": half(UNIQ_KEY=""),
        "a transaction id of 256 characters": half(__transactionId__="i" * 256),
        "no id, before an illegal topic": without("half", "UNIQ_KEY", REAL_TOPIC="a.b"),
    },
    "MISSING_PRODUCER_GROUP": {
        "an empty group": half(PGROUP=""),
        "no group on a half message": without("half", "PGROUP"),
        "a group of 256 characters on a message": message(PGROUP="g" * 256),
        "no group, before an illegal topic": without("half", "PGROUP", REAL_TOPIC="a.b"),
    },
    "ILLEGAL_TOPIC": {
        "a topic with a dot": half(REAL_TOPIC="order.s"),
        "a topic that ends with a newline": half(REAL_TOPIC="orders\n"),
        "a topic that is not UTF-8": record(
            "half", [("REAL_TOPIC", b"order\xff"), ("UNIQ_KEY", b"m"), ("PGROUP", b"g")]
        ),
        **{
            f"the topic {name!r}": message(REAL_TOPIC=name)
            for name in ("_delta_log", "..", ".", "a/b", "~", "~2e", "a~b", "orders\x00", "a b", "é")
        },
        "a system topic": message(REAL_TOPIC="TBW102"),
        "a topic with the system prefix": message(REAL_TOPIC="RMQ_SYS_x"),
    },
    "TOPIC_NOT_ALLOWED": {
        "a topic that no pattern allows": message(REAL_TOPIC="payments"),
        "a topic not allowed, before a bad queue id": half(REAL_TOPIC="payments", REAL_QID=99),
    },
    "BAD_QUEUE_ID": {
        "a queue id beyond the last": message(REAL_QID=8),
        "a negative queue id": message(REAL_QID=-1),
        "a queue id that is no number": half(REAL_QID="one"),
        "a bad queue id, before no body": half(None, REAL_QID=99),
    },
    "NULL_BODY": {
        "no body": half(None),
    },
    "BODY_TOO_LARGE": {
        "a body one byte too large": half(b"x" * (LARGEST + 1)),
        "a large body, before a bad delay": half(b"x" * (LARGEST + 1), DELAY="x"),
        "a large batch, before a key that its members would multiply": keyed(
            message(b"x" * (LARGEST + 1), BATCH=1 << 16), 1_025
        ),
    },
    "BAD_BATCH": {
        "a half message that is a batch": half(BATCH=1),
        "a batch of another length": batch([member()], 2),
        "an empty batch": batch([], 0),
        "a batch whose count is no number": batch([member()], "x"),
        "a batch that is not JSON": message(b"{", BATCH=1),
        "a batch with something after it": message(json.dumps({"messages": [member()]}).encode() + b"x", BATCH=1),
        **{
            f"a batch with the member {each}": batch([each])
            for each in (
                *(None, "x", {"body": A}, {"body": A, "properties": {}}, {"properties": {"UNIQ_KEY": "k"}}),
                *(member(body) for body in (None, "A", "e A==", "ü")),
                *(member(UNIQ_KEY=key) for key in ("", "k" * 256, 7)),
                member(a=7),
            )
        },
        **{
            f"a batch with a member that has {name}": batch([member(**{name: "1"})])
            for name in (*DELAYS, *TRANSACTIONS, "CHECK_IMMUNITY_TIME_IN_SECONDS")
        },
        **{f"a batch with {name}": batch([member()], **{name: "1"}) for name in (*DELAYS, *TRANSACTIONS)},
        **{
            f"a batch of {value!r}": message(value, BATCH=1)
            for value in (b"", b"[]", b"{}", b'{"messages":{}}', b"\xff")
        },
        "a batch member for another topic": batch([member(REAL_TOPIC="pay1")]),
        "a batch for a retry topic": batch([member()], REAL_TOPIC="%RETRY%g"),
        "a joined batch of another length": joined([{}, {}], b"ab", count=3),
        "an empty joined batch": joined([], count=0),
        **{
            f"a joined batch of {bodies!r} with the ends {ends}": joined([{}] * count, bodies, ends, count)
            for count, bodies, ends in (
                *((2, b"a", None), (1, b"ab", None), (1, b"ab", [1]), (2, b"ab", [1, 3]), (3, b"abc", [2, 1, 3])),
                *((2, b"a", [end, 1]) for end in (-1, 2**63 - 1, 2**64)),
                *((1, b"a", ends) for ends in (["1"], [1.0], [True], 7)),
            )
        },
        "a joined batch whose properties are no list": joined({}, b"a", count=1),
        "a joined batch with a number that is none": raw_joined(b'{"ends":[1],"properties":[{}],"x":NaN}', b"a"),
        **{
            f"a joined batch with the head {head}": joined([{}], b"a", BATCH_HEAD=head)
            for head in ("x", 999_999_999, 0)
        },
        **{
            f"a joined batch with the member {each}": joined([each], b"a")
            for each in ({"UNIQ_KEY": ""}, {"a": 7}, None, {"DELAY": "1"}, {"REAL_TOPIC": "pay1"})
        },
        "a joined batch whose ids get too long": joined([{}], b"a", UNIQ_KEY="k" * 254),
        "a delayed joined batch": joined([{}], b"a", DELAY=1),
        "a batch of deep JSON": message(f'{{"messages":{DEEP}}}'.encode(), BATCH=1),
        "a batch of a long number": message(f'{{"messages":[{DIGITS}]}}'.encode(), BATCH=1),
        "a batch of many numbers": message(b'{"messages":[' + b"0," * MANY + b"0]}", BATCH=MANY + 1),
        "a joined batch of deep JSON": raw_joined(f'{{"ends":{DEEP},"properties":{DEEP}}}'.encode()),
        "a joined batch of long numbers": raw_joined(f'{{"ends":[{DIGITS}],"properties":[{DIGITS}]}}'.encode()),
        "a joined batch of many numbers": raw_joined(
            b'{"ends":[%b0],"properties":[%b0]}' % (b"0," * MANY, b"0," * MANY), count=MANY + 1
        ),
        # Few bytes a member, and a long id for each: 200 MB of ids, if they were made.
        "a joined batch of empty members": raw_joined(
            b'{"ends":[%b0],"properties":[%b{}]}' % (b"0," * 799_999, b"{}," * 799_999),
            count=800_000,
            UNIQ_KEY="i" * 248,
        ),
        "a joined batch whose head has a name twice": raw_joined(b'{"ends":[1],"ends":[1],"properties":[{}]}', b"a"),
        # 785 * 85_489 is 64 MiB and a byte.
        "a batch with a key of more than 64 MiB for all members": keyed(batch([member()] * 785, 785), 85_489),
        "a joined batch with a key of more than 64 MiB for all members": keyed(joined([{}] * 785, bytes(785)), 85_489),
        "one bad member among good ones": batch([member(), member("?")], 2),
        "a half batch, before a bad delay": half(BATCH=1, DELAY="x"),
    },
    "BAD_DELAY": {
        "a delay level that is no number": half(DELAY="1s"),
        "a broken delay": message(TIMER_DELAY_SEC="1.5"),
        "a bad delay, before a bad first half": half(DELAY="x", FIRST_HALF="x"),
    },
    "DELAY_TOO_LONG": {
        "a delay beyond the longest": half(TIMER_DELAY_MS=40 * DAY_MS + 1),
        "a due time beyond the longest delay": message(TIMER_DELIVER_MS=STORED_MS + 40 * DAY_MS + 1),
        "a delay of 30 digits": message(TIMER_DELAY_SEC="9" * 30),
        "a long delay, before a bad first half": half(TIMER_DELAY_SEC="9" * 10, FIRST_HALF="x"),
    },
    "BAD_FIRST_HALF": {
        "a malformed first half": half(FIRST_HALF="0:1"),
        "a first half in a queue that no Kafka has": half(FIRST_HALF="32768-1"),
        "a first half without an offset": half(FIRST_HALF="7"),
        "a first half beyond the last offset": half(FIRST_HALF=f"0-{FAR}"),
    },
    "BAD_OP": {
        "an op without a value": op_bytes(None),
        "an op with an empty value": op_bytes(b""),
        "an op with a hundred thousand headers": record("op", [(f"h{number}", b"v") for number in range(MANY)], b"{}"),
        "an op of deep JSON": op_bytes(DEEP.encode()),
        "an op of a long number": op_bytes(f'{{"decision":"COMMIT","half_messages":{DIGITS}}}'.encode()),
        **{
            f"an op of {value!r}": op_bytes(value)
            for value in (
                *(b"COMMIT", str(OP).encode(), json.dumps([OP]).encode(), b"%b x" % GOOD_OP, GOOD_OP * 2),
                json.dumps({**OP, "remark": "_"}).encode().replace(b"_", b"\xff"),
            )
        },
        **{f"an op with {fields}": op(**fields) for fields in BAD_FIELDS},
        "an op with 1 001 half messages": op(half_messages=[{"queue": 0, "offset": n} for n in range(1001)]),
        "a RESUME in op": op(decision="RESUME"),
        "a RECALL in admin": record("admin", {}, json.dumps(RECALL).encode()),
        "a RECALL of two messages": op_bytes(json.dumps({**RECALL, "messages": RECALL["messages"] * 2}).encode()),
        "a RECALL beyond the last offset": op_bytes(
            json.dumps({**RECALL, "messages": [{"queue": 0, "offset": FAR}]}).encode()
        ),
        "a RECALL that names a half message": op(decision="RECALL"),
        "a RECALL without an id": op_bytes(json.dumps({**RECALL, "message_id": None}).encode()),
    },
}
REJECTED = {name: (sent, reason) for reason, records in REASONS.items() for name, sent in records.items()}

ACCEPTED = {
    "a half message": (half(), "half"),
    "a half message with an empty body": (half(b""), "half"),
    "a half message with a body of just the largest size": (half(b"x" * LARGEST), "half"),
    "a further half message": (half(FIRST_HALF="3-12", __transactionId__="t"), "half"),
    "a further half message whose first is in a queue that is not there yet": (half(FIRST_HALF="4-1"), "half"),
    "an op for a queue that is not there yet": (op(half_messages=[{"queue": 4, "offset": 1}]), "op"),
    "a half message with a relative delay": (half(TIMER_DELAY_SEC=5), "half"),
    "a half message with a due time": (half(TIMER_DELIVER_MS=STORED_MS + 5), "half"),
    "a half message with immunity": (half(CHECK_IMMUNITY_TIME_IN_SECONDS="99999999999"), "half"),
    **{
        f"a half message with immunity {text!r}": (
            half(CHECK_IMMUNITY_TIME_IN_SECONDS=text, BORN_TIMESTAMP="now"),
            "half",
        )
        for text in ("-5", "1.5", "soon", "")
    },
    "a half message with headers of the coordinator": (
        half(TRANSACTION_CHECK_TIMES=15, CHECK_ID="0-0-0-1", color="red"),
        "half",
    ),
    "a half message that names a topic by two headers": (
        record(
            "half",
            [
                ("REAL_TOPIC", b"a.b"),
                ("UNIQ_KEY", b"m"),
                ("PGROUP", b"g"),
                ("REAL_TOPIC", b"orders"),
                ("u", b"\xff"),
                ("TRAN_MSG", b"x"),
            ],
            b"\xff\x00",
            b"\xfe",
        ),
        "half",
    ),
    "a message": (
        message(REAL_QID=7, TAGS="t", KEYS="k", BORN_TIMESTAMP="1700000000123", color="red", TRAN_MSG="true"),
        "topic",
    ),
    "a message born in the year 2262": (message(BORN_TIMESTAMP="9223372036854"), "topic"),
    "a message born when no reader can tell": (message(BORN_TIMESTAMP="9223372036855"), "topic"),
    "a batch born when no reader can tell": (
        batch([member(BORN_TIMESTAMP="253402300799999"), member()], 2, BORN_TIMESTAMP="9" * 18),
        "topic",
    ),
    "a message without a group": (without("messages", "PGROUP"), "topic"),
    "a message with a negative delay": (message(TIMER_DELAY_SEC=-5), "topic"),
    "a message with delay level 0": (message(DELAY=0), "topic"),
    "a message for an allowed topic": (message(REAL_TOPIC="pay1"), "topic"),
    "a delayed message": (message(DELAY=3), "delayed"),
    "a message due in the past": (message(TIMER_DELIVER_MS=1_000), "delayed"),
    "a batch": (batch([member(TAGS="t", color="red"), member("", KEYS="x")], 2, color="blue"), "topic"),
    "a joined batch": (
        joined(
            [{"TAGS": "t", "color": "red"}, {"UNIQ_KEY": "own", "KEYS": "x"}, {}], b"\xff\0b", [2, 2, 3], color="blue"
        ),
        "topic",
    ),
    "a batch with a key of just 64 MiB for all members": (
        keyed(batch([member()] * 1_024, 1_024, REAL_TOPIC="pay1"), 1 << 16),
        "topic",
    ),
    "a joined batch with a key of just 64 MiB for all members": (
        keyed(joined([{}] * 1_024, bytes(1_024), REAL_TOPIC="pay1"), 1 << 16),
        "topic",
    ),
    "a batch whose member names the topic of all": (batch([member(REAL_TOPIC="orders")]), "topic"),
    "a message with the header of a batch": (message(BATCH_HEAD="x"), "topic"),
    "an op": (op(from_check=True, remark="why"), "op"),
    "an op with more fields": (op(more={"decision": 7}), "op"),
    "an op whose transaction id looks like a number": (op(transaction_id="7"), "op"),
    "an op that lists a half message twice": (
        op(half_messages=[{"queue": 1, "offset": 2}, {"queue": 0, "offset": 1}, {"queue": 1, "offset": 2}]),
        "op",
    ),
    "an op with 1 000 half messages": (op(half_messages=[{"queue": 0, "offset": n} for n in range(1000)]), "op"),
    "an UNKNOWN": (op(decision="UNKNOWN"), "op"),
    "a RECALL": (op_bytes(json.dumps(RECALL).encode()), "op"),
    "an admin COMMIT without a group": (op("admin", producer_group=None), "op"),
    "an admin RESUME": (op("admin", decision="RESUME"), "op"),
}

_DELAYS: list[dict[str, Any]] = [
    {"DELAY": "1"},
    {"DELAY": "18"},
    {"DELAY": "19"},
    {"DELAY": "9" * 40},
    {"DELAY": "+2"},
    {"DELAY": "-2"},
    {"DELAY": "0"},
    {"DELAY": "2", "TIMER_DELAY_SEC": "7"},
    {"DELAY": "2", "TIMER_DELAY_SEC": "x"},
    {"DELAY": "-1", "TIMER_DELAY_SEC": "7"},
    {"TIMER_DELAY_SEC": "7", "TIMER_DELAY_MS": "8"},
    {"TIMER_DELAY_SEC": "-7", "TIMER_DELAY_MS": "8"},
    {"TIMER_DELAY_SEC": "", "TIMER_DELAY_MS": "0"},
    {"TIMER_DELAY_MS": "-0"},
    {"TIMER_DELAY_MS": "-" + "9" * 30},
    {"TIMER_DELAY_MS": "0" * 30 + "5"},
    {"TIMER_DELAY_MS": str(40 * DAY_MS)},
    {"TIMER_DELAY_SEC": str(40 * DAY_MS)},
    {"TIMER_DELIVER_MS": str(STORED_MS - 1)},
    {"TIMER_DELIVER_MS": str(STORED_MS + 40 * DAY_MS)},
    {"TIMER_DELIVER_MS": "9" * 19},
    {"TIMER_DELAY_MS": "-1", "TIMER_DELIVER_MS": "5"},
    {"TIMER_DELAY_MS": "\u0661"},
    {"DELAY": " 1"},
    {"DELAY": "1\n"},
    {"DELAY": "+"},
]

CASES = {
    **{name: case for name, (case, _) in {**REJECTED, **ACCEPTED}.items()},
    **{f"delay {headers}": half(**headers) for headers in _DELAYS},
}


@pytest.fixture(scope="module")
def conf() -> Config:
    return config.from_mapping(CONFIG)


def judged(spark: SparkSession, conf: Config, records: Iterable[tuple[Any, ...]]) -> DataFrame:
    """What landing says of records, each with the columns of `RAW`."""
    raw = spark.createDataFrame(records, RAW)
    return classify.classify(classify.normalise(raw, conf.kafka.topic_prefix), classify.classification(conf))


def stored(records: Iterable[Sent]) -> list[tuple[Any, ...]]:
    """Records of partition 1, one after the other."""
    return [(t, 1, offset, STORED, key, value, headers) for offset, (t, value, key, headers) in enumerate(records)]


def reasons(frame: DataFrame) -> dict[int, str | None]:
    """By offset."""
    return {row["offset"]: row["reason"] for row in frame.select("offset", "reason").collect()}


@pytest.fixture(scope="module")
def classified(spark: SparkSession, conf: Config) -> Iterator[DataFrame]:
    spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
    frame = judged(spark, conf, stored(CASES.values())).persist()
    yield frame
    frame.unpersist()


@pytest.fixture(scope="module")
def verdicts(classified: DataFrame) -> dict[str, Row]:
    rows = classified.select("offset", "target", "reason", "detail", "delay_ms", "deliver_ms").collect()
    by_offset = {row["offset"]: row for row in rows}
    assert len(rows) == len(CASES)
    return {name: by_offset[offset] for offset, name in enumerate(CASES)}


@pytest.mark.parametrize("name", REJECTED)
def test_bad_input_is_rejected_with_the_first_reason_that_applies(name: str, verdicts: dict[str, Row]) -> None:
    assert (verdicts[name]["reason"], verdicts[name]["target"]) == (REJECTED[name][1], "rejected")
    assert verdicts[name]["detail"]


def test_a_key_that_members_would_multiply_is_told_with_its_size(verdicts: dict[str, Row]) -> None:
    told = verdicts["a joined batch with a key of more than 64 MiB for all members"]["detail"]
    assert told.startswith("785 members with a key of 85489 bytes: together it may take 67108864")


@pytest.mark.parametrize("name", ACCEPTED)
def test_good_input_goes_to_its_table(name: str, verdicts: dict[str, Row]) -> None:
    assert (verdicts[name]["target"], verdicts[name]["reason"]) == (ACCEPTED[name][1], None)


def in_memory(case: Sent) -> Any:
    """The record as the coordinator in memory reads it, or the reason why it rejects it."""
    topic, value, key, headers = case
    limits = Limits(config.from_mapping(CONFIG).limits(()), STORED_MS)
    try:
        return landing.read(topic.removeprefix("commitlake."), wire.Encoded(key, value, headers or []), limits)  # type: ignore[arg-type]
    except RecordError as error:
        return error.reason


@pytest.mark.parametrize("name", [*REJECTED, *ACCEPTED])
def test_the_coordinator_in_memory_classifies_alike(name: str) -> None:
    case, expected = {**REJECTED, **ACCEPTED}[name]
    found = in_memory(case)
    assert not isinstance(found, str) if name in ACCEPTED else found == expected


@pytest.mark.parametrize("headers", _DELAYS, ids=str)
def test_delays_are_read_as_by_the_rules_in_python(
    headers: dict[str, Any], verdicts: dict[str, Row], conf: Config
) -> None:
    verdict = verdicts[f"delay {headers}"]
    try:
        expected = delay.parse(headers, conf.delay.levels_ms, conf.delay.max_ms, STORED_MS)
    except RecordError as error:
        assert verdict["reason"] == error.reason
    else:
        assert verdict["reason"] is None
        assert (verdict["delay_ms"], verdict["deliver_ms"]) == (expected or (None, None))


def rows_by_case(frame: DataFrame, offset: str) -> dict[str, list[Row]]:
    names = list(CASES)
    found: dict[str, list[Row]] = {}
    for row in frame.collect():
        found.setdefault(names[row[offset]], []).append(row)
    return found


def test_half_rows_keep_bytes_and_properties_and_have_defaults(classified: DataFrame) -> None:
    rows = rows_by_case(landed_rows.half_rows(classified), "queue_offset")
    (plain,) = rows["a half message"]
    assert (plain["transaction_id"], plain["queue_id"], plain["first_queue"]) == ("m1", 1, 1)
    assert rows["a half message with an empty body"][0]["body"] == b""
    assert rows["a half message with headers of the coordinator"][0]["properties"] == {"color": "red"}
    assert plain["first_offset"] == plain["queue_offset"]
    assert plain["check_immunity_s"] is None and plain["deliver_at"] is None and plain["born_at"] is None
    (odd,) = rows["a half message that names a topic by two headers"]
    assert (odd["topic"], odd["body"], odd["sharding_key"]) == ("orders", b"\xff\x00", b"\xfe")
    assert odd["properties"] == {"u": "\ufffd"}
    (further,) = rows["a further half message"]
    assert (further["first_queue"], further["first_offset"], further["transaction_id"]) == (3, 12, "t")
    assert rows["a half message with immunity"][0]["check_immunity_s"] == 2**31 - 1
    assert all(
        rows[f"a half message with immunity {text!r}"][0]["check_immunity_s"] is None for text in ("-5", "1.5", "")
    )
    assert rows["a half message with a relative delay"][0]["delay_ms"] == 5_000


def test_the_coordinator_in_memory_reads_the_same_half_messages(classified: DataFrame) -> None:
    names = ["transaction_id", "topic", "body", "sharding_key", "properties", "producer_group"]
    rows = rows_by_case(landed_rows.half_rows(classified), "queue_offset")
    for name, (row,) in rows.items():
        if name in ACCEPTED:
            found = in_memory(CASES[name])
            assert [getattr(found, each) for each in names] == [row[each] for each in names], name
            assert min(found.check_immunity_s or 0, 2**31 - 1) == (row["check_immunity_s"] or 0), name


def test_op_rows_hold_the_decision_and_each_place_once(classified: DataFrame) -> None:
    rows = rows_by_case(landed_rows.op_rows(classified), "op_offset")
    (plain,) = rows["an op"]
    assert (plain["queue"], plain["admin"], plain["from_check"], plain["remark"]) == (1, False, True, "why")
    assert plain["half_messages"] == [Row(queue=0, offset=1)]
    assert rows["an admin RESUME"][0]["admin"] is True
    twice = rows["an op that lists a half message twice"][0]["half_messages"]
    assert twice == [Row(queue=1, offset=2), Row(queue=0, offset=1)]
    (recall,) = rows["a RECALL"]
    assert (recall["message_id"], recall["topic"], recall["half_messages"]) == ("m", "orders", [Row(queue=0, offset=7)])
    assert recall["from_check"] is False


def test_delayed_rows_are_due_after_the_append_time_or_at_the_given_time(classified: DataFrame) -> None:
    rows = rows_by_case(
        landed_rows.delayed_rows(classified).selectExpr("*", "unix_millis(deliver_at) as due"), "queue_offset"
    )
    (relative,), (absolute,) = rows["a delayed message"], rows["a message due in the past"]
    assert (relative["delay_ms"], relative["due"]) == (10_000, STORED_MS + 10_000)
    assert (absolute["delay_ms"], absolute["due"]) == (None, 1_000)


def test_topic_rows_are_one_a_message_and_one_a_batch_member(classified: DataFrame) -> None:
    rows = rows_by_case(landed_rows.topic_rows(classified, 7).where("topic = 'orders'"), "source_offset")
    (plain,) = rows["a message"]
    assert (plain["queue_id"], plain["tags"], plain["keys"], plain["body"]) == (7, "t", "k", b"body")
    assert (plain["properties"], plain["source"], plain["source_index"]) == ({"color": "red"}, "messages", 0)
    assert (plain["transaction_id"], plain["batch_id"]) == (None, None)
    first, second = rows["a batch"]
    assert (first["message_id"], first["tags"], first["body"], first["source_index"]) == ("k", "t", b"a", 0)
    assert (first["properties"], first["producer_group"], first["queue_id"]) == ({"color": "red"}, "g", 1)
    assert (second["keys"], second["body"], second["source_index"]) == ("x", b"", 1)


def test_nobody_has_to_read_a_time_that_pandas_can_not_hold(classified: DataFrame) -> None:
    """Nor can Arrow's nanoseconds and `mapInPandas`: one such row would fail each reader of the topic."""
    topic = landed_rows.topic_rows(classified, 7).where("topic = 'orders'")
    rows = rows_by_case(topic.selectExpr("*", "unix_millis(born_at) as born"), "source_offset")
    assert [row["born"] for row in rows["a message born when no reader can tell"]] == [None]
    assert [row["born"] for row in rows["a batch born when no reader can tell"]] == [None, None]
    assert [row["born"] for row in rows["a message born in the year 2262"]] == [9_223_372_036_854]
    assert [born_ms(text) for text in ("9223372036854", "9223372036855")] == [9_223_372_036_854, None]


def test_a_joined_batch_has_bodies_as_they_are_and_ids_by_index(classified: DataFrame) -> None:
    rows = rows_by_case(landed_rows.topic_rows(classified, 7).where("topic = 'orders'"), "source_offset")
    first, second, third = sorted(rows["a joined batch"], key=lambda row: row["source_index"])
    assert [each["body"] for each in (first, second, third)] == [b"\xff\0", b"", b"b"]
    assert [each["message_id"] for each in (first, second, third)] == ["m1-0", "own", "m1-2"]
    assert (first["tags"], first["properties"], first["producer_group"]) == ("t", {"color": "red"}, "g")
    assert (second["keys"], third["tags"], third["properties"]) == ("x", None, {})


def test_each_member_of_a_batch_counts_as_a_row(classified: DataFrame) -> None:
    counts = land._count(classified, {"orders"})
    shown = landed_rows.topic_rows(classified, 7).count()
    assert sum(row["rows"] for row in counts if row["target"] == classify.TOPIC) == shown
    assert sum(row["n"] for row in counts if row["target"] == classify.TOPIC) < shown


def test_nothing_is_visible_before_it_was_stored(classified: DataFrame) -> None:
    topic = (
        landed_rows.topic_rows(classified, 7).where("topic = 'orders'").selectExpr("*", visible_at_sql(STORED_MS - 5))
    )
    assert topic.selectExpr("visible_at >= stored_at as ok").distinct().collect() == [Row(ok=True)]


def test_rejected_rows_hold_the_original_bytes(classified: DataFrame) -> None:
    rows = rows_by_case(landed_rows.rejected_rows(classified, STORED_MS), "kafka_offset")
    (row,) = rows["a topic that is not UTF-8"]
    assert (row["source"], row["kafka_partition"], row["value"]) == ("half", 1, b"body")
    assert row["headers"] == {"REAL_TOPIC": b"order\xff", "UNIQ_KEY": b"m", "PGROUP": b"g"}


def test_rejected_transactions_are_the_last_reason_of_all(spark: SparkSession) -> None:
    conf = config.from_mapping({"transaction": {"reject": True}})
    records = [half(), half(REAL_QID=99), half(FIRST_HALF="x"), message()]
    found = reasons(judged(spark, conf, stored(records)))
    assert found == {0: "TRANSACTIONS_REJECTED", 1: "BAD_QUEUE_ID", 2: "BAD_FIRST_HALF", 3: None}


def test_a_half_message_that_names_itself_as_first_is_rejected(spark: SparkSession, conf: Config) -> None:
    found = reasons(judged(spark, conf, stored([half(FIRST_HALF="1-1")] * 2)))
    assert found == {0: None, 1: "BAD_FIRST_HALF"}


def test_topics_beyond_topics_max_are_rejected_before_later_reasons(classified: DataFrame) -> None:
    closed = classify.close_topics(classified, {"orders"})
    rows = {list(CASES)[row["offset"]]: row for row in closed.select("offset", "target", "reason").collect()}
    assert rows["a message for an allowed topic"]["reason"] == "TOPIC_NOT_ALLOWED"
    assert rows["a batch for a retry topic"]["reason"] == "TOPIC_NOT_ALLOWED"
    assert rows["a topic with a dot"]["reason"] == "ILLEGAL_TOPIC"
    assert rows["a message"]["target"] == "topic"
    assert rows["an op"]["target"] == "op"


VECTORS = sorted(Path(__file__).parents[1].glob("vectors/*.json"))


def test_every_vector_that_lands_is_accepted(spark: SparkSession) -> None:
    conf = config.from_mapping({})
    vectors = [json.loads(path.read_text()) for path in VECTORS]
    raw = [
        (
            *(f"commitlake.{vector['topic']}", 0, 1_000 + at, STORED, None, vector["value"].encode()),
            [(name, text.encode()) for name, text in vector["headers"].items()],
        )
        for at, vector in enumerate(vectors)
        if vector["topic"] in LANDED
    ]
    found = reasons(judged(spark, conf, raw))
    assert len(found) >= 10
    assert set(found.values()) == {None}


def test_spark_takes_and_refuses_the_values_of_messages_as_a_producer_does(spark: SparkSession) -> None:
    """Those that a record has as they are; `tests/property/test_message_values.py` asks the same without Spark."""
    told: list[tuple[Any, ...]] = []
    raw: list[tuple[Any, ...]] = []
    for source, path in (("half", "half"), ("messages", "message")):
        for name in message_values.TYPED:
            for value in filter(partial(message_values.is_typed, name), message_values.VALUES):
                reason = message_values.refusal(partial(message_values.sent, path, {name: value}))
                if reason == "ILLEGAL_MESSAGE_TAG" or (name == "deliver_at" and reason == "BAD_DELAY"):
                    continue  # a producer's own: of other clients landing takes them
                if reason is None:
                    _, encoded = message_values.sent(path, {name: value})
                else:
                    encoded = message_values.bare(name, value)
                raw.append((f"commitlake.{source}", 1, len(raw), message_values.NOW, *encoded))
                told.append((source, name, message_values.plain(value), reason))
    conf = config.from_mapping(message_values.CONFIG)
    found = reasons(judged(spark, conf, raw))
    differ = [(*what, found[offset]) for offset, what in enumerate(told) if what[3] != found[offset]]
    assert differ == []
    assert len({what[3] for what in told}) == 8  # the seven reasons that one value can have, and none
