"""Records that are few, and rows that are not: what the driver would hold of them is counted before it holds any."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from commitlake import config
from commitlake.coordinator.coordination import batch_rows
from commitlake.coordinator.dedup.dedup_index import DedupIndex
from commitlake.coordinator.landing.land import Landed, Landing
from commitlake.coordinator.landing.ordinary import Classification
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.landing.topic_admission import Topics
from commitlake.protocol.clock import BrokerClock
from commitlake.protocol.states import Event
from commitlake.spark.frames import of_rows
from commitlake.tables import Warehouse
from commitlake.tables.schemas import TABLES
from commitlake.tables.small_files import MOST_BYTES, MOST_ROWS

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
