"""Prometheus itself, with the alerts that ship, over a coordinator: quiet, with a dead transaction, and stopped."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.cluster import free_port
from tests.support.lake import Lake
from tests.support.polling import patience, wait_for
from tests.support.prometheus import Prometheus, prometheus
from tests.support.running import coordinator

from commitlake.config import from_mapping
from commitlake.tools import doctor

FASTER = 10
"""Alerts wait for so much less time than the rules say."""


def fires(told: Prometheus, alert: str) -> bool:
    with suppress(OSError):  # it has just started
        return f"CommitLake{alert}" in told.firing()
    return False


@pytest.mark.soak
@pytest.mark.timeout(1_200)
def test_a_dead_transaction_and_a_stopped_coordinator_are_told_by_prometheus_and_the_doctor(tmp_path: Path) -> None:
    port = free_port()
    scraped = tmp_path / "prometheus"
    scraped.mkdir()
    with coordinator(tmp_path, metrics__port=port) as running:
        kafka = running.ready()["kafka"]
        config = from_mapping(
            {"warehouse": str(running.warehouse), "kafka.bootstrap_servers": kafka, "metrics.port": port}
        )

        def diagnosed(what: str) -> doctor.Diagnosis:
            return next(each for each in doctor.examine(config) if each.what == what)

        with prometheus(scraped, port, FASTER) as told:
            wait_for(lambda: not fires(told, "Down") and diagnosed("coordinator").is_well, 60 * patience())
            time.sleep(30)
            assert told.firing() - {"CommitLakeDiskNearlyFull"} == set()  # this machine's disk may be
            with Lake(kafka, "commitlake.", tmp_path) as lake:
                lake.half("dead")
            wait_for(lambda: fires(told, "OldestPending"), 60 * patience())
            os.killpg(running.process.pid, signal.SIGSTOP)
            try:
                assert "does not answer" in diagnosed("coordinator").detail
                wait_for(lambda: fires(told, "Down"), 60 * patience())
            finally:
                os.killpg(running.process.pid, signal.SIGCONT)
            wait_for(lambda: not fires(told, "Down"), 60 * patience())
        running.stop()
