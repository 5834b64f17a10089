"""What comes together with the RESUME that it is about, in one batch, and what asks the ledger in that batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.lake import Lake, newest

from commitlake.kafka.embedded import EmbeddedBroker

AT_ONCE = {"transaction_op_park_time": "0s"}


@pytest.fixture
def lake(broker: EmbeddedBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lake]:
    prefix = f"resume{abs(hash(request.node.name))}."
    found = Lake(broker.bootstrap_servers, prefix, tmp_path, **{"transaction.check_max": 0})
    yield found
    found.close()


def test_a_commit_after_a_resume_of_the_same_batch_commits_though_its_park_time_is_over(
    spark: SparkSession, lake: Lake
) -> None:
    at, other = lake.half("t"), lake.half("u")
    lake.run(spark, transaction_timeout="0s")
    early = lake.op("COMMIT", "u", other)
    for tid, place in (("t", at), ("u", other)):
        lake.admin("RESUME", tid, place)
    lake.op("COMMIT", "t", at)
    lake.run(spark, **AT_ONCE)
    ends = {row["transaction_id"]: row["state"] for row in newest(lake.rows("transactions")).values()}
    assert ends == {"t": "COMMITTED", "u": "DISCARDED"}
    assert [row["body"] for row in lake.topic("orders")] == [b"t"]
    assert {record: row["reason"] for record, row in lake.rejected().items()} == {early: "ALREADY_DISCARDED"}


@pytest.mark.soak
def test_a_part_that_lands_with_the_resume_of_its_first_is_open_with_it(spark: SparkSession, lake: Lake) -> None:
    at = lake.half("t")
    lake.run(spark, transaction_timeout="0s")
    part = lake.half("t", 1, first=at)
    lake.admin("RESUME", "t", at)
    lake.run(spark, **AT_ONCE)
    assert (part.queue, part.offset) not in newest(lake.rows("transactions"))
    lake.op("COMMIT", "t", at, part)
    lake.run(spark, **AT_ONCE)
    ends = newest(lake.rows("transactions"))
    assert {(row["state"], row["round"]) for row in ends.values()} == {("COMMITTED", 1)}
    assert len(ends) == len(lake.topic("orders")) == 2
    assert lake.rejected() == {}
