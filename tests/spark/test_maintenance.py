"""Maintenance: what may go by age, what never goes, and that nobody who reads notices."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.support.lake import Lake, newest
from tests.support.polling import wait_for
from tests.support.story import Story

from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.landing import positions
from commitlake.coordinator.maintenance import run as maintenance_run
from commitlake.coordinator.maintenance.run import Maintenance, Pause, at_intervals
from commitlake.coordinator.recovery import fencing, rebuild, snapshot
from commitlake.errors import FencedError, WarehouseError
from commitlake.protocol.encoding import Position
from commitlake.tables import TABLES, Warehouse, topic_table
from commitlake.tools.cli import commands

WRITTEN = ("transactions", "deliveries", "discarded", "checks", "rejected")
HOUR_MS = 3_600_000


def maintenance(
    spark: SparkSession,
    lake: Lake,
    retention_ms: int = 0,
    go_on: Callable[[], bool] = lambda: True,
    pause: Pause = nullcontext,
) -> Maintenance:
    """With a park time of 0 everything that has ended is old."""
    conf = lake.configured(transaction_op_park_time="0s")
    keep = replace(conf.maintenance, retention_ms=retention_ms)
    return Maintenance(Warehouse(spark, conf.warehouse), replace(conf, maintenance=keep), pause, go_on)


def has_next(steps: Iterator[int]) -> bool:
    return next(steps, None) is not None


def places(rows: list[dict[str, Any]], offset: str = "queue_offset") -> set[Position]:
    return {Position(row["queue"], row[offset]) for row in rows}


def highest(found: set[Position]) -> set[Position]:
    return {max(at for at in found if at.queue == queue) for queue in {at.queue for at in found}}


def topic_rows(lake: Lake) -> dict[str, list[tuple[object, ...]]]:
    return {topic: sorted(map(_key, lake.topic(topic))) for topic in lake.topics()}


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    return (row["source"], row["source_queue"], row["source_offset"], row["body"], row["batch_id"])


@pytest.fixture(scope="module")
def maintained(spark: SparkSession, story: Story, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with story.lake.copied(tmp_path_factory.mktemp("maintained")) as lake:
        maintenance(spark, lake).run()
        yield lake


def test_a_run_prints_nothing(spark: SparkSession, copied: Lake) -> None:
    jvm: Any = spark.sparkContext._jvm
    printed = jvm.java.io.ByteArrayOutputStream()
    getattr(getattr(jvm.scala, "Console$"), "MODULE$").setOutDirect(jvm.java.io.PrintStream(printed, True))
    maintenance(spark, copied).run()
    assert printed.toString() == ""


def test_only_what_is_open_undelivered_or_resumable_stays(story: Story, maintained: Lake) -> None:
    before = story.lake.rows("half")
    ended = newest(story.lake.rows("transactions"))
    delivered = {(row["source"], row["queue"], row["queue_offset"]) for row in story.lake.rows("deliveries")}

    def is_done(row: dict[str, Any]) -> bool:
        at = (row["queue"], row["queue_offset"])
        end = ended.get(at)
        if end is None or (end["state"] == "DISCARDED" and end["reason"] != "ORPHAN"):
            return False
        return end["deliver_at"] is None or ("half", *at) in delivered

    last_ops = {(op["queue"], op["admin"]): op for op in sorted(story.lake.rows("op"), key=lambda op: op["op_offset"])}
    named = {(op["half_messages"][0]["queue"], op["half_messages"][0]["offset"]) for op in last_ops.values()}
    firsts: dict[tuple[int, int], list[bool]] = {first: [False] for first in named}
    for row in before:
        firsts.setdefault((row["first_queue"], row["first_offset"]), []).append(is_done(row))
    stays = {
        Position(row["queue"], row["queue_offset"])
        for row in before
        if not all(firsts[row["first_queue"], row["first_offset"]])
    }
    kept = stays | highest(places(before))
    assert stays
    assert places(maintained.rows("half")) == kept
    assert places(maintained.rows("transactions"), "half_offset") == kept & places(
        story.lake.rows("transactions"), "half_offset"
    )
    assert places(maintained.rows("checks"), "half_offset") <= kept
    delayed = places(story.lake.rows("delayed"))
    waiting = {at for at in delayed if ("messages", *at) not in delivered}
    assert places(maintained.rows("delayed")) == waiting | highest(delayed)


def test_what_an_op_repeats_long_after_the_end_stays(story: Story, maintained: Lake, copied: Lake) -> None:
    gone = places(story.lake.rows("half")) - places(maintained.rows("half"))
    op = next(
        row for row in story.lake.rows("op")
        if row["decision"] == "COMMIT" and Position(*row["half_messages"][0].values()) in gone
    )  # fmt: skip
    table = DeltaTable(f"{copied.warehouse}/op")
    same = pc.equal(pc.field("queue"), op["queue"]) & pc.equal(pc.field("op_offset"), op["op_offset"])
    repeated = table.to_pyarrow_dataset().to_table(filter=same)
    at, kind = repeated.schema.get_field_index("stored_at"), repeated.schema.field("stored_at").type
    later = pa.array([datetime.now(UTC) + timedelta(hours=1)] * len(repeated), kind)
    write_deltalake(table, repeated.set_column(at, "stored_at", later), mode="append")
    assert maintenance(story.spark, copied).run().deleted["half"] > 0
    assert Position(*op["half_messages"][0].values()) in places(copied.rows("half"))


def test_a_refused_part_of_what_can_be_resumed_stays(story: Story, copied: Lake) -> None:
    half = next(row for row in story.lake.rows("discarded") if row["reason"] != "ORPHAN")
    named = {"FIRST_HALF": f"{half['first_queue']}-{half['first_offset']}".encode()}
    rows = [
        {"source": "half", "kafka_partition": 0, "kafka_offset": offset, "reason": "TOPIC_NOT_ALLOWED", "value": b"",
         "headers": [*headers.items()], "rejected_at": datetime(2020, 1, 1, tzinfo=UTC)}
        for offset, headers in ((0, named), (1, {}), (2, {}))
    ]  # fmt: skip
    table = DeltaTable(f"{copied.warehouse}/rejected")
    write_deltalake(table, pa.Table.from_pylist(rows, table.to_pyarrow_dataset().schema), mode="append")
    maintenance(story.spark, copied).run()
    left = {row["kafka_offset"] for row in copied.rows("rejected") if row["source"] == "half"}
    assert left & {0, 1} == {0}, "the highest of a partition stays anyway"


def test_without_saved_rows_nothing_is_deleted(
    spark: SparkSession, copied: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise WarehouseError("the disk is full")

    monkeypatch.setattr(rebuild, "save_snapshot", fails)
    report = maintenance(spark, copied).run()
    assert (report.deleted, report.kept) == ({}, "none, what is open could not be saved")
    assert report.failed == ["saving what is open: the disk is full"]


def test_topic_tables_keep_every_row(story: Story, maintained: Lake) -> None:
    assert topic_rows(maintained) == topic_rows(story.lake)


@pytest.mark.soak
def test_tables_know_replaced_files_for_as_long_as_these_are_kept(spark: SparkSession, maintained: Lake) -> None:
    tables, property = Warehouse(spark, maintained.config.warehouse), "delta.deletedFileRetentionDuration"
    assert tables.property("half", property) == "interval 3600 seconds"
    assert tables.property(topic_table("orders"), property) == "interval 604800 seconds"
    tables.set_property(topic_table("orders"), property, "interval 1 day")  # as versions before had it
    maintenance(spark, maintained).run()
    assert tables.property(topic_table("orders"), property) == "interval 604800 seconds"


def test_no_row_is_deleted_before_its_age(spark: SparkSession, copied: Lake) -> None:
    kept = [name for name in TABLES if name != "open_rows"]  # each run saves them anew
    before = {name: len(copied.rows(name)) for name in kept}
    report = maintenance(spark, copied, retention_ms=HOUR_MS).run()
    assert report.deleted == {}
    assert {name: len(copied.rows(name)) for name in kept} == before


def test_where_nothing_is_old_no_query_holds_rounds_up(
    spark: SparkSession, copied: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    monkeypatch.setattr("commitlake.coordinator.landing.positions.uncommitted", lambda *_: looks.append(_))
    pauses = iter(range(1))

    @contextmanager
    def pause() -> Iterator[None]:
        assert has_next(pauses), "the first is for appends that were held up"
        yield

    assert maintenance(spark, copied, HOUR_MS, pause=pause).run().failed == []
    assert looks == []


@pytest.mark.parametrize(("table", "offset"), [("half", "queue_offset"), (topic_table("orders"), "source_offset")])
def test_rows_of_a_landing_that_was_cut_short_stay_as_topics_do_anyway(
    spark: SparkSession, copied: Lake, table: str, offset: str
) -> None:
    """A look through the tables of a hundred topics held all batches up for half a minute."""
    tables = Warehouse(spark, copied.config.warehouse)
    row = tables.read(table).limit(1).withColumn(offset, F.lit(1_000_000_000).cast("bigint"))
    last = positions.newest(tables)
    assert last is not None
    marker = {"landing_id": last.landing_id + 1}
    tables.append(row if table == "half" else row.withColumn("source", F.lit("messages")), table, marker)
    report = maintenance(spark, copied).run()
    assert (bool(report.kept), bool(report.deleted)) == ((True, False) if table == "half" else (False, True))


@pytest.mark.timeout(600)
@pytest.mark.soak
def test_a_kill_between_two_deletes_repeats_nothing(spark: SparkSession, copied: Lake) -> None:
    visible = topic_rows(copied)
    for deletes in (1, 2, 4, 9):  # after `op`, `half`, `transactions`, and all
        steps = iter(range(deletes))
        maintenance(spark, copied, go_on=partial(has_next, steps)).run()
        written = {name: len(copied.rows(name)) for name in WRITTEN}
        copied.run(spark, transaction_op_park_time="0s")
        assert {name: len(copied.rows(name)) for name in WRITTEN} == written
        assert topic_rows(copied) == visible


@pytest.mark.soak
def test_a_discarded_transaction_can_be_resumed_after_maintenance(
    spark: SparkSession, story: Story, maintained: Lake
) -> None:
    at = story.half["wrong id"]  # discarded after its checks
    assert newest(maintained.rows("transactions"))[at]["state"] == "DISCARDED"
    maintained.admin("RESUME", "wrong id", at)
    maintained.run(spark)
    maintained.op("COMMIT", "wrong id", at)
    maintained.run(spark)
    assert newest(maintained.rows("transactions"))[at]["state"] == "COMMITTED"
    assert [r["body"] for r in maintained.topic("orders")].count(b"wrong id") == 1


@pytest.mark.soak
def test_compaction_makes_few_files_and_streams_of_readers_go_on(
    spark: SparkSession, copied: Lake, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tables, place = Warehouse(spark, copied.config.warehouse), str(tmp_path_factory.mktemp("consumer"))
    rows = [row for row in tables.read(topic_table("orders")).limit(1).collect()]
    for _ in range(20):
        tables.append(spark.createDataFrame(rows, tables.read(topic_table("orders")).schema), topic_table("orders"))
    before = tables.read(topic_table("orders"))

    def consume() -> None:
        stream = spark.readStream.format("delta").load(tables.locate(topic_table("orders")))
        writer = stream.writeStream.format("delta").option("checkpointLocation", f"{place}/checkpoint")
        writer.trigger(availableNow=True).start(f"{place}/table").awaitTermination()

    consume()
    report = maintenance(spark, copied).run()
    assert report.compacted["topics/orders"] > 20
    consume()
    read = spark.read.format("delta").load(f"{place}/table")
    assert_df_equality(read.drop("properties"), before.drop("properties"), ignore_row_order=True)
    assert tables.table(topic_table("orders")).detail().collect()[0]["numFiles"] <= 4


@pytest.mark.soak
def test_a_failure_on_one_table_is_reported_and_the_others_proceed(spark: SparkSession, copied: Lake) -> None:
    shutil.rmtree(copied.root / "warehouse/checks/_delta_log")
    report = maintenance(spark, copied).run()
    failed = [failure.partition(":")[0] for failure in report.failed]
    assert failed == ["saving what is open", "deleting old rows", "checks"], report
    assert report.deleted["op"]


@pytest.mark.soak
def test_old_commits_leave_the_log_with_their_files(spark: SparkSession, copied: Lake) -> None:
    tables = Warehouse(spark, copied.config.warehouse)
    for number in range(60):
        tables.set_property("op", "commitlake.test", str(number))
    log = copied.root / "warehouse/op/_delta_log"
    rows, last = len(copied.rows("op")), tables.version("op")
    begun = time.time() - 2 * HOUR_MS / 1_000
    for path in log.iterdir():
        number = int(found[0]) if (found := re.search(r"\d{20}", path.name)) else last
        if number <= last - 5:
            os.utime(path, (begun + number, begun + number))
    maintenance(spark, copied).run()
    kept = sorted(int(path.stem) for path in log.glob("*.json"))
    assert 0 < kept[0] <= last - 5, "up to a checkpoint"
    assert tables.read("op").count() == len(copied.rows("op")) <= rows


@pytest.mark.soak
def test_the_coordinator_maintains_at_its_interval_while_it_works(spark: SparkSession, copied: Lake) -> None:
    changes = {"maintenance_interval": "3s", "transaction_op_park_time": "0s"}
    conf = copied.configured(**changes)
    conf = replace(conf, maintenance=replace(conf.maintenance, retention_ms=0))
    at, newest_half = copied.half("while maintained"), copied.half("the newest of its queue")
    with Coordinator(spark, conf).start() as running:
        copied.op("COMMIT", "while maintained", at)
        copied.op("COMMIT", "the newest of its queue", newest_half)  # it stays, with the newest op
        wait_for(lambda: running.await_termination(timeout=0) or has_maintained(copied, at), 300)  # two runs
    assert [row["body"] for row in copied.topic("orders")].count(b"while maintained") == 1


def has_maintained(lake: Lake, at: Position) -> bool:
    """Whether what stood at a place has become visible, and then its rows were old enough to go."""
    visible = any(row["body"] == b"while maintained" for row in lake.topic("orders"))
    return visible and bool(lake.rows("maintenance")) and at not in places(lake.rows("transactions"), "half_offset")


@pytest.mark.soak
def test_the_command_refuses_a_warehouse_whose_coordinator_runs(spark: SparkSession, copied: Lake) -> None:
    with fencing.lock(copied.config, spark), pytest.raises(FencedError, match="another coordinator runs"):
        commands.maintain(copied.config)
    assert commands.maintain(copied.config) == 0


@pytest.mark.usefixtures("spark")
def test_the_command_fails_where_there_are_no_tables(copied: Lake) -> None:
    with pytest.raises(WarehouseError, match="there are no tables at"):
        commands.maintain(copied.configured(warehouse=str(copied.root / "elsewhere")))


def test_open_rows_are_saved_between_two_runs(
    spark: SparkSession, copied: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that took long is not soon followed by the next, and one that failed is told."""
    monkeypatch.setattr(maintenance_run, "_SAVE_EVERY_S", 0.1)
    stopping, saved = threading.Event(), list[float]()

    def save(*_: object) -> None:
        saved.append(time.monotonic())
        if len(saved) == 2:
            time.sleep(0.1)
            raise WarehouseError("the store is away")

    monkeypatch.setattr(rebuild, "save_snapshot", save)
    end = at_intervals(maintenance(spark, copied), 3_600_000, stopping, lambda: None)
    wait_for(lambda: len(saved) >= 3)  # the next one comes within the pause of a look
    stopping.set()
    assert end(60)
    assert saved[2] - saved[1] >= 2
    assert caplog.messages == ["saving what is open failed, and is tried again: the store is away"]


