"""The park time across starts: it goes on while no coordinator runs, and is not over before its time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.lake import Lake

from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol.encoding import Position

_PARK_S = 20


@pytest.fixture
def lake(broker: EmbeddedBroker, tmp_path: Path) -> Lake:
    return Lake(broker.bootstrap_servers, "park.", tmp_path, **{"transaction.op_park_time": f"{_PARK_S}s"})


@pytest.mark.soak
def test_an_early_op_and_a_conflict_are_told_when_their_park_time_is_over_though_each_start_begins_anew(
    lake: Lake, spark: SparkSession
) -> None:
    nowhere = lake.op("COMMIT", "nothing", Position(0, 1_000))
    half = lake.half("taken")
    lake.op("COMMIT", "taken", half)
    conflict = lake.op("ROLLBACK", "taken", half)
    lake.run(spark)
    landed = time.monotonic()
    assert lake.rejected() == {}, "told before the park time was over"
    time.sleep(max(0.0, _PARK_S + 1 - (time.monotonic() - landed)))
    lake.run(spark)
    reasons = {record: row["reason"] for record, row in lake.rejected().items()}
    assert reasons == {nowhere: "NO_HALF_MESSAGE", conflict: "ALREADY_COMMITTED"}
    lake.close()
