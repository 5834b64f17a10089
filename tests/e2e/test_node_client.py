"""The contract is enough for another language: a Node client with a package of its registry, where both are there."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.killing import ROOT, kill
from tests.support.packages import fetch
from tests.support.polling import wait_for
from tests.support.tables import rows

if TYPE_CHECKING:
    from commitlake.coordinator.coordinator import Coordinator

EXAMPLE = ROOT / "notebooks" / "examples" / "node"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The example with what `npm install` brings."""
    place = shutil.copytree(EXAMPLE, tmp_path / "node", ignore=shutil.ignore_patterns("node_modules"))
    fetch("npm", "install", "--silent", cwd=place)
    return place


@pytest.mark.soak  # npm fetches a package
def test_a_node_client_commits_rolls_back_and_answers_a_check(coordinator: Coordinator, installed: Path) -> None:
    kafka, warehouse = coordinator.config.kafka, coordinator.config.warehouse
    command = ["node", "transaction.js", kafka.bootstrap_servers, kafka.topic_prefix]
    client = subprocess.Popen(command, cwd=installed, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert client.stdout is not None
        sent = dict(client.stdout.readline().split()[:2] for _ in range(3))

        def ends() -> dict[str, tuple[str, str]]:
            mine = [row for row in rows(warehouse, "transactions") if row["producer_group"] == "node-service"]
            return {row["transaction_id"]: (row["state"], row["reason"]) for row in mine}

        wait_for(lambda: len(ends()) == 3)
        assert ends() == {
            sent["paid"]: ("COMMITTED", "DIRECT"),
            sent["declined"]: ("ROLLED_BACK", "DIRECT"),
            sent["late"]: ("COMMITTED", "CHECK"),
        }
        client.send_signal(signal.SIGTERM)
        assert client.wait(30) == 0
    finally:
        kill(client)
