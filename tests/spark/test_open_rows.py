"""What is open, worked out from saved rows and what came since, is what all of history says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from tests.support.lake import Lake
from tests.support.story import Story

from commitlake.coordinator.landing import positions
from commitlake.coordinator.recovery import rebuild, snapshot
from commitlake.coordinator.recovery.snapshot import BEGINNING, Point
from commitlake.protocol.clock import now_ms
from commitlake.reading.questions import transactions
from commitlake.reading.questions.tables import opened
from commitlake.reading.questions.transactions import Wanted
from commitlake.spark import session
from commitlake.tables import Warehouse
from commitlake.tools.audit import ledger


@pytest.fixture(scope="module")
def lake(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with story.lake.copied(tmp_path_factory.mktemp("open")) as copy:
        yield copy


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession, lake: Lake) -> Warehouse:
    return Warehouse(session.beside(spark, lake.config), lake.config.warehouse)


@pytest.fixture(scope="module")
def everything(warehouse: Warehouse, lake: Lake) -> DataFrame:
    return rebuild.open_rows(warehouse, lake.config.transaction).localCheckpoint()


def point(warehouse: Warehouse, story: Story, name: str) -> Point:
    """Where the tables were after a start."""
    landed = positions.of_landing(warehouse, story.landed[name])
    assert landed
    return Point(landed.landing_id, landed.offsets, story.until[name])


@pytest.mark.parametrize(
    "name", ["ops", pytest.param("parked", marks=pytest.mark.soak), pytest.param("resumed", marks=pytest.mark.soak)]
)
def test_rows_saved_at_any_time_lead_to_the_same_rows(
    story: Story, lake: Lake, warehouse: Warehouse, everything: DataFrame, name: str
) -> None:
    timing, at = lake.config.transaction, point(warehouse, story, name)
    snapshot.save(warehouse, timing, at, rebuild.open_rows(warehouse, timing, BEGINNING, at))
    since = snapshot.newest(warehouse, timing)
    assert (since.landing_id, since.batch_id, since.offsets) == (at.landing_id, at.batch_id, at.offsets)
    found = rebuild.open_rows(warehouse, timing, since)
    assert everything.count() > 3
    assert_df_equality(found, everything, ignore_row_order=True, ignore_nullable=True)
    with opened(str(lake.warehouse)) as tables:  # the question without Spark looks through what came since, too
        pending = transactions.found(tables, Wanted(states=("PENDING",)), now_ms()).to_pylist()
    by_spark = ledger.pending(warehouse.spark, str(lake.warehouse)).collect()
    places = sorted((row["queue"], row["queue_offset"], row["checks"], row["round"]) for row in by_spark)
    assert sorted((row["queue"], row["queue_offset"], row["checks"], row["round"]) for row in pending) == places


def test_rows_saved_with_other_timings_are_not_used(story: Story, lake: Lake, warehouse: Warehouse) -> None:
    timing, at = lake.config.transaction, point(warehouse, story, "again")
    snapshot.save(warehouse, timing, at, rebuild.open_rows(warehouse, timing, BEGINNING, at).limit(0))
    assert snapshot.newest(warehouse, timing).batch_id == at.batch_id
    assert snapshot.newest(warehouse, lake.configured(transaction_timeout="7s").transaction) == BEGINNING


def test_without_saved_rows_a_start_looks_through_everything(lake: Lake, warehouse: Warehouse) -> None:
    warehouse.table("open_rows").delete()
    assert snapshot.newest(warehouse, lake.config.transaction) == BEGINNING
