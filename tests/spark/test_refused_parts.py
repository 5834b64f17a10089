"""A transaction whose part landing has refused is never shown in part (contract 4.8)."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake

from commitlake.coordinator import round as rounds
from commitlake.coordinator.recovery import rebuild
from commitlake.protocol.encoding import Position
from commitlake.tables import TableName, Warehouse


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