def test_few_records_are_joined_by_plain_settings_and_a_history_by_its_own(
    spark: SparkSession, copied: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = list[Warehouse]()

    def open_rows(own: Warehouse, *_: object) -> DataFrame:
        used.append(own)
        return own.read("open_rows")

    monkeypatch.setattr(rebuild, "open_rows", open_rows)
    monkeypatch.setattr(snapshot, "save", lambda *_: None)
    tidy = maintenance(spark, copied)
    tidy.save_open_rows()
    monkeypatch.setattr(rebuild, "_SMALL", -1)
    tidy.save_open_rows()
    assert used == [tidy._plain, tidy._warehouse]


def test_a_stop_cuts_a_long_run_short(
    spark: SparkSession, copied: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A compaction may take half a minute; who stops a process gives it 30 s."""
    tracker, stopping = spark.sparkContext.statusTracker(), threading.Event()

    def sleep(*_: object) -> None:
        spark.range(1).selectExpr("java_method('java.lang.Thread', 'sleep', 20000L)").collect()

    monkeypatch.setattr(rebuild, "save_snapshot", sleep)
    tidy = maintenance(spark, copied, go_on=lambda: not stopping.is_set())
    end = at_intervals(tidy, 1, stopping, lambda: None)
    wait_for(lambda: tracker.getJobIdsForGroup(tidy._jobs))
    stopping.set()
    begun = time.monotonic()
    end(60)
    assert time.monotonic() - begun < 15
    assert not any(each.name == "maintenance" for each in threading.enumerate())
    assert caplog.text == ""
