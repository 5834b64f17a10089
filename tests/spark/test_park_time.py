"""The park time across starts: it goes on while no coordinator runs, and is not over before its time."""

from __future__ import annotations

import time

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake

from commitlake.protocol.encoding import Position

_PARK_S = 20


@pytest.mark.soak
def test_park_time_counts_from_landing_and_not_from_a_start(lake: Lake, spark: SparkSession) -> None:
    nowhere = lake.op("COMMIT", "nothing", Position(0, 1_000))
    half = lake.half("taken")
    lake.op("COMMIT", "taken", half)
    conflict = lake.op("ROLLBACK", "taken", half)
    lake.run(spark)  # with a park time of an hour, however slow this machine is
    landed = time.monotonic()
    assert lake.rejected() == {}
    time.sleep(max(0.0, _PARK_S + 1 - (time.monotonic() - landed)))  # no coordinator runs meanwhile
    lake.run(spark, transaction_op_park_time=f"{_PARK_S}s")
    reasons = {record: row["reason"] for record, row in lake.rejected().items()}
    assert reasons == {nowhere: "NO_HALF_MESSAGE", conflict: "ALREADY_COMMITTED"}
