"""What is open, from saved rows and what came since, is what all of history says; and what a standby rehearses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.support.lake import Lake
from tests.support.polling import wait_for
from tests.support.story import Story

from commitlake import config
from commitlake.coordinator import rehearsal
from commitlake.coordinator.landing import positions
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.recovery import rebuild, recover, snapshot
from commitlake.coordinator.recovery.snapshot import BEGINNING, Between, SnapshotPosition
from commitlake.coordinator.rehearsal import Rehearsal
from commitlake.errors import WarehouseError
from commitlake.kafka.log_ends import Offsets
from commitlake.protocol.clock import now_ms
from commitlake.protocol.states import Kind
from commitlake.reading.questions import transactions
from commitlake.reading.questions.tables import opened
from commitlake.reading.questions.transactions import Wanted
from commitlake.spark import checkpoints, session
from commitlake.tables import Warehouse
from commitlake.tables.schemas import TABLES
from commitlake.tools.audit import ledger


@pytest.fixture(scope="module")
def lake(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with story.lake.copied(tmp_path_factory.mktemp("open")) as copy:
        yield copy


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession, lake: Lake) -> Warehouse:
    return Warehouse(session.beside(spark, lake.config), lake.config.warehouse)


@pytest.fixture(scope="module")
def everything(warehouse: Warehouse, lake: Lake) -> DataFrame:
    return rebuild.open_rows(warehouse, lake.config.transaction).localCheckpoint()


def point(warehouse: Warehouse, story: Story, name: str) -> SnapshotPosition:
    """Where the tables were after a start."""
    landed = positions.of_landing(warehouse, story.landed[name])
    assert landed
    return SnapshotPosition(landed.landing_id, landed.offsets, story.until[name])


@pytest.mark.parametrize(
    "name", ["ops", pytest.param("parked", marks=pytest.mark.soak), pytest.param("resumed", marks=pytest.mark.soak)]
)
def test_rows_saved_at_any_time_lead_to_the_same_rows(
    story: Story, lake: Lake, warehouse: Warehouse, everything: DataFrame, name: str
) -> None:
    timing, at = lake.config.transaction, point(warehouse, story, name)
    snapshot.save(warehouse, timing, at, rebuild.open_rows(warehouse, timing, BEGINNING, at))
    since = snapshot.newest(warehouse, timing)
    assert (since.landing_id, since.batch_id, since.offsets) == (at.landing_id, at.batch_id, at.offsets)
    assert everything.count() > 3
    found = rebuild.open_rows(warehouse, timing, since)
    assert_df_equality(found, everything, ignore_row_order=True, ignore_nullable=True)
    with opened(str(lake.warehouse)) as tables:  # the question without Spark looks through what came since, too
        pending = transactions.found(tables, Wanted(states=("PENDING",)), now_ms()).to_pylist()
    by_spark = ledger.pending(warehouse.spark, str(lake.warehouse)).collect()
    places = sorted((row["queue"], row["queue_offset"], row["checks"], row["round"]) for row in by_spark)
    assert sorted((row["queue"], row["queue_offset"], row["checks"], row["round"]) for row in pending) == places


def test_saved_rows_know_no_end_that_a_later_batch_has_written(
    spark: SparkSession, story: Story, tmp_path: Path
) -> None:
    waiting = (Kind.HALF, Kind.PART, Kind.REFUSED_PART, Kind.DELAYED, Kind.WAITING)
    kinds = f"kind IN ({', '.join(str(int(kind)) for kind in waiting)})"
    with story.lake.copied(tmp_path) as copy:
        warehouse, timing = (
            Warehouse(session.beside(spark, copy.config), copy.config.warehouse),
            copy.config.transaction,
        )
        at = point(warehouse, story, "ops")
        saved = rebuild.open_rows(warehouse, timing, BEGINNING, at).where(kinds).localCheckpoint()
        for table in (
            "transactions",
            "deliveries",
            "checks",
            "reentries",
        ):  # a backup leaves out what a batch that is not whole has written
            warehouse.table(table).delete(f"batch_id > {at.batch_id}")
        then = rebuild.open_rows(warehouse, timing, BEGINNING, at).where(kinds)
        assert_df_equality(saved, then, ignore_row_order=True, ignore_nullable=True)


def test_rows_saved_with_other_timings_are_not_used(story: Story, lake: Lake, warehouse: Warehouse) -> None:
    timing, at = lake.config.transaction, point(warehouse, story, "again")
    snapshot.save(warehouse, timing, at, rebuild.open_rows(warehouse, timing, BEGINNING, at).limit(0))
    assert snapshot.newest(warehouse, timing).batch_id == at.batch_id
    assert snapshot.newest(warehouse, lake.configured(transaction_timeout="7s").transaction) == BEGINNING


def test_all_of_a_partition_that_came_later_has_landed_since_a_point(spark: SparkSession) -> None:
    point = SnapshotPosition(1, {("half", 0): 5, ("half", 1): 7}, 1)
    rows = [(queue, offset) for queue in range(3) for offset in range(9)]
    frame = spark.createDataFrame(rows, "queue INT, queue_offset BIGINT")
    later = [(queue, offset) for queue, offset in rows if offset >= {0: 5, 1: 7}.get(queue, 0)]
    place = ("half", "queue", "queue_offset")
    assert sorted(map(tuple, point.landed_since(frame, *place).collect())) == later
    before = frame.where(point.had_landed(*place)).collect()
    assert sorted(map(tuple, before)) == sorted({*rows} - {*later})
    assert BEGINNING.landed_since(frame, *place).count() == 27
    assert frame.where(BEGINNING.had_landed(*place)).isEmpty()


def ops(spark: SparkSession, low: int, queues: int = 2) -> DataFrame:
    """100 commits, spread over queues, at the offsets from `low` on."""
    rows = spark.range(low, low + 100, 1, 1).selectExpr(
        f"CAST(id % {queues} AS INT) AS queue", "id AS op_offset", "false AS admin", "'COMMIT' AS decision"
    )
    return rows.withColumns({name: F.lit(None) for name in TABLES["op"].columns if name not in rows.columns})


def refused(spark: SparkSession, low: int) -> DataFrame:
    """5 refused parts of first half messages that have not landed; the last one at an offset used before."""
    rows = spark.range(low, low + 5, 1, 1).selectExpr(
        *("'half' AS source", "0 AS kafka_partition", "id AS kafka_offset"),
        f"IF(id = {low + 4}, 'OFFSET_USED_BEFORE', 'TRANSACTIONS_REJECTED') AS reason",
        "map('FIRST_HALF', CAST('1-900' AS BINARY)) AS headers",
    )
    return rows.withColumns({name: F.lit(None) for name in TABLES["rejected"].columns if name not in rows.columns})


def test_files_of_before_the_saved_rows_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark, str(tmp_path))
    warehouse.create()
    for low in (0, 100, 200):
        warehouse.append(ops(spark, low), "op")
    since = SnapshotPosition(1, {(source, queue): 200 for source in ("op", "half") for queue in (0, 1)}, 1)
    place = ("op", "queue", "op_offset")
    found = since.landed_since(warehouse.read("op"), *place)
    assert (len(found.inputFiles()), found.count()) == (2, 100)
    for low in (0, 200):
        warehouse.append(refused(spark, low), "rejected")
    parts = Between(warehouse, since, None).landed(
        "rejected", "kafka_partition", "kafka_offset", half="source = 'half'"
    )
    assert (len(parts.inputFiles()), parts.count()) == (1, 5)
    left = {row["part_offset"] for row in rebuild._refused_parts(Between(warehouse, since, None)).collect()}
    assert left == {4, *range(200, 205)}, "and one that is later than its offset says"
    complete = LandingPosition(1, {("op", 0): 300, ("op", 1): 300, ("admin", 0): 0})
    assert positions.above(warehouse, "half", complete).inputFiles() == []
    files = positions.above(warehouse, "op", complete).inputFiles()
    assert [name for name in files if "queue=0" not in name] == [], "queue 0 for the admin ops, which are there, too"
    warehouse.append(ops(spark, 0, 3).where("queue = 2"), "op")  # a partition that came later
    found = since.landed_since(warehouse.read("op"), *place)
    assert (len(found.inputFiles()), found.where("queue = 2").count()) == (3, 33)
    assert positions.above(warehouse, "op", complete).count() == 33
    starts: list[Offsets] = [{}, {("half", 0): 0}]
    assert [positions.above(warehouse, "op", LandingPosition(0, each)).count() for each in starts] == [333, 333]


def test_without_saved_rows_a_start_looks_through_everything(lake: Lake, warehouse: Warehouse) -> None:
    warehouse.table("open_rows").delete()
    assert snapshot.newest(warehouse, lake.config.transaction) == BEGINNING


@pytest.fixture
def rehearsed(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    monkeypatch.setattr(rehearsal, "_ROUNDS", 2)
    nobody = {"kafka.bootstrap_servers": "127.0.0.1:1", "topics.allowed": ["orders"], "transaction.reject": True}
    conf = config.from_mapping({**nobody, "warehouse": str(tmp_path / "w"), "checkpoints": str(tmp_path / "c")})
    return Rehearsal(session.beside(spark, conf), conf)


def test_a_rehearsal_decides_and_delivers_without_kafka(rehearsed: Rehearsal, tmp_path: Path) -> None:
    rehearsed._run_starts()
    (tables,) = tmp_path.glob("c/*/rehearsal/*/warehouse")
    states = DeltaTable(str(tables / "transactions")).to_pyarrow_table()["state"].to_pylist()
    assert states == ["COMMITTED"] * 80, "of each start 2 rounds of 20"
    shown = DeltaTable(str(tables / "topics/rehearsal")).to_pyarrow_table()["message_id"].to_pylist()
    assert len(shown) == len(set(shown)) and {f"h{at}" for at in range(80)} | {f"m{at}" for at in range(40)} <= {*shown}
    assert DeltaTable(str(tables / "delayed")).to_pyarrow_table().num_rows == 40
    rehearsed._real = replace(rehearsed._real, warehouse=str(tables))
    commits = sorted(tables.rglob("_delta_log/*.json"))
    rehearsed._read()
    rehearsed._follow_logs()
    assert sorted(tables.rglob("_delta_log/*.json")) == commits, "what is there is only read"


def test_one_that_is_warm_has_left_nothing_and_reads_on_though_a_read_fails(
    rehearsed: Rehearsal, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[bool] = []

    def fails() -> None:
        reads.append(any(path.is_file() for path in tmp_path.rglob("*")))
        raise OSError("away")

    monkeypatch.setattr(rehearsal, "_READ_EVERY_S", 0.05)
    monkeypatch.setattr(rehearsed, "_follow_logs", fails)
    thread = threading.Thread(target=rehearsed.run)
    thread.start()
    wait_for(lambda: len(reads) > 2, 240)
    rehearsed.stop()
    thread.join()
    assert not any(reads), "a kill while it waits leaves no file"
    assert [record.message.partition(" after")[0] for record in caplog.records] == ["standing by, warm"]


def test_one_that_is_stopped_while_it_plays_reads_nothing_and_is_silent(
    rehearsed: Rehearsal, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> None:
        rehearsed.stop()
        raise RuntimeError("the session has ended")

    monkeypatch.setattr(rehearsed, "_run_starts", stopped)
    monkeypatch.setattr(rehearsed, "_read", lambda: pytest.fail("beside the start, which reads the same"))
    rehearsed.run()
    assert not caplog.records


def test_what_a_kill_has_left_goes_a_day_later(rehearsed: Rehearsal, spark: SparkSession, tmp_path: Path) -> None:
    conf = rehearsed._real
    of_today = Path(checkpoints.passing(spark, conf, "rehearsal"))
    day = int(of_today.name.partition("-")[0])
    of_yesterday, older = (of_today.with_name(f"{day - days}-a") for days in (1, 2))
    for left in (of_today, of_yesterday, older):
        left.mkdir(parents=True)
    Rehearsal(spark, conf)
    assert {*of_today.parent.iterdir()} == {of_today, of_yesterday}


def test_one_that_was_stopped_goes_no_further(
    rehearsed: Rehearsal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rehearsed.stop()
    rehearsed.run()
    assert not caplog.records and not [*tmp_path.glob("c/*/rehearsal/*")]


def test_one_that_fails_says_so_and_the_standby_stays(
    rehearsed: Rehearsal, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise WarehouseError("no room")

    monkeypatch.setattr(recover, "of_new_warehouse", fails)
    rehearsed.run()
    assert [record.message for record in caplog.records] == [
        "the standby could not rehearse, so it will be slower at first: no room"
    ]
