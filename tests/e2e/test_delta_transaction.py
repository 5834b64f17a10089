"""Messages that are visible exactly when rows are in Delta tables: commits, errors, late writers and kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.support.killing import ENVIRONMENT, ROOT
from tests.support.lake import Lake
from tests.support.polling import WAIT_S, patience, wait_for, wait_until_equal

import commitlake
from commitlake import Message
from commitlake.errors import ConfigError, WarehouseError

Settings = dict[str, Any]


@pytest.fixture
def lake(delta_log_lake: Lake) -> Lake:
    return delta_log_lake


@pytest.fixture
def settings(lake: Lake) -> Settings:
    return lake.settings


@pytest.fixture
def places(spark: SparkSession, tmp_path: Path) -> list[str]:
    made = [str(tmp_path / name) for name in ("orders", "lines")]
    for place in made:
        spark.range(0).write.format("delta").save(place)
    return made


def rows(place: str) -> int:
    return int(DeltaTable(place).to_pyarrow_table().num_rows)


def end(lake: Lake, transaction_id: str, seconds: float = WAIT_S) -> tuple[str, str]:
    """State and reason, once it has ended."""

    def find() -> tuple[str, str] | None:
        found = [row for row in lake.rows("transactions") if row["transaction_id"] == transaction_id]
        return (found[0]["state"], found[0]["reason"]) if found else None

    return wait_for(find, seconds, why=lambda: lake.rows("checks"))


def test_rows_and_messages_appear_together(
    spark: SparkSession, lake: Lake, settings: Settings, topic: str, places: list[str], tmp_path: Path
) -> None:
    new, one = str(tmp_path / "new"), Message(topic, b"one", keys="day")
    with commitlake.delta_transaction(spark, settings, "nightly") as tx:
        tx.send(one)
        tx.send(Message(topic, b"two"))
        for place in (*places, new):
            tx.append(spark.range(3), place)
        assert [rows(place) for place in places] == [0, 0]
    assert [rows(place) for place in (*places, new)] == [3, 3, 3]
    assert end(lake, tx.transaction_id) == ("COMMITTED", "DIRECT")
    assert (one.transaction_id, one.chosen_transaction_id) == (tx.transaction_id, None)  # of this attempt only
    wait_until_equal(lambda: sorted(row["body"] for row in lake.topic(topic)), [b"one", b"two"])
    assert DeltaTable(places[0]).transaction_version(tx.transaction_id) == 1


def test_rows_that_come_after_the_deadline_are_refused(
    spark: SparkSession, lake: Lake, settings: Settings, topic: str, places: list[str]
) -> None:
    with (
        pytest.raises(WarehouseError, match="is not committed: its deadline is over"),
        commitlake.delta_transaction(spark, settings, "nightly", deadline="1s") as tx,
    ):
        tx.send(Message(topic, b"one"))
        options = tx.delta_options(places[0])
        assert end(lake, tx.transaction_id) == ("ROLLED_BACK", "CHECK")
        spark.range(3).write.format("delta").mode("append").options(**options).save(places[0])
    assert rows(places[0]) == 0


def test_a_transaction_needs_a_message_a_table_and_an_address(
    spark: SparkSession, settings: Settings, topic: str
) -> None:
    with (
        pytest.raises(ConfigError, match="has no message or no table"),
        commitlake.delta_transaction(spark, settings, "nightly") as tx,
    ):
        tx.append(spark.range(1), "nowhere")
    with (
        pytest.raises(ConfigError, match="gets rows twice, and Delta would skip the second"),
        commitlake.delta_transaction(spark, settings, "nightly") as tx,
    ):
        tx.send(Message(topic, b"one"))
        tx.append(spark.range(1), "nowhere")
        tx.append(spark.range(1), "./nowhere")
    with (
        pytest.raises(ConfigError, match=r"'/elsewhere' is not allowed; .*checks.nightly.places"),
        commitlake.delta_transaction(spark, settings, "nightly") as tx,
    ):
        tx.send(Message(topic, b"one"))
        tx.append(spark.range(1), "/elsewhere")


@pytest.mark.parametrize(
    ("writes", "expected", "written"),
    [
        (0, ("ROLLED_BACK", "CHECK"), [0, 0]),
        pytest.param(1, ("ROLLED_BACK", "CHECK"), [3, 0], marks=pytest.mark.soak),
        (2, ("COMMITTED", "CHECK"), [3, 3]),
    ],
)
def test_a_killed_process_leaves_what_the_logs_say(
    lake: Lake,
    settings: Settings,
    topic: str,
    places: list[str],
    writes: int,
    expected: tuple[str, str],
    written: list[int],
) -> None:
    deadline_s = round(20 * patience())
    given = {"conf": settings, "places": places, "writes": writes, "deadline": f"{deadline_s}s", "topic": topic}
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.delta_child", json.dumps(given)],
        cwd=ROOT, env=ENVIRONMENT, timeout=240, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL
    (half,) = wait_for(lambda: [row for row in lake.rows("half") if row["topic"] == topic])
    assert end(lake, half["transaction_id"], WAIT_S + deadline_s) == expected
    assert [rows(place) for place in places] == written
    shown = [b"killed"] if expected[0] == "COMMITTED" else []
    wait_until_equal(lambda: [row["body"] for row in lake.topic(topic)], shown)
