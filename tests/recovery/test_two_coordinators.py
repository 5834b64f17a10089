"""Where no lock of the operating system keeps two coordinators apart, epochs do: one goes on, the other names it."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.support.killing import Run
from tests.support.lake import Lake
from tests.support.landing import CUT_SHORT, cut_at, land
from tests.support.polling import patience, wait_for
from tests.support.traffic import HASTY, Traffic

from commitlake.config import from_mapping
from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.recovery import fencing
from commitlake.errors import FencedError, NoTableError
from commitlake.protocol.clock import as_datetime, now_ms
from commitlake.tables import Warehouse

PAUSES = [("coordination:transactions", "before"), ("coordination:topic", "within"), ("landing:half", "within")]
"""Where the first coordinator is held up: before its commit point, and with a commit on its way after one."""
AT_ONCE = {key.replace(".", "_"): value for key, value in HASTY.items()}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process too takes the warehouse for one that is not on a local disk."""
    monkeypatch.setattr(fencing, "is_local", lambda _: False)


def send_until(traffic: Traffic, done: Callable[[], object], seconds: float = 240) -> None:
    """Keeps transactions coming, a round a second."""

    def sent_until_done() -> bool:
        if done():
            return True
        traffic.send()
        time.sleep(1)
        return False

    wait_for(sent_until_done, seconds)


def shows(lake: Lake, traffic: Traffic) -> Callable[[], bool]:
    """Whether what is sent from now on has become visible."""
    name = f"round {traffic.rounds + 1} c".encode()
    return lambda: any(row["body"] == name for row in lake.topic("a"))


def held_up_at(step: str, moment: str, nth: int) -> dict[str, Any]:
    """A plan."""
    fault = {"step": step, "moment": moment, "effect": "hold up", "nth": nth}
    return {"serves": True, "elsewhere": True, "writes": [fault]}


def ends_naming(child: Run, pid: int, epoch: int) -> None:
    child.go_on()
    other = f"host {socket.gethostname()}, pid {pid}, epoch {epoch}"
    assert f"has taken over this warehouse: {other}" in child.end(120)
    child.kill("both")  # its JVM would go on beside the next ones


