"""Landing and coordination of a round run side by side: what must wait for what, all the same."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.lake import Lake
from tests.support.polling import WAIT_S, wait_for

from commitlake import config
from commitlake.coordinator.coordination.events import Events, Timers
from commitlake.coordinator.coordinator import Coordinator
from commitlake.errors import WarehouseError
from commitlake.tables import Warehouse


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

    lake.op("COMMIT", "a", lake.half("a"))
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
