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
from commitlake.spark import session


@pytest.fixture
def rehearsed(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    monkeypatch.setattr(rehearsal, "_ROUNDS", 2)
    nobody = {"kafka.bootstrap_servers": "127.0.0.1:1", "topics.allowed": ["orders"], "transaction.reject": True}
    conf = config.from_mapping({**nobody, "warehouse": str(tmp_path / "w"), "checkpoints": str(tmp_path / "c")})
    return Rehearsal(session.beside(spark, conf), conf)


def test_a_rehearsal_decides_and_delivers_without_kafka_and_leaves_nothing(
    rehearsed: Rehearsal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    thread = threading.Thread(target=rehearsed.run)
    thread.start()
    wait_for(lambda: caplog.records, 240)
    (tables,) = tmp_path.glob("c/*/rehearsal/*/warehouse")
    states = DeltaTable(str(tables / "transactions")).to_pyarrow_table()["state"].to_pylist()
    assert states == ["COMMITTED"] * 80, "of each start 2 rounds of 20"
    shown = DeltaTable(str(tables / "topics/rehearsal")).to_pyarrow_table()["message_id"].to_pylist()
    assert len(shown) == len(set(shown)) and {f"h{at}" for at in range(80)} | {f"m{at}" for at in range(40)} <= {*shown}
    assert DeltaTable(str(tables / "delayed")).to_pyarrow_table().num_rows == 40
    rehearsed._real = replace(rehearsed._real, warehouse=str(tables))
    commits = sorted(tables.rglob("_delta_log/*.json"))
    rehearsed._read()
    assert sorted(tables.rglob("_delta_log/*.json")) == commits, "what is there is only read"
    rehearsed.stop()
    thread.join()
    assert [record.message.partition(" after")[0] for record in caplog.records] == ["standing by, warm"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


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
        "the standby has stopped to rehearse, so it will be slower at first: no room"
    ]
