"""Signals to a coordinator at work: within each step of a round, twice; and one whose launcher was killed."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.killing import Run
from tests.support.lake import Lake
from tests.support.polling import patience, wait_for
from tests.support.running import coordinator
from tests.support.traffic import HASTY, Traffic

from commitlake.kafka.embedded import EmbeddedBroker

STEPS = ("half", "op", "positions", "transactions", "coordination:topic", "checks", "discarded", "kafka", "batches")

pytestmark = pytest.mark.soak


@pytest.mark.timeout(2_400)
def test_sigterm_twice_within_any_step_ends_clean(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    with Lake(broker.bootstrap_servers, "signals.", tmp_path, **HASTY) as lake, Run(lake.settings, tmp_path) as run:
        traffic = Traffic(lake)
        for step in STEPS:
            for moment in ("before", "after"):
                traffic.send()
                run.begin(serves=True, writes=[{"step": step, "moment": moment, "effect": "delay", "seconds": 3}])
                wait_for(lambda: run.said("FAULT") or run.has_ended(), 300, lambda: run.output)
                run.stop()
                time.sleep(1)
                run.stop()
                assert run.end() == "clean", (step, moment, run.output[-4_000:])
        traffic.settle(spark)
        traffic.assert_outcome()


@pytest.mark.timeout(900)
def test_a_coordinator_whose_launcher_was_killed_goes_on_until_a_signal_of_its_own(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """The next start names it."""
    given = {"kafka__bootstrap_servers": broker.bootstrap_servers, "kafka__topic_prefix": "launcher."}
    with coordinator(tmp_path, **given) as orphan:
        orphan.ready()
        os.kill(orphan.process.pid, signal.SIGKILL)
        orphan.process.wait()
        with coordinator(tmp_path, **given) as refused:
            assert refused.end(300) == 1
        named = re.search(r"pid (\d+)", refused.said)
        assert named, refused.said
        os.kill(int(named[1]), signal.SIGTERM)
        wait_for(lambda: not orphan.group(), 120 * patience(), orphan.group)
    with coordinator(tmp_path, **given) as following:
        following.ready()
        following.stop()
