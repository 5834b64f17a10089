"""Corners in which a promise broke: what is open, told at awkward moments, the watermark, and parts of a round."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from tests.support.lake import Lake
from tests.support.polling import WAIT_S, patience, wait_for

from commitlake import config
from commitlake.coordinator.coordination import input_table
from commitlake.coordinator.coordination.events import Events, Timers
from commitlake.coordinator.coordination.input_table import InputTable, SegmentKey
from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.landing import positions, query
from commitlake.coordinator.landing.land import Landed
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.maintenance.run import Maintenance
from commitlake.coordinator.recovery import rebuild, snapshot
from commitlake.coordinator.recovery.fencing import EpochGuard
from commitlake.coordinator.scheduler import Scheduler
from commitlake.errors import NoTableError, WarehouseError
from commitlake.protocol.clock import BrokerClock, now_ms
from commitlake.protocol.statemachine.rows import ABSENT
from commitlake.tables import Warehouse

DAY = {"TIMER_DELAY_SEC": "86400"}


class Killed(Exception):
    """What stands for a kill."""


def killed_after_the_ledger(lake: Lake) -> Callable[[Warehouse, LandingPosition], None]:
    """In place of `positions.append`: a kill when the batch of the first landing has written its ledger rows."""
    append = positions.append

    def killed(warehouse: Warehouse, position: LandingPosition) -> None:
        if position.landing_id >= 1:
            wait_for(lambda: lake.rows("transactions"))
            raise Killed
        append(warehouse, position)

    return killed


def test_what_was_saved_while_a_position_was_missing_is_open_once(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delayed message stood in the saved rows and in the ledger, and was shown twice."""
    lake.op("COMMIT", "d", lake.half("d", delays=DAY))
    with monkeypatch.context() as patched, pytest.raises(Exception, match="Killed"):
        patched.setattr(positions, "append", killed_after_the_ledger(lake))
        lake.run(spark)
    warehouse, timing = Warehouse(spark, lake.config.warehouse), lake.config.transaction
    assert lake.rows("batches") == [], "a batch is complete after the position of its landing"
    for _ in range(2):
        rebuild.save_snapshot(warehouse, timing)
        saved = rebuild.open_rows(warehouse, timing, snapshot.newest(warehouse, timing)).collect()
        assert sorted(saved) == sorted(rebuild.open_rows(warehouse, timing).collect())
        lake.run(spark)
    rebuild.save_snapshot(warehouse, timing)
    saved = rebuild.open_rows(warehouse, timing, snapshot.newest(warehouse, timing)).collect()
    assert len(saved) == 1


