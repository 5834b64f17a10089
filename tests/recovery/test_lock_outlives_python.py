"""On a local warehouse the JVM commits: while it lives nobody else starts, though its Python was killed."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from tests.support.killing import Child, jvm_of
from tests.support.lake import Lake
from tests.support.polling import wait_for

from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.recovery import jvm_lock
from commitlake.coordinator.recovery.jvm_lock import JvmLock
from commitlake.errors import FencedError


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


class Orphan:
    """The JVM of a coordinator whose Python was killed; it is stopped, so it surely lives."""

    def __init__(self, child: Child) -> None:
        self.python = child.process.pid
        self.pid = jvm_of(self.python)
        os.kill(self.pid, signal.SIGSTOP)
        os.kill(self.python, signal.SIGKILL)
        child.process.wait()

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def is_gone(self) -> bool:
        stat = Path(f"/proc/{self.pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.fixture
def orphan(lake: Lake, tmp_path: Path) -> Iterator[Orphan]:
    with Child(lake, tmp_path / "log") as child:
        wait_for(child.is_ready)
        left = Orphan(child)
        yield left
        if not left.is_gone():
            os.kill(left.pid, signal.SIGKILL)


@pytest.mark.timeout(600)
def test_nobody_starts_while_the_jvm_of_a_killed_coordinator_lives(
    spark: SparkSession, lake: Lake, orphan: Orphan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    holder = f"another coordinator runs on this warehouse: host {socket.gethostname()}, pid {orphan.python}, epoch 1"
    with monkeypatch.context() as patch:
        patch.setattr(jvm_lock, "WAIT_S", 2)
        with pytest.raises(FencedError, match=f"{holder}.*JVM.*{orphan.pid}"):
            Coordinator(spark, lake.config).start()
        assert [row["epoch"] for row in lake.rows("epochs")] == [1]
    stands_by = threading.Thread(target=Coordinator(spark, lake.config).stand_by)
    stands_by.start()
    stands_by.join(5)
    assert stands_by.is_alive()
    threading.Timer(3, orphan.go_on).start()
    lake.op("COMMIT", "t", lake.half("t"))
    with Coordinator(spark, lake.config).start(available_now=True):
        assert orphan.is_gone()
        assert [row["body"] for row in lake.topic("orders")] == [b"t"]
    stands_by.join(60)
    assert not stands_by.is_alive()
    assert caplog.text.count("waiting for it to end") == 2  # by the two starts; a standby says that it stands by
