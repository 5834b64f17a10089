"""The processes of a coordinator: signals within each step of a round, and a JVM that outlives its Python."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from tests.support.killing import Run
from tests.support.lake import Lake
from tests.support.polling import patience, wait_for
from tests.support.running import coordinator
from tests.support.traffic import HASTY, Traffic

from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.recovery import jvm_lock
from commitlake.coordinator.recovery.jvm_lock import JvmLock
from commitlake.errors import FencedError
from commitlake.kafka.embedded import EmbeddedBroker

STEPS = ("half", "op", "positions", "transactions", "coordination:topic", "checks", "discarded", "kafka", "batches")


@pytest.mark.soak
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


@pytest.mark.soak
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


def test_the_jvm_holds_the_lock_until_it_is_released_whatever_it_collects(spark: SparkSession, tmp_path: Path) -> None:
    lock, jvm = JvmLock(tmp_path), cast("Any", spark.sparkContext._jvm)
    assert lock.is_free()
    assert lock.take(spark)
    assert lock.holder == str(jvm.java.lang.ProcessHandle.current().pid())
    lock._channel = lock._kept = None  # as a Python that was killed
    gc.collect()
    for _ in range(5):
        jvm.System.gc()
        time.sleep(0.2)
    assert not JvmLock(tmp_path).is_free()
    other = JvmLock(tmp_path / "other")
    (tmp_path / "other").mkdir()
    for _ in range(2):
        assert other.take(spark)
        assert not other.is_free()
        other.release()
        assert other.is_free()


@pytest.fixture
def orphan(lake: Lake, tmp_path: Path) -> Iterator[Run]:
    """The JVM of a coordinator whose Python was killed; it is stopped, so it surely lives."""
    with Run(lake.settings, tmp_path) as run:
        wait_for(run.begin(serves=True).is_ready)
        os.kill(run.jvm, signal.SIGSTOP)
        run.kill("python")
        wait_for(run.is_gone)
        yield run
        with suppress(ProcessLookupError):
            os.kill(run.jvm, signal.SIGKILL)


@pytest.mark.timeout(600)
def test_nobody_starts_while_the_jvm_of_a_killed_coordinator_lives(
    spark: SparkSession, lake: Lake, orphan: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    holder = f"another coordinator runs on this warehouse: host {socket.gethostname()}, pid {orphan.pid}, epoch 1"
    with monkeypatch.context() as patch:
        patch.setattr(jvm_lock, "WAIT_S", 2)
        with pytest.raises(FencedError, match=f"{holder}.*JVM.*{orphan.jvm}"):
            Coordinator(spark, lake.config).start()
        assert [row["epoch"] for row in lake.rows("epochs")] == [1]
    stands_by = threading.Thread(target=Coordinator(spark, lake.config).stand_by)
    stands_by.start()
    stands_by.join(5)
    assert stands_by.is_alive()
    threading.Timer(3, os.kill, (orphan.jvm, signal.SIGCONT)).start()
    lake.commit("t")
    with Coordinator(spark, lake.config).start(available_now=True):
        assert not orphan.has_jvm()
        assert [row["body"] for row in lake.topic("orders")] == [b"t"]
    stands_by.join(60)
    assert not stands_by.is_alive()
    assert caplog.text.count("waiting for it to end") == 2  # by the two starts; a standby says that it stands by
