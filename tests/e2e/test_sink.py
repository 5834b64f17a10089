"""Rows of a streaming query as messages, each once: batches done again, errors, kills around the deciding commit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.support.killing import ENVIRONMENT, ROOT
from tests.support.lake import Lake, Row
from tests.support.polling import wait_for, wait_until_equal

import commitlake
from commitlake.errors import ConfigError

COLUMNS = {"keys": "concat('order-', id)", "body": "CAST(id AS STRING)", "deadline": "15s"}


@pytest.fixture
def lake(delta_log_lake: Lake) -> Lake:
    return delta_log_lake


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> str:
    """A table of 30 rows."""
    place = str(tmp_path / "source")
    spark.range(30).coalesce(1).write.format("delta").save(place)
    return place


def run(spark: SparkSession, lake: Lake, topic: str, source: str, checkpoint: Path, **columns: str) -> None:
    """Works off the source; the sink is named as the topic."""
    to = commitlake.sink(lake.settings, topic, name=topic, group="nightly", **{**COLUMNS, **columns})  # type: ignore[arg-type]
    writer = spark.readStream.format("delta").load(source).writeStream.foreachBatch(to)
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def shown(lake: Lake, topic: str) -> Counter[bytes]:
    return Counter(row["body"] for row in lake.topic(topic))


def of_topic(lake: Lake, table: str, topic: str) -> list[Row]:
    return [row for row in lake.rows(table) if row["topic"] == topic]


def once(count: int) -> Counter[bytes]:
    return Counter(str(number).encode() for number in range(count))


def test_each_row_is_a_message_and_a_batch_done_again_adds_nothing(
    spark: SparkSession, lake: Lake, topic: str, source: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run(spark, lake, topic, source, checkpoint)
    wait_until_equal(lambda: shown(lake, topic), once(30))
    assert {row["keys"] for row in lake.topic(topic)} == {f"order-{number}" for number in range(30)}
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    run(spark, lake, topic, source, checkpoint)
    spark.range(30, 33).write.format("delta").mode("append").save(source)
    run(spark, lake, topic, source, checkpoint)
    wait_until_equal(lambda: shown(lake, topic), once(33))
    assert {row["state"] for row in of_topic(lake, "transactions", topic)} == {"COMMITTED"}


def test_a_batch_that_fails_sends_nothing_and_is_done_again(
    spark: SparkSession, lake: Lake, topic: str, source: str, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException):
        run(spark, lake, topic, source, tmp_path / "checkpoint", tags="CAST(assert_true(id < 20) AS STRING)")
    run(spark, lake, topic, source, tmp_path / "checkpoint")
    wait_until_equal(lambda: shown(lake, topic), once(30))


def test_a_row_that_can_be_no_message_is_named_and_left_out_only_if_so_wanted(
    spark: SparkSession, lake: Lake, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = str(tmp_path / "odd")
    rows = [(b"order-1", "one"), (None, "two"), (b"\xff", "three"), (b"order-4", None), (b"order-5", "x" * 5_000_000)]
    frame = spark.createDataFrame([(key, body, key) for key, body in rows], "k binary, body string, s binary")
    frame.coalesce(1).write.format("delta").save(source)
    columns: dict[str, Any] = {"keys": "k", "body": "body", "sharding_key": "s"}
    with pytest.raises(StreamingQueryException, match=r"row \d \(keys .*unfit='skip'"):
        run(spark, lake, topic, source, tmp_path / "checkpoint", **columns)
    with pytest.raises(StreamingQueryException, match=r"'length\(body\)' is int, allowed is a string or binary"):
        run(spark, lake, topic, source, tmp_path / "other", body="length(body)", keys="k")
    run(spark, lake, topic, source, tmp_path / "checkpoint", unfit="skip", **columns)
    wait_until_equal(lambda: shown(lake, topic), Counter({b"one": 1, b"two": 1}))
    assert {row["keys"] for row in lake.topic(topic)} == {"order-1", None}
    assert any("3 rows of micro-batch 0 are left out" in each for each in caplog.messages)
    with pytest.raises(ConfigError, match="unfit: 'drop' is not allowed; allowed is fail or skip"):
        run(spark, lake, topic, source, tmp_path / "checkpoint", unfit="drop")


def test_a_sink_needs_an_address(lake: Lake) -> None:
    with pytest.raises(ConfigError, match="'embedded' is not allowed; give the address"):
        commitlake.sink({"kafka.bootstrap_servers": "embedded"}, "orders", name="x", group="g")


@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.soak), "after"])
def test_a_driver_that_is_killed_leaves_each_row_once(
    spark: SparkSession, lake: Lake, topic: str, source: str, tmp_path: Path, moment: str
) -> None:
    checkpoint = tmp_path / "checkpoint"
    given = {"conf": lake.settings, "topic": topic, "source": source, "checkpoint": str(checkpoint), "moment": moment}
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.sink_child", json.dumps(given | {"columns": COLUMNS})],
        cwd=ROOT, env=ENVIRONMENT, timeout=240, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL
    run(spark, lake, topic, source, checkpoint)
    wait_until_equal(lambda: shown(lake, topic), once(30))
    halves = {row["transaction_id"] for row in of_topic(lake, "half", topic)}
    wait_for(lambda: {row["transaction_id"] for row in of_topic(lake, "transactions", topic)} == halves)
    ends = of_topic(lake, "transactions", topic)
    states = Counter(row["transaction_id"] for row in ends if row["state"] == "COMMITTED")
    assert (len(states), len(halves)) == (1, 2 if moment == "before" else 1)
    assert shown(lake, topic) == once(30)
