"""On a bucket of moto's S3 API, with Delta's log store of DynamoDB: two coordinators, kills, and all readers.

Access is given once, in the environment, and nothing else says where the bucket is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.killing import ENVIRONMENT, ROOT
from tests.support.lake import Lake
from tests.support.polling import wait_for
from tests.support.running import coordinator
from tests.support.s3 import Bucket, bucket
from tests.support.traffic import HASTY, Traffic, assert_some_shown, send_some

import commitlake
from commitlake.kafka.embedded import EmbeddedBroker

WAIT_S = 1_200
"""A round writes and looks through some hundred objects, and moto takes 10 ms for each on a busy machine."""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with bucket(tmp_path_factory.mktemp("s3")) as made, pytest.MonkeyPatch.context() as environment:
        for name, value in made.environment.items():
            environment.setenv(name, value)
        yield made


@pytest.fixture
def lake(broker: EmbeddedBroker, s3: Bucket, prefix: str, tmp_path: Path) -> Iterator[Lake]:
    place = f"{s3.address}/{prefix.strip('.')}"
    changes = {name: f"{place}/{name}" for name in ("warehouse", "checkpoints", "receipts")}
    with Lake(broker.bootstrap_servers, prefix, tmp_path, **changes, **HASTY) as opened:
        yield opened


def started(lake: Lake, s3: Bucket, place: Path, *arguments: str) -> Any:
    return coordinator(place, *arguments, spark_args=s3.spark_args, **lake.settings)


def audit(lake: Lake, s3: Bucket) -> None:
    command = [str(ROOT / "spark-submit.sh"), "audit", "--set", f"warehouse={lake.settings['warehouse']}"]
    given = {**os.environ, "COMMITLAKE_SPARK_ARGS": s3.spark_args}
    done = subprocess.run(
        [*command, "--master", "local[2]"], capture_output=True, text=True, check=False, timeout=WAIT_S, env=given
    )
    assert (done.returncode, "all is well" in done.stdout) == (0, True), done.stdout + done.stderr


def asked(lake: Lake, *words: str) -> list[dict[str, Any]]:
    """What a question without Spark answers, as a person asks it."""
    given = [part for name in ("warehouse", "receipts") for part in ("--set", f"{name}={lake.settings[name]}")]
    command = [sys.executable, "-m", "commitlake.tools.cli", *words, "--json", *given]
    environment = {**os.environ, "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(3_600)
@pytest.mark.soak
def test_a_backlog_is_worked_off_and_each_reader_finds_it(lake: Lake, s3: Bucket, tmp_path: Path) -> None:
    send_some(lake)
    with started(lake, s3, tmp_path, "--available-now") as running:
        assert running.end(WAIT_S) == 0, running.said[-4_000:]
    assert_some_shown(lake)
    audit(lake, s3)

    given: dict[str, Any] = {name: lake.settings[name] for name in ("warehouse", "receipts")}
    with commitlake.consume(given, "orders", group="points", follow=False) as messages:
        found = []
        for message in messages:
            found.append(message.body)
            message.done()
    assert sorted(found) == [b"paid", b"sent"]
    with commitlake.consume(given, "orders", group="points", follow=False) as again:
        assert list(again) == []
    assert {(row["topic"], row["messages"]) for row in asked(lake, "topics")} == {
        ("orders", 2),
        ("delays", 1),
        ("news", 1),
    }
    states = [row["state"] for row in asked(lake, "tx", "list")]
    assert sorted(states) == ["COMMITTED", "COMMITTED", "ROLLED_BACK"]
    assert asked(lake, "tx", "show", "paid")
    assert asked(lake, "stats")
    (group,) = asked(lake, "groups")
    assert (group["topic"], group["behind"]) == ("orders", 0)


@pytest.mark.timeout(3_600)
@pytest.mark.soak
def test_a_paused_coordinator_ends_when_another_has_taken_over(lake: Lake, s3: Bucket, tmp_path: Path) -> None:
    traffic = Traffic(lake)
    with started(lake, s3, tmp_path / "1") as first:
        first.ready(WAIT_S)
        traffic.send()
        wait_for(lambda: lake.rows("transactions"), WAIT_S, lambda: first.said[-4_000:])
        os.killpg(first.process.pid, signal.SIGSTOP)
        with started(lake, s3, tmp_path / "2") as second:
            second.ready(WAIT_S)
            traffic.send()
            wait_for(lambda: len(lake.rows("half")) > 7, WAIT_S, lambda: second.said[-4_000:])
            os.killpg(first.process.pid, signal.SIGCONT)
            traffic.send()
            assert first.end(WAIT_S) == 1
            second.until(traffic.is_over, WAIT_S)
            second.stop()
    assert "another coordinator has taken over this warehouse" in first.said
    traffic.assert_outcome()
    audit(lake, s3)


@pytest.mark.timeout(3_600)
@pytest.mark.soak
def test_a_coordinator_that_was_killed_goes_on(lake: Lake, s3: Bucket, tmp_path: Path) -> None:
    traffic = Traffic(lake)
    with started(lake, s3, tmp_path / "1") as running:
        running.ready(WAIT_S)
        traffic.send()
        wait_for(lambda: lake.rows("transactions"), WAIT_S, lambda: running.said[-4_000:])
        os.killpg(running.process.pid, signal.SIGKILL)
    traffic.send()
    with started(lake, s3, tmp_path / "2") as running:
        running.until(traffic.is_over, WAIT_S)
        running.stop()
    traffic.assert_outcome()
    audit(lake, s3)
