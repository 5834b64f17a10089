"""What a standby does while it waits: it runs starts and rounds, and leaves nothing behind."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.support.polling import wait_for

from commitlake import config
from commitlake.coordinator import rehearsal
from commitlake.coordinator.recovery import recover
from commitlake.coordinator.rehearsal import Rehearsal
from commitlake.errors import WarehouseError
from commitlake.spark import checkpoints, session


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
