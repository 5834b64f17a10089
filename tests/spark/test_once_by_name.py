"""Once by name: a topic of `topics.dedup` shows a name once in its window, whatever kind of message comes second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake, Record, newest

from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.ops.audit import audit
from commitlake.protocol import message_batch, wire
from commitlake.protocol.encoding import Position
from commitlake.questions.history import history
from commitlake.questions.tables import opened

DEDUP = {
    "orders": {"by": "keys", "window": "30d"},
    "brief": {"window": "1s"},
    "ids": {"by": "message_id", "window": "1d"},
}


@pytest.fixture
def lake(broker: EmbeddedBroker, prefix: str, tmp_path: Path) -> Iterator[Lake]:
    with Lake(broker.bootstrap_servers, prefix, tmp_path, **{"topics.dedup": DEDUP}) as opened:
        yield opened


def test_the_first_to_be_visible_holds_a_name(lake: Lake, spark: SparkSession) -> None:
    first = lake.message("normal", topic="orders", keys="A")
    again = lake.message("again", queue=1, topic="orders", keys="A")
    lake.message("none", topic="orders")
    lake.message("none either", topic="orders", keys="")
    lake.message("elsewhere", topic="points", keys="A")
    pending, taken, free = (lake.half(name, keys=key) for name, key in (("1", "B"), ("2", "A"), ("3", "C")))
    part = lake.half("3", queue=1, first=free, topic="points", keys="C")
    lake.op("COMMIT", "2", taken)
    lake.op("COMMIT", "3", free, part)
    late = lake.message("late", topic="orders", keys="D", delays={"TIMER_DELAY_MS": "1"})
    lake.run(spark)

    assert visible(lake) == {"normal", "none", "none either", "3-0", "late"}
    assert ids(lake, "points") == {"elsewhere", "3-1"}
    rejected = lake.rejected()[Record("messages", *again)]
    assert (rejected["reason"], rejected["detail"]) == ("DUPLICATE_OF", f"messages-{first}")
    assert (rejected["value"], len(lake.rejected())) == (b"again", 1)

    # A start reads the names from the table; who is decided later comes second, however early it was stored.
    time.sleep(0.01)
    lake.message("B before", topic="orders", keys="B")
    lake.run(spark)
    lake.op("COMMIT", "1", pending)
    repeated = lake.half("4", keys="C")
    rolled_back = lake.half("5", keys="E")
    lake.op("COMMIT", "4", repeated)
    lake.op("ROLLBACK", "5", rolled_back)
    lake.message("E after a rollback", topic="orders", keys="E")
    lake.message("D again", topic="orders", keys="D")
    lake.message("D once more", topic="orders", keys="D", delays={"TIMER_DELAY_MS": "1"})
    lake.run(spark)

    assert visible(lake) == {"normal", "none", "none either", "3-0", "late", "B before", "E after a rollback"}
    ended = newest(lake.rows("transactions"))
    duplicates = {at: row["duplicate_of"] for at, row in ended.items() if row["duplicate_of"]}
    before = next(row for row in lake.topic("orders") if row["message_id"] == "B before")
    assert duplicates == {
        taken: f"messages-{first}",
        repeated: f"half-{free}",
        pending: f"messages-{before['source_queue']}-{before['source_offset']}",
    }
    assert {row["state"] for at, row in ended.items() if at in duplicates} == {"COMMITTED"}
    delivered = {row["message_id"]: (row["state"], row["duplicate_of"]) for row in lake.rows("deliveries")}
    assert delivered == {"late": ("DELIVERED", None), "D once more": ("DUPLICATE", f"messages-{late}")}
    report = audit(spark, str(lake.warehouse))
    assert report.is_well, report
    assert {counts.topic: counts.duplicates for counts in report.topics} == {"orders": 4, "points": 0}
    with opened(str(lake.warehouse)) as tables:
        told = history(tables, "2")
    assert told is not None and told["half_messages"][0]["visible"] is False
    assert any(f"not shown, duplicate of messages-{first}" in event["detail"] for event in told["events"])


def test_a_batch_is_refused_whole(lake: Lake, spark: SparkSession) -> None:
    first = batch(lake, "first", "A", "B")
    other = batch(lake, "other", "C", "B")
    itself = batch(lake, "itself", "D", "D")
    free = batch(lake, "free", "C", "D", "")
    lake.run(spark)
    assert visible(lake) == {"first 0", "first 1", "free 0", "free 1", "free 2"}
    details = {record.position: row["detail"] for record, row in lake.rejected().items()}
    assert details == {other: f"messages-{first}", itself: f"messages-{itself}"}
    assert free not in details


def test_a_name_is_free_after_its_window_and_may_be_the_message_id(lake: Lake, spark: SparkSession) -> None:
    for _ in range(2):
        lake.message("same", topic="brief", keys="A")
        lake.message("same", topic="ids")
    lake.run(spark)
    assert len(lake.topic("brief")) == len(lake.topic("ids")) == 1
    time.sleep(1.1)
    lake.message("same", topic="brief", keys="A")
    lake.message("same", topic="ids")
    lake.run(spark)
    assert (len(lake.topic("brief")), len(lake.topic("ids"))) == (2, 1)


def batch(lake: Lake, name: str, *keys: str) -> Position:
    members = [
        message_batch.Member(b"", {"UNIQ_KEY": f"{name} {number}", **({"KEYS": key} if key else {})})
        for number, key in enumerate(keys)
    ]
    record = wire.MessageRecord(topic="orders", msg_id=name, body=message_batch.pack(members), batch=len(members))
    return lake.send("messages", wire.encode_message(record), 0).position


def visible(lake: Lake) -> set[str]:
    return ids(lake, "orders")


def ids(lake: Lake, topic: str) -> set[str]:
    """The message ids that a topic shows; fails when it shows one twice."""
    found = [row["message_id"] for row in lake.topic(topic)]
    assert len(found) == len(set(found))
    return set(found)
