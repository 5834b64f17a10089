"""Disks that others fill: the real coordinator waits for room, says so, and goes on with all that came meanwhile."""

from __future__ import annotations

import errno
import os
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.cluster import free_port
from tests.support.lake import Lake
from tests.support.running import coordinator
from tests.support.small_disk import SmallDisk

from commitlake.config import disks
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.tools.audit.audit import audit

MIB = 1 << 20
ROOM = "nothing lands until there is more room"


@contextmanager
def filled(place: Path, left: int = 0) -> Iterator[None]:
    """Others have all of a disk but a rest, for a while."""
    place.mkdir(parents=True, exist_ok=True)
    file = place / "others"
    with file.open("wb") as others:
        for tries in range(5):
            try:
                os.posix_fallocate(others.fileno(), 0, disks.Disk.of("", place).free - left)
                break
            except OSError as error:  # the coordinator has written between the look and this
                if error.errno != errno.ENOSPC or tries == 4:
                    raise
                others.truncate(0)
    yield
    file.unlink()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[SmallDisk, SmallDisk]]:
    """Disks for a warehouse and for checkpoints."""
    with ExitStack() as stack:
        found = [stack.enter_context(SmallDisk(tmp_path / name, 300 * MIB)) for name in ("tables", "scratch")]
        if not all(disk.is_mounted for disk in found):
            pytest.skip("mounting a tmpfs takes root, and the right to mount")
        yield found[0], found[1]


def test_landing_waits_for_room_on_each_disk_and_loses_nothing(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, small: tuple[SmallDisk, SmallDisk]
) -> None:
    tables, scratch = small
    port = free_port()
    settings: dict[str, Any] = {
        "kafka__bootstrap_servers": broker.bootstrap_servers,
        "kafka__topic_prefix": "full.",
        "kafka__queues": 2,
        "checkpoints": scratch.place / "checkpoints",
        "maintenance__interval": "10s",
        "metrics__port": port,
    }
    of_lake = {key.replace("__", "."): value for key, value in settings.items()}
    with Lake(broker.bootstrap_servers, "full.", tables.place, **of_lake) as lake:
        ballast = lake.warehouse / disks.BALLAST

        def seen() -> set[str]:
            return {row["message_id"] for row in lake.topic("plain")} if "plain" in lake.topics() else set()

        def metrics() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                return str(answer.read().decode())

        sent, halves = set[str](), []

        def send(name: str, size: int = 100) -> None:
            halves.append(lake.half(f"t{name}", body=os.urandom(size)))  # stays open
            lake.message(name, topic="plain")
            sent.add(name)

        with filled(scratch.place), coordinator(tables.place, **settings) as running:
            assert running.end(300) == 1
            (line,) = [line for line in running.said.splitlines() if line.startswith("error: ")]
            assert "0 MiB free" in line and f"{scratch.place}/checkpoints" in line, running.said
            assert "Traceback" not in running.said and "\tat " not in running.said
        with coordinator(tables.place, **settings) as running:
            running.ready()
            send("first")
            running.until(lambda: seen() == sent, 300)
            running.until(ballast.exists, 120)
            with filled(scratch.place):
                send("second")
                running.until(lambda: ROOM in running.said and f"checkpoints {scratch.place}" in running.said, 120)
                assert "commitlake_landing_waits_for_room 1.0" in metrics()
                assert 'commitlake_disk_free_ratio{directory="checkpoints"} 0.0' in metrics()
                assert seen() == {"first"}
            running.until(lambda: seen() == sent, 300)
            # Landing has waited, or a write under way had failed before and all queries began again.
            assert "it works again" in running.said or "all queries run again" in running.said
            with filled(tables.place, left=25 * MIB):
                told = running.said.count(ROOM)
                for number in range(250):  # 12.5 MB, of 10 MiB above the low-water mark
                    if running.said.count(ROOM) == told:
                        send(f"more-{number}", 50_000)
                running.until(lambda: running.said.count(ROOM) > told, 300)
                with filled(tables.place / "all"):
                    send("last")
                    assert disks.free_ballast(lake.config) == 15 * MIB
                    running.until(lambda: disks.Disk.of("", tables.place).free > 0, 60)
                assert "last" not in seen()
                tables.resize(500 * MIB)  # a larger disk
                running.until(lambda: seen() == sent, 300)
            running.until(ballast.exists, 300)
            running.stop()
        lake.op("COMMIT", "tfirst", halves[0])
        lake.run(spark)
        assert [row["message_id"] for row in lake.topic("orders")] == ["tfirst-0"]
        assert sorted(row["message_id"] for row in lake.topic("plain")) == sorted(sent)
        found = audit(spark, str(lake.warehouse))
        assert found.is_well, found.findings
