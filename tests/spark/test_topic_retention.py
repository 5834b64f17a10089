"""`topics.retention`: which rows of topic tables go by age, in which commits, and who is told."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as Table
from pyspark.sql import SparkSession
from tests.support.lake import Lake

import commitlake
from commitlake.config.values import Age
from commitlake.coordinator.maintenance.retention import delete_old_files
from commitlake.coordinator.maintenance.run import Maintenance, Report
from commitlake.spark import session
from commitlake.tables import TableName, Warehouse, topic_table
from commitlake.tables.direct_append import DirectAppend
from commitlake.tools.audit.audit import audit

ORDERS = "orders"


def maintenance(spark: SparkSession, lake: Lake, **ages: int) -> Maintenance:
    conf = lake.configured()
    topics = replace(conf.topics, retention={topic: Age(age) for topic, age in ages.items()})
    return Maintenance(Warehouse(spark, conf.warehouse), replace(conf, topics=topics))


def trimmed(spark: SparkSession, lake: Lake, **ages: int) -> Report:
    """A run that compacts no table: all tables of the story would take a minute."""
    found = maintenance(spark, lake, **ages)
    found._tables = lambda: iter(())  # type: ignore[method-assign]
    return found.run()


def millis(at: datetime) -> int:
    return round(at.timestamp() * 1_000)


def middle(lake: Lake) -> int:
    """A time at which some rows of `orders` were visible, and others not yet."""
    times = sorted({millis(row["visible_at"]) for row in lake.topic(ORDERS)})
    assert len(times) > 2
    return times[len(times) // 2]


def last_commit(lake: Lake, topic: str = ORDERS) -> list[dict[str, Any]]:
    table = Table(f"{lake.warehouse}/topics/{topic}")
    text = Path(f"{lake.warehouse}/topics/{topic}/_delta_log/{table.version():020}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def delete(spark: SparkSession, lake: Lake, before_ms: int) -> int:
    """The number of rows that went."""
    before = len(lake.topic(ORDERS))
    files = delete_old_files(Warehouse(spark, str(lake.warehouse)), ORDERS, before_ms, nullcontext)
    gone = before - len(lake.topic(ORDERS))
    assert (files > 0) == (gone > 0)
    return gone


def test_old_rows_go_in_a_commit_that_only_removes_files(spark: SparkSession, copied: Lake) -> None:
    before, cut = copied.topic(ORDERS), middle(copied)
    assert delete(spark, copied, cut) > 0
    left = {row["message_id"] for row in copied.topic(ORDERS)}
    young = {row["message_id"] for row in before if millis(row["visible_at"]) >= cut}
    assert young
    assert young <= left < {row["message_id"] for row in before}
    assert {next(iter(action)) for action in last_commit(copied)} == {"commitInfo", "remove"}
    assert last_commit(copied)[0]["commitInfo"]["operation"] == "Manual Update"


def test_notes_of_earlier_deletes_are_replaced(spark: SparkSession, copied: Lake) -> None:
    delete(spark, copied, middle(copied))
    delete(spark, copied, 1 << 42)
    notes = [row for row in copied.rows("maintenance") if row["topic"] == ORDERS]
    places = [(row["queue_id"], row["source_queue"]) for row in notes]
    assert len(places) == len(set(places)) > 0
    assert len({row["visible_before"] for row in notes}) == 1


def test_a_row_stays_while_a_younger_one_is_in_its_file(spark: SparkSession, copied: Lake) -> None:
    table = DeltaTable.forPath(spark, f"{copied.warehouse}/topics/{ORDERS}")
    before = copied.topic(ORDERS)
    table.optimize().executeCompaction()
    newest = {row["queue_id"]: 0 for row in before}
    for row in before:
        newest[row["queue_id"]] = max(newest[row["queue_id"]], millis(row["visible_at"]))
    last = max(newest.values())
    old = [row for row in before if newest[row["queue_id"]] < last]
    assert delete(spark, copied, last) == len(old) < len(before)
    assert delete(spark, copied, last + 1) == len(before) - len(old)


def test_a_stream_that_ignores_deletes_goes_on(spark: SparkSession, copied: Lake, tmp_path: Path) -> None:
    def new() -> int:
        stream = spark.readStream.format("delta").option("ignoreDeletes", "true")
        frames: list[int] = []
        query = (
            stream.load(f"{copied.warehouse}/topics/{ORDERS}")
            .writeStream.foreachBatch(lambda frame, _: frames.append(frame.count()))
            .option("checkpointLocation", str(tmp_path / "stream"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(frames)

    assert new() == len(copied.topic(ORDERS))
    assert delete(spark, copied, middle(copied)) > 0
    assert new() == 0


def test_maintenance_deletes_only_in_topics_with_an_age_and_the_audit_is_well(
    spark: SparkSession, copied: Lake
) -> None:
    before = {topic: len(copied.topic(topic)) for topic in copied.topics()}
    report = trimmed(spark, copied, default=0, orders=1)
    assert report.failed == []
    assert list(report.trimmed) == [ORDERS]
    assert len(copied.topic(ORDERS)) < before[ORDERS]
    assert {topic: len(copied.topic(topic)) for topic in before if topic != ORDERS} == {
        topic: count for topic, count in before.items() if topic != ORDERS
    }
    assert trimmed(spark, copied, default=1).failed == []
    assert audit(spark, str(copied.warehouse)).is_well


def test_the_audit_finds_a_row_that_is_missing_and_was_young(spark: SparkSession, copied: Lake) -> None:
    cut = middle(copied)
    delete(spark, copied, cut)
    gone = next(row for row in copied.topic(ORDERS) if row["batch_id"] is not None and millis(row["visible_at"]) > cut)
    Table(f"{copied.warehouse}/topics/{ORDERS}").delete(f"message_id = '{gone['message_id']}'")
    assert [finding.name for finding in audit(spark, str(copied.warehouse)).findings] == ["NOT_VISIBLE"]


def test_rows_of_a_batch_that_a_start_would_complete_stay(spark: SparkSession, copied: Lake) -> None:
    last = max(row["batch_id"] for row in copied.topic(ORDERS) if row["batch_id"] is not None)
    Table(f"{copied.warehouse}/batches").delete(f"batch_id >= {last}")
    assert delete(spark, copied, 1 << 42) > 0
    assert {row["batch_id"] for row in copied.topic(ORDERS)} == {last}


def test_a_kill_between_note_and_delete_leaves_all_rows_and_the_next_run_deletes_them(
    spark: SparkSession, copied: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, cut = len(copied.topic(ORDERS)), middle(copied)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DirectAppend, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            delete(spark, copied, cut)
    assert len(copied.topic(ORDERS)) == before
    assert audit(spark, str(copied.warehouse)).is_well
    assert delete(spark, copied, cut) > 0


def test_a_group_is_told_which_rows_it_has_missed(
    spark: SparkSession, copied: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    def read(most: int) -> list[str]:
        found = []
        with commitlake.consume({"warehouse": str(copied.warehouse)}, ORDERS, group="late", follow=False) as messages:
            for message in messages:
                found.append(str(message.message_id))
                message.done()
                if len(found) == most:
                    break
        return found

    assert len(read(1)) == 1
    with caplog.at_level(logging.WARNING):
        read(1)
        assert "topics.retention" not in caplog.text
        trimmed(spark, copied, orders=1)
        read(10_000)
    told = [record.getMessage() for record in caplog.records if "topics.retention deleted rows" in record.message]
    assert told
    assert all("'late' had not read: queue " in text for text in told)


def test_a_group_that_begins_after_the_delete_has_missed_nothing(
    spark: SparkSession, copied: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    trimmed(spark, copied, orders=1)
    with (
        caplog.at_level(logging.WARNING),
        commitlake.consume({"warehouse": str(copied.warehouse)}, ORDERS, group="new", follow=False) as messages,
    ):
        list(messages)
    assert "topics.retention" not in caplog.text


def test_compaction_makes_small_files_only_of_topics_with_an_age(
    spark: SparkSession, copied: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlake.coordinator.maintenance.run._FEW_FILES", 0)
    sizes: dict[str, int] = {}
    tidy = maintenance(spark, copied, orders=36_500 * 86_400_000)
    names = [topic_table(ORDERS), topic_table("delays"), TableName("half")]
    tidy._tables = lambda: iter([(name, name, 0) for name in names])  # type: ignore[method-assign]
    tidy._next_vacuum = dict.fromkeys(names, float("inf"))

    def compacted(table: Any) -> int:
        place = table.detail().select("location").collect()[0][0]
        sizes[place.rpartition("/")[2]] = int(str(tidy._files.spark.conf.get(next(iter(session.file_sizes(1))))))
        return 0

    monkeypatch.setattr("commitlake.coordinator.maintenance.run._compact", compacted)
    assert tidy.run().failed == []
    usual = session.LARGEST_FILE // 2
    assert sizes.pop(ORDERS) < usual
    assert set(sizes.values()) == {usual}
