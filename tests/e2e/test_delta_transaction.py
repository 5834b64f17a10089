"""Messages that are visible exactly when rows are in Delta tables, and rows of a streaming query as messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.support.databricks import refuse_paths
from tests.support.killing import ENVIRONMENT, ROOT
from tests.support.lake import Lake, Row
from tests.support.polling import WAIT_S, patience, wait_for, wait_until_equal

import commitlake
from commitlake import Message
from commitlake.clients.delta import marks
from commitlake.errors import ArgumentError, ConfigError, WarehouseError
from commitlake.spark import session

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


def test_a_table_may_be_named_as_in_its_catalog(
    spark: SparkSession, lake: Lake, settings: Settings, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is written by this name: Unity Catalog takes no path of its tables."""
    refuse_paths(monkeypatch, [f"{tmp_path}/named", f"file:{tmp_path}/named"])
    spark.sql(f"CREATE DATABASE named LOCATION '{tmp_path}/named'")
    try:
        spark.range(0).write.format("delta").saveAsTable("named.orders")
        with commitlake.delta_transaction(spark, settings, "nightly") as tx:
            tx.send(Message(topic, b"one"))
            tx.append(spark.range(3), "spark_catalog.named.orders")
        assert spark.table("named.orders").count() == rows(f"{tmp_path}/named/orders") == 3
        assert end(lake, tx.transaction_id) == ("COMMITTED", "DIRECT")
        (half,) = [row for row in lake.rows("half") if row["topic"] == topic]
        assert dict(half["properties"])["delta.tables"] == json.dumps([f"{tmp_path}/named/orders"])
        with (
            pytest.raises(ConfigError, match=r"no Delta table spark_catalog.named.nosuch; make it first, or write \./"),
            commitlake.delta_transaction(spark, settings, "nightly") as tx,
        ):
            tx.append(spark.range(3), "spark_catalog.named.nosuch")
        spark.range(1).write.format("parquet").saveAsTable("named.plain")
        with (
            pytest.raises(ConfigError, match=r"no Delta table spark_catalog.named.plain"),
            commitlake.delta_transaction(spark, settings, "nightly") as tx,
        ):
            tx.append(spark.range(3), "spark_catalog.named.plain")
        assert not (tmp_path / "named/plain/_delta_log").exists(), "a table of Parquet is left alone"
    finally:
        spark.sql("DROP DATABASE named CASCADE")


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


def killed(given: Mapping[str, object]) -> None:
    """Runs a process that kills itself."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.e2e.test_delta_transaction", json.dumps(given)],
        cwd=ROOT, env=ENVIRONMENT, timeout=240, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL


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
    killed(given)
    (half,) = wait_for(lambda: [row for row in lake.rows("half") if row["topic"] == topic])
    assert end(lake, half["transaction_id"], WAIT_S + deadline_s) == expected
    assert [rows(place) for place in places] == written
    shown = [b"killed"] if expected[0] == "COMMITTED" else []
    wait_until_equal(lambda: [row["body"] for row in lake.topic(topic)], shown)


COLUMNS = {"keys": "concat('order-', id)", "body": "CAST(id AS STRING)", "deadline": "15s"}


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
    with pytest.raises(StreamingQueryException, match=r"row \d \(keys .*on_invalid='skip'"):
        run(spark, lake, topic, source, tmp_path / "checkpoint", **columns)
    with pytest.raises(StreamingQueryException, match=r"'length\(body\)' is int, allowed is a string or binary"):
        run(spark, lake, topic, source, tmp_path / "other", body="length(body)", keys="k")
    run(spark, lake, topic, source, tmp_path / "checkpoint", on_invalid="skip", **columns)
    wait_until_equal(lambda: shown(lake, topic), Counter({b"one": 1, b"two": 1}))
    assert {row["keys"] for row in lake.topic(topic)} == {"order-1", None}
    assert any("3 rows of micro-batch 0 are left out" in each for each in caplog.messages)
    with pytest.raises(ArgumentError, match="sink: on_invalid: 'drop' is not allowed; allowed is fail or skip"):
        run(spark, lake, topic, source, tmp_path / "checkpoint", on_invalid="drop")


def test_a_sink_needs_an_address(lake: Lake) -> None:
    with pytest.raises(ConfigError, match="'embedded' is not allowed here; give the address"):
        commitlake.sink({"kafka.bootstrap_servers": "embedded"}, "orders", name="x", group="g")


@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.soak), "after"])
def test_a_driver_that_is_killed_leaves_each_row_once(
    spark: SparkSession, lake: Lake, topic: str, source: str, tmp_path: Path, moment: str
) -> None:
    checkpoint = tmp_path / "checkpoint"
    given = {"conf": lake.settings, "topic": topic, "source": source, "checkpoint": str(checkpoint), "moment": moment}
    killed(given | {"columns": COLUMNS})
    run(spark, lake, topic, source, checkpoint)
    wait_until_equal(lambda: shown(lake, topic), once(30))
    halves = {row["transaction_id"] for row in of_topic(lake, "half", topic)}
    wait_for(lambda: {row["transaction_id"] for row in of_topic(lake, "transactions", topic)} == halves)
    ends = of_topic(lake, "transactions", topic)
    states = Counter(row["transaction_id"] for row in ends if row["state"] == "COMMITTED")
    assert (len(states), len(halves)) == (1, 2 if moment == "before" else 1)
    assert shown(lake, topic) == once(30)


def in_a_transaction(given: dict[str, Any]) -> None:
    """Writes to as many tables as it should, and kills itself in the middle of a `delta_transaction`."""
    spark = session.build(short_lived=True)
    with commitlake.delta_transaction(spark, given["conf"], "nightly", deadline=given["deadline"]) as tx:
        tx.send(Message(given["topic"], "killed"))
        options = tx.delta_options(*given["places"])
        for place in given["places"][: given["writes"]]:
            spark.range(3).write.format("delta").mode("append").options(**options).save(place)
        os.kill(os.getpid(), signal.SIGKILL)


def in_a_sink(given: dict[str, Any]) -> None:
    """Runs a streaming query with a sink; kills itself before or after the commit that decides."""
    real = marks.put

    def put(*words: Any, **named: Any) -> bool:
        if given["moment"] == "after":
            real(*words, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    marks.put = put
    rows = session.build(short_lived=True).readStream.format("delta").load(given["source"])
    to = commitlake.sink(given["conf"], given["topic"], name=given["topic"], group="nightly", **given["columns"])
    writer = rows.writeStream.foreachBatch(to).option("checkpointLocation", given["checkpoint"])
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    of_what = json.loads(sys.argv[1])
    in_a_sink(of_what) if "moment" in of_what else in_a_transaction(of_what)
