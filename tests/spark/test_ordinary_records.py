"""The short way through classification judges ordinary records, and those just as the whole one does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from commitlake import config
from commitlake.coordinator.landing import classify
from commitlake.coordinator.landing.ordinary import Classification

pytestmark = pytest.mark.short

RAW = """topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary,
    headers array<struct<key: string, value: binary>>"""
LARGEST = 1_000
CONFIG = {"topics": {"allowed": ["order*"], "max_queues": 8}, "max_message_size": LARGEST}
ORDINARY = {"REAL_TOPIC": "orders", "UNIQ_KEY": "m", "PGROUP": "g"}
HEADERS: dict[str, Sequence[str]] = {
    "REAL_TOPIC": ("orders", "order-1", "payments", "a.b", "", "TBW102", "o" * 128, "orders\n"),
    "UNIQ_KEY": ("m", "m" * 255, "m" * 256, "", "ü", "\0"),
    "PGROUP": ("g", "", "g" * 256),
    "__transactionId__": ("t", "", "t" * 256),
    "REAL_QID": ("7", "8", "-1", "one", "", "07", "9" * 9, "9" * 10),
    "CHECK_IMMUNITY_TIME_IN_SECONDS": ("5", "soon", "9" * 15),
    "BORN_TIMESTAMP": ("1700000000123", "9223372036855", "now"),
    "TAGS": ("t", ""),
    "KEYS": ("k", "k l"),
    "color": ("red", ""),
    "TRAN_MSG": ("true",),
    "CHECK_ID": ("0-0-0-1",),
}
ODD: dict[str, Sequence[str]] = {
    "DELAY": ("3", "0", "", "x"),
    "TIMER_DELAY_MS": ("5", "-5"),
    "TIMER_DELIVER_MS": ("1767225600005",),
    "FIRST_HALF": ("3-12", "1-x", ""),
    "BATCH": ("1", ""),
    "BATCH_HEAD": ("2",),
}
OP = {"transaction_id": "t", "producer_group": "g", "decision": "COMMIT", "half_messages": [{"queue": 0, "offset": 1}]}
FIELDS: dict[str, Sequence[Any]] = {
    "decision": ("COMMIT", "ROLLBACK", "UNKNOWN", "RESUME", "RECALL", "commit", None, ["COMMIT"]),
    "transaction_id": ("t", "7", "true", "", None, 7, {"a": 1}, "t" * 256),
    "producer_group": ("g", "", None, "1e3", "-"),
    "half_messages": ([{"queue": 1, "offset": 2}] * 2, [], None, [{"queue": 40_000, "offset": 1}], [{"queue": "0"}]),
    "from_check": (True, False, None, "true"),
    "check_id": ("0-1-0-1", 5),
    "remark": ("why", "[x]", None, 5),
    "message_id": ("m",),
    "topic": ("orders",),
    "messages": ([{"queue": 0, "offset": 7}],),
    "more": ({"decision": 7},),
}
VALUES = (b"body", b"", None, b"\xff", b"x" * LARGEST, b"x" * (LARGEST + 1), b'{"messages":[]}')
BROKEN = (None, b"", b"[]", b"{", json.dumps(OP).encode() * 2, b'{"decision":"COMMIT"}\xff')

Sent = tuple[str, bytes | None, dict[str, bytes] | None]


def message(source: str, headers: Mapping[str, str], value: bytes | None = b"body") -> Sent:
    return source, value, {name: text.encode() for name, text in {**ORDINARY, **headers}.items()}


def op(source: str = "op", **fields: Any) -> Sent:
    return source, json.dumps({**OP, **fields}).encode(), None


def any_record(chosen: Random) -> Sent:
    """Most have one or two things that are not as usual, some have many."""
    of = {**HEADERS, **ODD} if chosen.random() < 0.4 else HEADERS
    if chosen.random() < 0.4:
        fields = chosen.sample(sorted(FIELDS), chosen.choice((0, 1, 1, 2, 5)))
        sent = op(chosen.choice(("op", "op", "op", "admin")), **{name: chosen.choice(FIELDS[name]) for name in fields})
        return (sent[0], chosen.choice(BROKEN), None) if chosen.random() < 0.1 else sent
    names = chosen.sample(sorted(of), chosen.choice((0, 1, 2, 2, 3, 6)))
    headers = {name: chosen.choice(of[name]) for name in names}
    source, value, read = message(chosen.choice(("half", "messages")), headers, chosen.choice((b"body", *VALUES)))
    for name in chosen.sample(sorted(ORDINARY), chosen.choice((0, 0, 0, 0, 1))):
        assert read is not None
        del read[name]
    return source, value, read if chosen.random() < 0.98 else None


def both(spark: SparkSession, sent: Sequence[Sent], **changes: object) -> list[tuple[Row, Row]]:
    """Each record, as the whole way and as the short way judge it."""
    spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
    stored = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        (f"commitlake.{source}", 1, at, stored, b"key", value, headers and list(headers.items()))
        for at, (source, value, headers) in enumerate(sent)
    ]
    conf = config.from_mapping({**CONFIG, **changes})
    records = classify.normalise(spark.createDataFrame(rows, RAW), conf.kafka.topic_prefix)
    whole, short = (classify.classify(records, steps) for steps in Classification.of(conf))
    columns = sorted(whole.columns)
    assert columns == sorted(short.columns)
    return list(zip(*(frame.select(columns).orderBy("offset").collect() for frame in (whole, short)), strict=True))


@pytest.mark.parametrize("reject", [False, True])
def test_a_record_that_the_short_way_judges_gets_the_same_row(spark: SparkSession, reject: bool) -> None:
    chosen = Random(reject)
    judged = [
        (whole, short)
        for whole, short in both(spark, [any_record(chosen) for _ in range(1_000)], transaction={"reject": reject})
        if short["is_judged"]
    ]
    assert len(judged) > 100
    for whole, short in judged:
        assert short == whole
        assert short["reason"] is None


def test_the_short_way_judges_what_is_ordinary_and_nothing_odd(spark: SparkSession) -> None:
    more: Sequence[Mapping[str, str]] = ({}, {"color": "red", "REAL_QID": "7"})
    ordinary = [
        *(message(source, headers) for source in ("half", "messages") for headers in more),
        *(op(decision=decision) for decision in ("COMMIT", "ROLLBACK", "UNKNOWN")),
    ]
    odd = [message("half", {name: values[0]}) for name, values in ODD.items() if name != "BATCH_HEAD"]
    odd += [op("admin"), op(remark=5)]
    assert [short["is_judged"] for _, short in both(spark, [*ordinary, *odd])] == [True] * 7 + [False] * len(odd)