def test_a_batch_that_a_start_completes_before_its_landing_is_no_point_to_save(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.commit("a")
    lake.half("open")
    with monkeypatch.context() as patched:
        patched.setattr(positions, "append", killed_after_the_ledger(lake))
        for _ in range(2):  # the second start completes the batch, and is killed before it has landed anything
            with pytest.raises(Exception, match="Killed"):
                lake.run(spark)
    assert lake.rows("batches"), "the start has completed it"
    warehouse, timing = Warehouse(spark, lake.config.warehouse), lake.config.transaction
    assert snapshot.reached(warehouse) is None
    rebuild.save_snapshot(warehouse, timing)
    assert snapshot.newest(warehouse, timing).rows is None
    lake.run(spark)
    assert [row["transaction_id"] for row in lake.rows("transactions")] == ["a"]


def test_a_start_reads_what_was_saved_by_one_run_of_maintenance(spark: SparkSession, lake: Lake) -> None:
    """Another one may save while a start reads: the head of the old rows and the new rows are no point in time."""
    warehouse, timing = Warehouse(spark, lake.config.warehouse), lake.config.transaction
    lake.half("a")
    lake.message("later", delays=DAY)
    lake.run(spark)
    rebuild.save_snapshot(warehouse, timing)
    lake.half("b")
    lake.run(spark)
    since = snapshot.newest(warehouse, timing)
    rebuild.save_snapshot(warehouse, timing)
    found = rebuild.open_rows(warehouse, timing, since).select("kind", "offset").collect()
    assert sorted(found) == sorted(rebuild.open_rows(warehouse, timing).select("kind", "offset").collect())


def test_a_save_between_the_reads_of_another_doubles_no_row(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a coordinator and of the command `maintain`, off local disks."""
    warehouse, timing = Warehouse(spark, lake.config.warehouse), lake.config.transaction
    lake.half("a")
    lake.run(spark)
    between = ["once"]

    def followed_by_another_save(read: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            found = read(*given)
            if between:
                between.clear()
                lake.half("b")
                lake.run(spark)
                rebuild.save_snapshot(warehouse, timing)
            return found

        return call

    for name in ("newest", "reached"):
        monkeypatch.setattr(snapshot, name, followed_by_another_save(getattr(snapshot, name)))
    rebuild.save_snapshot(warehouse, timing)
    saved = rebuild.open_rows(warehouse, timing, snapshot.newest(warehouse, timing)).select("kind", "offset").collect()
    assert sorted(saved) == sorted(rebuild.open_rows(warehouse, timing).select("kind", "offset").collect())


def test_maintenance_of_a_coordinator_that_was_replaced_saves_nothing(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off local disks, where only epochs keep an older one away."""
    monkeypatch.setattr(Maintenance, "_tables", lambda _: iter(()))
    lake.half("a")
    lake.run(spark)
    older = Warehouse(spark, lake.config.warehouse)
    older.guard = EpochGuard(older, epoch=1)
    tidy = Maintenance(older, lake.config)
    assert tidy.run().failed == []
    lake.half("b")
    lake.run(spark)
    (failed,) = tidy.run().failed
    assert "a newer epoch has begun" in failed
    assert {row["landing_id"] for row in lake.rows("open_rows")} == {1}


def test_available_now_discards_nothing_whose_op_kafka_held_in_time(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lands in steps what Kafka held at its start; what came since may be an op."""
    monkeypatch.setattr(query, "MAX_RECORDS", 40)
    lake.run(spark)
    for number in range(50):
        lake.message(f"m{number}", number % 2)
    at, stored, rounds = lake.half("t"), now_ms(), 0
    play = Scheduler._run_round

    def slow(self: Scheduler, landed: Landed | None) -> None:
        nonlocal rounds
        play(self, landed)
        rounds += 1
        if rounds == 1:
            lake.op("COMMIT", "t", at)
            time.sleep(max(0.0, (stored + 30_500 - now_ms()) / 1_000))

    monkeypatch.setattr(Scheduler, "_run_round", slow)
    lake.run(spark, transaction_check_max=0, transaction_timeout="30s")
    assert rounds > 1
    assert lake.rows("transactions") == []
    lake.run(spark, transaction_check_max=0, transaction_timeout="30s")
    assert [row["state"] for row in lake.rows("transactions")] == ["COMMITTED"]


def test_a_recall_that_kafka_held_in_time_holds_however_late_the_start(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No coordinator ran when the messages fell due; the recall lands in a later step than what is overdue."""
    due = {"TIMER_DELIVER_MS": str(now_ms() + round(20_000 * patience()))}
    messages = [lake.message(f"d{number}", number % 2, delays=due) for number in range(4)]
    lake.run(spark)
    for number in range(100):
        lake.message(f"m{number}", number % 2, topic="others")
    for number, message in enumerate(messages[:3]):
        lake.recall(f"d{number}", message)
    assert now_ms() < int(due["TIMER_DELIVER_MS"]), "the machine is too slow for this test"
    time.sleep(max(0.0, (int(due["TIMER_DELIVER_MS"]) + 500 - now_ms()) / 1_000))
    monkeypatch.setattr(query, "MAX_RECORDS", 40)
    lake.run(spark)
    assert [row["message_id"] for row in lake.topic("delays")] == ["d3"]
    assert sorted(row["state"] for row in lake.rows("deliveries")) == ["DELIVERED", *["RECALLED"] * 3]


def test_files_of_dropped_input_rows_are_deleted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_table, "_PART", 5)
    table = InputTable(spark, str(tmp_path / "inputs"), BrokerClock())
    rows = table.ticks([SegmentKey(0, 0, 0)]).localCheckpoint()
    reader = table.stream().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = reader.start()
    for _ in range(25):
        table.append(rows, ABSENT)
    query.processAllAvailable()  # it passes over the commits that drop rows
    query.stop()
    assert {place.name for place in (tmp_path / "inputs").glob("part=*")} == {"part=3", "part=4", "part=5"}


def test_a_topic_whose_table_was_deleted_is_named_and_can_be_made_anew(spark: SparkSession, lake: Lake) -> None:
    """A start ended in Spark's PATH_NOT_FOUND."""
    lake.commit("a")
    lake.run(spark)
    shutil.rmtree(lake.warehouse / "topics" / "orders")
    with pytest.raises(NoTableError, match=r"topics/orders; .* delete those of 'orders' from `destinations` and `forw"):
        lake.run(spark)
    for table in ("destinations", "forwarded"):
        Warehouse(spark, lake.config.warehouse).table(table).delete("topic = 'orders'")
    lake.commit("b")
    lake.run(spark)
    assert [row["body"] for row in lake.topic("orders")] == [b"b"]
    assert [row["topic"] for row in lake.rows("destinations")] == ["orders"]


def test_a_topic_whose_log_is_gone_begins_anew_and_its_files_still_have_its_rows(
    spark: SparkSession, lake: Lake
) -> None:
    """As the runbook says, with its two lines; messages without a transaction stand nowhere else."""
    for name in ("a", "b", "c"):
        lake.commit(name)
        lake.message(f"n{name}", topic="orders")
        lake.run(spark)
    table, away = lake.warehouse / "topics" / "orders", lake.root / "away"
    DeltaTable(str(table)).optimize.compact()  # rows are in old files and in new ones
    before = sorted(row["body"] for row in lake.topic("orders"))
    shutil.rmtree(table / "_delta_log")
    with pytest.raises(WarehouseError, match=r"topics/orders is damaged: .*has no commit; bring it back from a copy"):
        lake.run(spark)
    table.rename(away)
    for name in ("destinations", "forwarded"):
        Warehouse(spark, lake.config.warehouse).table(name).delete("topic = 'orders'")
    lake.commit("d")
    lake.run(spark)
    assert [row["body"] for row in lake.topic("orders")] == [b"d"]
    rows = spark.read.option("basePath", str(away)).parquet(f"{away}/queue_id=*")
    whole = rows.dropDuplicates(["source", "source_queue", "source_offset", "source_index"])
    assert sorted(bytes(row["body"]) for row in whole.select("body").collect()) == before
    assert rows.count() > len(before)


def test_a_deleted_topic_table_is_named_where_a_batch_that_was_cut_short_needs_it(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start made it anew in silence, with no more than that batch's rows."""
    lake.commit("a")
    with monkeypatch.context() as patched, pytest.raises(Exception, match="Killed"):
        patched.setattr(positions, "append", killed_after_the_ledger(lake))
        lake.run(spark)
    table = lake.warehouse / "topics" / "orders"
    shutil.rmtree(table)
    with pytest.raises(NoTableError, match=r"topics/orders; .* delete those of 'orders'"):
        lake.run(spark)
    assert not table.exists()
    Warehouse(spark, lake.config.warehouse).table("destinations").delete("topic = 'orders'")
    for sent in ([b"a"], [b"a", b"b"]):
        lake.run(spark)
        assert sorted(row["body"] for row in lake.topic("orders")) == sent
        assert [row["topic"] for row in lake.rows("destinations")] == ["orders"]
        lake.commit("b")


def test_a_warehouse_whose_epochs_are_gone_is_no_new_one(spark: SparkSession, lake: Lake) -> None:
    """A start took it for one, and landed all that Kafka held once more."""
    lake.message("a", topic="orders")
    lake.run(spark)
    shutil.rmtree(lake.warehouse / "epochs")
    lake.run(spark)
    assert len(lake.topic("orders")) == 1


def test_no_decision_is_written_before_its_landing_is(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full for a table of the landing, just when the state machine has decided."""
    decided = threading.Event()
    append, note = Warehouse.append, Timers.note

    def noted(self: Timers, events: Events) -> None:
        note(self, events)
        decided.set()

    def fails_late(self: Warehouse, df: DataFrame, name: str, marker: Any = None, **more: Any) -> None:
        if name == "half":
            assert decided.wait(WAIT_S), "the state machine waits for the tables of its landing"
            raise WarehouseError("no space left")
        append(self, df, name, marker, **more)

    lake.commit("a")
    with monkeypatch.context() as patched, pytest.raises(WarehouseError, match="no space left"):
        patched.setattr(Timers, "note", noted)
        patched.setattr(Warehouse, "append", fails_late)
        lake.run(spark)
    assert lake.rows("transactions") == []
    assert lake.topics() == [] or lake.topic("orders") == []
    lake.run(spark)
    assert [row["state"] for row in lake.rows("transactions")] == ["COMMITTED"]
    assert [row["body"] for row in lake.topic("orders")] == [b"a"]


def test_what_comes_alone_is_read_at_once_and_what_follows_waits(spark: SparkSession, lake: Lake) -> None:
    """Spark plays a batch without records at a start, which nothing has to wait for."""
    with Coordinator(spark, config.from_mapping(lake.settings | {"trigger_interval": "1h"})).start() as running:
        scheduler = running._served.scheduler
        assert scheduler is not None
        wait_for(lambda: scheduler.rounds.count, WAIT_S)
        lake.message("first", topic="orders")
        wait_for(lambda: lake.topics() and lake.topic("orders"), 60)
        lake.message("second", topic="orders")
        time.sleep(3)
        assert [row["message_id"] for row in lake.topic("orders")] == ["first"]
    lake.run(spark)
    assert {row["message_id"] for row in lake.topic("orders")} == {"first", "second"}
