"""Coordination at awkward moments: park time, parts that landing has refused, and what it reads of the tables."""

from __future__ import annotations

import time

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake

from commitlake.coordinator import round as rounds
from commitlake.coordinator.coordination import events
from commitlake.coordinator.coordination.input_rows import op_rows
from commitlake.coordinator.landing import query
from commitlake.coordinator.recovery import rebuild
from commitlake.kafka.throttled import Throttle
from commitlake.protocol import wire
from commitlake.protocol.clock import now_ms
from commitlake.protocol.encoding import Position
from commitlake.spark.frames import of_rows
from commitlake.tables import TableName, Warehouse
from commitlake.tables.schemas import TABLES

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


def ends(lake: Lake, place: Position) -> list[tuple[str, str]]:
    rows = [row for row in lake.rows("transactions") if (row["queue"], row["half_offset"]) == place]
    return [(row["state"], row["reason"]) for row in rows]


@pytest.mark.parametrize("case", ["at once", "after a kill between landing and batch", "and saved in between"])
def test_a_refused_part_discards_its_transaction_whole(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    first, other = lake.half("t"), lake.half("u")
    lake.run(spark)
    part = lake.half("t", 1, first=first, topic="points")
    lake.half("u", 1, first=other, group="stranger")
    commit = lake.op("COMMIT", "t", first, part)
    if case != "at once":
        monkeypatch.delitem(rounds._INPUTS, TableName("rejected"))
        lake.run(spark, transaction_reject="true")
        assert ends(lake, first) == []
        monkeypatch.undo()
        if case == "and saved in between":
            rebuild.save_snapshot(Warehouse(spark, str(lake.warehouse)), lake.config.transaction)
        lake.run(spark)
    else:
        lake.run(spark, transaction_reject="true")
    resume = lake.admin("RESUME", "t", first)
    lake.op("COMMIT", "u", other)
    lake.run(spark, transaction_op_park_time="0s")
    assert ends(lake, first) == [("DISCARDED", "REFUSED_PART")]
    assert ends(lake, other) == [("COMMITTED", "DIRECT")]
    assert {topic: [row["body"] for row in lake.topic(topic)] for topic in lake.topics()} == {"orders": [b"u"]}
    reasons = {record: row["reason"] for record, row in lake.rejected().items()}
    assert (reasons[commit], reasons[resume]) == ("ALREADY_DISCARDED", "NOT_DISCARDED")
    assert sorted(reasons.values())[2:] == ["TRANSACTIONS_REJECTED", "TRANSACTIONS_REJECTED"]


def test_a_part_refused_when_all_had_ended_keeps_it_from_being_resumed(lake: Lake, spark: SparkSession) -> None:
    first = lake.half("t")
    lake.run(spark, transaction_check_max=0, transaction_timeout="0s")
    lake.half("t", 1, first=first, topic="no topic")
    lake.run(spark)
    resume = lake.admin("RESUME", "t", first)
    lake.run(spark)
    assert ends(lake, first) == [("DISCARDED", "CHECK_MAX")]
    assert lake.rejected()[resume]["reason"] == "NOT_DISCARDED"


def test_the_log_warns_of_discards_with_the_command_that_names_them(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "_DISCARDS", Throttle())
    lake.op("COMMIT", "done", lake.half("done"))
    lake.run(spark, transaction_check_max=0)
    assert [each for each in caplog.messages if "discarded" in each] == []
    for name in ("t", "u", "later"):
        lake.half(name)
        if name != "t":
            lake.run(spark, transaction_check_max=0, transaction_timeout="0s")
    (told,) = (each for each in caplog.messages if "discarded" in each)
    assert told.startswith("2 half messages discarded just now, and kept: `commitlake tx list --state DISCARDED` says")


def an_op(check_id: str, listed: int) -> dict[str, object]:
    places = [{"queue": 0, "offset": at} for at in range(5, 5 + listed)]
    return {"queue": 1, "op_offset": 3, "decision": "COMMIT", "half_messages": places, "check_id": check_id}


def test_each_row_of_an_op_has_the_numbers_of_the_check_that_it_answers(spark: SparkSession) -> None:
    of_another, none = an_op("0-6-7-2", 1), an_op("0-5-seven-2", 1)
    ops = of_rows(spark, [an_op("0-5-7-2", 3), of_another, none], TABLES["op"].schema)
    found = [(row["part_offset"], row["round"], row["checks"]) for row in op_rows(ops).collect()]
    assert found == [(-1, 7, 2), (6, 7, 2), (7, 7, 2), (-1, -2, -2), (-1, -2, 2)]


def test_a_check_id_is_read_once_for_an_op_and_not_for_each_half_message(spark: SparkSession) -> None:
    """It may have a megabyte, and an op may list 1 000 half messages."""
    ops = of_rows(spark, [an_op("0-5-7-2", 3)], TABLES["op"].schema).repartition(1)  # else it is worked out as a plan
    plan = op_rows(ops)._jdf.queryExecution().optimizedPlan().toString()
    above, below = plan.split("Generate ")
    assert ("check_id" in above, "check_id" in below) == (False, True), plan
