"""The park time: it goes on while no coordinator runs, and is not over before all has landed that Kafka held."""

from __future__ import annotations

import time

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake

from commitlake.coordinator.landing import query
from commitlake.protocol import wire
from commitlake.protocol.clock import now_ms
from commitlake.protocol.encoding import Position

_PARK_S = 20


@pytest.mark.soak
def test_park_time_counts_from_the_append_time_and_not_from_a_start(lake: Lake, spark: SparkSession) -> None:
    nowhere = lake.op("COMMIT", "nothing", Position(0, 1_000))
    half = lake.half("taken")
    lake.op("COMMIT", "taken", half)
    conflict = lake.op("ROLLBACK", "taken", half)
    lake.run(spark)  # with a park time of an hour, however slow this machine is
    landed = time.monotonic()  # later than Kafka stored them
    assert lake.rejected() == {}
    time.sleep(max(0.0, _PARK_S + 1 - (time.monotonic() - landed)))  # no coordinator runs meanwhile
    lake.run(spark, transaction_op_park_time=f"{_PARK_S}s")
    reasons = {record: row["reason"] for record, row in lake.rejected().items()}
    assert reasons == {nowhere: "NO_HALF_MESSAGE", conflict: "ALREADY_COMMITTED"}


def test_a_recall_ahead_of_a_backlog_of_messages_is_in_time(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(100):
        value = wire.encode_message(wire.MessageRecord(topic="others", msg_id=f"m{n}", body=b"x", producer_group="g"))
        lake.producer.send(lake.config.kafka.topic("messages"), value.value, value.key, value.headers, 0)
    lake.producer.flush()
    lake.recall("d", lake.message("d", 0, delays={"TIMER_DELIVER_MS": str(now_ms() + 3_600_000)}))
    monkeypatch.setattr(query, "MAX_RECORDS", 40)
    lake.run(spark, transaction_op_park_time="0s")
    assert lake.rejected() == {}
    assert [(row["message_id"], row["state"]) for row in lake.rows("deliveries")] == [("d", "RECALLED")]
