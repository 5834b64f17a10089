"""A coordinator killed between any two of its writes loses nothing and does nothing twice."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.killing import KILLED, Run, Runs, cut_checkpoints, delete_checkpoints, killed_at
from tests.support.lake import Lake
from tests.support.polling import wait_for
from tests.support.traffic import HASTY, Traffic

from commitlake.coordinator.coordinator import Coordinator
from commitlake.kafka.embedded import EmbeddedBroker

KILLS = [
    ("coordination:transactions", "after", 1),
    ("coordination:topic", "after", 1),
    ("coordination:batches", "before", 1),
]
"""One start each, over one warehouse; what a kill cuts short the next start completes, or dies completing."""
MORE_KILLS = [
    ("coordination:deliveries", "after", 1),
    ("coordination:discarded", "before", 1),
    ("coordination:kafka", "before", 1),
]


@pytest.fixture
def lake(broker: EmbeddedBroker, prefix: str, tmp_path: Path) -> Iterator[Lake]:
    with Lake(broker.bootstrap_servers, prefix, tmp_path, **HASTY) as opened:
        yield opened


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(KILLS, id="first", marks=pytest.mark.short(core_seconds=90)),  # a JVM for each kill
        pytest.param(MORE_KILLS, id="more"),
    ],
)
def test_kills_at_step_after_step_end_every_transaction_once(
    spark: SparkSession, lake: Lake, kills: list[tuple[str, str, int]]
) -> None:
    traffic = Traffic(lake)
    with Runs(lake.settings, lake.root) as coordinators:
        for number, (step, moment, nth) in enumerate(kills, 1):
            traffic.send()
            assert coordinators.killed_at(step, moment, nth, is_last=number == len(kills)) == KILLED, step
            (delete_checkpoints if number % 2 == 0 else cut_checkpoints)(lake)
    traffic.settle(spark)
    traffic.assert_outcome()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_kill_around_a_resume_reopens_once(spark: SparkSession, lake: Lake) -> None:
    traffic = Traffic(lake)
    traffic.send()
    traffic.settle(spark)
    traffic.resume()
    for moment in ("before", "after"):
        assert killed_at(lake, "coordination:reentries", moment, transaction_timeout="1h") == KILLED
    traffic.commit_resumed()
    lake.run(spark, transaction_timeout="1h")
    traffic.assert_outcome()


@pytest.mark.short
def test_a_second_coordinator_names_the_first_and_ends(spark: SparkSession, lake: Lake) -> None:
    with Coordinator(spark, lake.config).start() as first, Run(lake.settings, lake.root) as second:
        error = second.begin().end()
        assert error.startswith("error: FencedError: ")
        assert f"host {socket.gethostname()}, pid {os.getpid()}, epoch {first.epoch}" in error
        lake.commit("t")
        wait_for(lambda: lake.topic("orders"), why=lambda: first.await_termination(timeout=0))
    assert len(lake.rows("epochs")) == 1
