"""Landing and coordination of a round run side by side: what must wait for what, all the same."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.lake import Lake
from tests.support.polling import WAIT_S

from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.coordination.timers import Timers
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