@pytest.mark.timeout(900)
@pytest.mark.soak
def test_a_paused_coordinator_that_was_replaced_ends_without_a_write(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    traffic = Traffic(lake)
    held_up: list[Run] = []
    with ExitStack() as children:
        for epoch, (step, moment) in enumerate(PAUSES, 1):
            held_up.append(children.enter_context(Run(lake.settings, tmp_path)).begin(**held_up_at(step, moment, 2)))
            send_until(traffic, held_up[-1].is_held_up)  # so it has taken over, and got on with the load
            if epoch > 1:
                ends_naming(held_up[-2], held_up[-1].pid, epoch)
        with Coordinator(spark, lake.config).start() as last:
            ends_naming(held_up[-1], os.getpid(), last.epoch)
            send_until(traffic, shows(lake, traffic))
    traffic.settle(spark, **AT_ONCE)
    traffic.assert_outcome()


@pytest.mark.timeout(600)
@pytest.mark.soak
def test_of_two_coordinators_with_the_same_epoch_the_one_that_began_later_goes_on(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    traffic = Traffic(lake)
    with Run(lake.settings, tmp_path) as first:
        first.begin(**held_up_at("epochs", "before", 1))
        send_until(traffic, first.is_held_up)
        with Coordinator(spark, lake.config).start() as second:
            send_until(traffic, shows(lake, traffic))
            wait_for(traffic.is_written)  # Delta's commit is not atomic between processes here: nobody else may write
            ends_naming(first, os.getpid(), second.epoch)
            send_until(traffic, shows(lake, traffic))
    assert [row["epoch"] for row in lake.rows("epochs")] == [1, 1]
    traffic.settle(spark, **AT_ONCE)
    traffic.assert_outcome()


@pytest.mark.soak
def test_an_idle_coordinator_that_was_replaced_ends_at_once(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """At its next record it would be too late: when the newer one has stopped, nobody runs."""
    settings = {**lake.settings, "standby_after": "3s"}
    with Coordinator(spark, from_mapping(settings)).start() as first, Run(settings, tmp_path) as second:
        second.begin(serves=True, elsewhere=True)
        wait_for(second.is_ready)
        with pytest.raises(FencedError, match=f"pid {second.pid}, epoch 2; this one"):
            wait_for(lambda: first.await_termination(timeout=0.2), 20 * patience())
        second.stop()
        assert second.end(120) == "clean"


@pytest.fixture(params=["directory", "catalog"])
def guarded(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Warehouse]:
    """The tables as the coordinator with epoch 1 sees them."""
    spark.sql("CREATE DATABASE two_coordinators")
    catalog = "schema:spark_catalog.two_coordinators"
    warehouse = Warehouse(spark, str(tmp_path) if request.param == "directory" else catalog)
    warehouse.create()
    warehouse.guard = fencing.EpochGuard(warehouse, fencing.begin_epoch(warehouse, "1"))
    yield warehouse
    spark.sql("DROP DATABASE two_coordinators CASCADE")


@pytest.mark.parametrize(("begun_s", "goes_on"), [(-60, True), (60, False)], ids=["earlier", "later"])
def test_another_start_with_the_same_epoch_ends_this_one_only_if_it_began_later(
    spark: SparkSession, guarded: Warehouse, begun_s: int, goes_on: bool
) -> None:
    (own,) = guarded.read("epochs").collect()
    other = own.asDict() | {"pid": own["pid"] + 1, "started_at": as_datetime(now_ms() + begun_s * 1_000)}
    Warehouse(spark, guarded.root).add([other], "epochs")
    told = f"pid {own['pid'] + 1}, epoch 1; this one"
    with nullcontext() if goes_on else pytest.raises(FencedError, match=told):
        guarded.guard.check()
    with nullcontext() if goes_on else pytest.raises(Exception, match="a newer epoch has begun"):
        guarded.append(batch(spark), "batches")


@pytest.mark.short
def test_what_an_older_coordinator_lands_meanwhile_is_not_landed_again(spark: SparkSession, lake: Lake) -> None:
    """It had the append under way when the newer one looked for what was left over, and committed it then."""
    warehouse = Warehouse(spark, lake.config.warehouse)
    warehouse.create()
    for name in ("a", "b"):
        lake.message(name, topic="orders")
    with pytest.raises(CUT_SHORT):
        land(spark, lake.config, cut_at(warehouse, 2))
    warehouse.guard = fencing.EpochGuard(warehouse, fencing.begin_epoch(warehouse, "1"))
    lake.message("c", topic="orders")
    position = land(spark, lake.config, warehouse, looks=False).position
    assert position.clean_id == -1, "without a lock a late append may always come"
    assert sorted(row["body"] for row in lake.topic("orders")) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("left", ["nothing", "an entry of the catalog"])
def test_a_topic_table_that_is_gone_is_named_where_it_is_fenced(guarded: Warehouse, left: str) -> None:
    if left != "nothing":
        guarded.ensure_topic("orders")
        (place,) = guarded.table("topics/orders").detail().select("location").collect()[0]
        shutil.rmtree(place.removeprefix("file:"))
    with pytest.raises(NoTableError, match=r"orders.*bring it back from a copy"):
        guarded.guard.fence(["orders"])


def batch(spark: SparkSession) -> DataFrame:
    return spark.sql("SELECT 7 AS batch_id, current_timestamp() AS completed_at, 1 AS landing_id")


def test_an_append_planned_before_a_newer_epoch_began_fails(spark: SparkSession, guarded: Warehouse) -> None:
    planned = guarded.guard.rows(batch(spark))
    guarded.append(batch(spark), "batches")
    other = Warehouse(spark, guarded.root)
    epoch = fencing.begin_epoch(other, "1")
    other.guard = fencing.EpochGuard(other, epoch)
    none = batch(spark).persist().where("batch_id = 8")  # as landing's ops of a batch that has none
    for rows in (planned, batch(spark), none):
        with pytest.raises(Exception, match="a newer epoch has begun"):
            guarded.append(rows, "batches")
    other.append(batch(spark), "batches")
    assert guarded.read("batches").count() == 2


@pytest.mark.parametrize("guarded", ["directory"], indirect=True)
def test_epochs_is_read_again_only_when_it_has_a_new_commit(
    spark: SparkSession, guarded: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read = fencing.check

    def counted(warehouse: Warehouse, epoch: int) -> None:
        reads.append(epoch)
        read(warehouse, epoch)

    monkeypatch.setattr(fencing, "check", counted)
    for _ in range(3):
        guarded.append(batch(spark), "batches", few=True)
    assert len(reads) == 1
    guarded.append(guarded.read("epochs").where("false"), "epochs")
    guarded.table("epochs").optimize().executeCompaction()
    guarded.append(batch(spark), "batches", few=True)
    fencing.begin_epoch(Warehouse(spark, guarded.root), "1")
    with pytest.raises(FencedError, match="epoch 2; this one"):
        guarded.append(batch(spark), "batches", few=True)
    assert guarded.read("batches").count() == 4


@pytest.mark.parametrize("guarded", ["directory"], indirect=True)
def test_epochs_is_read_again_when_it_was_made_anew(
    spark: SparkSession, guarded: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another's first epoch may stand in the commit in which this one's did."""
    guarded.append(batch(spark), "batches", few=True)
    shutil.rmtree(guarded.locate("epochs"))
    other = Warehouse(spark, guarded.root)
    other.create()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: 1)
        fencing.begin_epoch(other, "1", is_first=True)
    with pytest.raises(FencedError, match="pid 1, epoch 1; this one"):
        guarded.append(batch(spark), "batches", few=True)


@pytest.mark.short
def test_an_append_under_way_when_a_newer_epoch_fences_the_table_fails(
    spark: SparkSession, guarded: Warehouse, tmp_path: Path
) -> None:
    goes_on, is_writing = tmp_path / "goes on", tmp_path / "is writing"

    @F.udf("boolean")
    def waits(_: int) -> bool:
        is_writing.touch()
        while not goes_on.exists():
            time.sleep(0.05)
        return True

    failures: list[Exception] = []

    def append() -> None:
        try:
            guarded.append(batch(spark).where(waits("batch_id")), "batches")
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    wait_for(is_writing.exists)
    fencing.fence(Warehouse(spark, guarded.root), fencing.begin_epoch(Warehouse(spark, guarded.root), "1"), ["batches"])
    goes_on.touch()
    thread.join()
    assert "MetadataChanged" in repr(failures) or "metadata of the Delta table" in str(failures), failures
    assert guarded.read("batches").count() == 0
