"""Whoever hangs is asked soon, while other traffic goes on: also after a landing that was cut short."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.lake import Lake
from tests.support.polling import patience, wait_for

from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.forwarding.to_kafka import Forwarders
from commitlake.coordinator.landing import positions
from commitlake.coordinator.landing.land import Landing
from commitlake.coordinator.run import Run
from commitlake.errors import CommitLakeError
from commitlake.protocol.clock import now_ms

TIMINGS = {"transaction.timeout": "1s", "transaction.check_interval": "1s", "transaction.op_park_time": "3s"}
pytestmark = pytest.mark.lake(TIMINGS)
SOON_S = 15
"""Timeout, a round or two on two busy cores, and the check's way to Kafka."""


@contextmanager
def steady_traffic(lake: Lake) -> Iterator[None]:
    """Transactions of queue 0, one right after the other: at no time has all landed that Kafka holds."""
    stopping = threading.Event()

    def serve() -> None:
        for number in itertools.count():
            if stopping.wait(0.02):
                return
            lake.commit(f"other {number}")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(30)


def is_asked(lake: Lake, tid: str) -> bool:
    return any(check.transaction_id == tid for check in lake.checks())


def cut_short(spark: SparkSession, lake: Lake, silent: str) -> None:
    """A landing wrote all its tables, a record of a partition that is silent from now on too, and was cut off."""
    lake.run(spark)
    decided = lake.half("decided", 1)
    if silent == "admin":
        lake.admin("COMMIT", "decided", decided)
    elif silent == "op":
        lake.op("COMMIT", "decided", decided)

    def cut(*_: object) -> None:
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Exception, match="InterruptedError"):
        patched.setattr(positions, "append", cut)
        lake.run(spark)


@pytest.mark.parametrize("silent", ["admin", pytest.param("op", marks=pytest.mark.soak)])
def test_a_hanging_transaction_is_asked_though_a_landing_was_cut_short(
    spark: SparkSession, lake: Lake, silent: str
) -> None:
    cut_short(spark, lake, silent)
    with steady_traffic(lake), Coordinator(spark, lake.config).start():
        # The first round of a start takes several times as long as others.
        wait_for(lambda: len({row["batch_id"] for row in lake.rows("transactions")}) > 1)
        lake.half("hanging")
        wait_for(lambda: is_asked(lake, "hanging"), SOON_S * patience())


def test_a_hanging_transaction_is_asked_after_a_call_to_the_jvm_failed_once(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on a busy machine: the thread that ticks ended, and what was due waited for the next record, for ever.

    Nor does a deadline wait for a Kafka that keeps a forwarder waiting.
    """
    failed, forwards = threading.Event(), threading.Event()
    monkeypatch.setattr(Forwarders, "tick", lambda _: forwards.wait())
    has_failed = Run.failed

    def fails_once(run: Run) -> CommitLakeError | None:
        if not failed.is_set():
            failed.set()
            raise Py4JError("An error occurred while calling o45543.isActive")
        return has_failed(run)

    monkeypatch.setattr(Run, "failed", fails_once)
    with Coordinator(spark, lake.config).start():
        assert failed.wait(30)
        lake.half("hanging")
        wait_for(lambda: is_asked(lake, "hanging"), SOON_S * patience())
        forwards.set()


def test_a_jvm_that_answers_no_more_is_told(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: Run) -> None:
        raise Py4JError("An error occurred while calling o1.isActive")

    told: list[CommitLakeError] = []
    with Coordinator(spark, lake.config, on_failure=told.append).start():
        monkeypatch.setattr(Run, "failed", fails)
        wait_for(lambda: told, 30 * patience())
    assert "Spark's JVM does not answer" in str(told[0])
    assert any("the coordinator has stopped" in message for message in caplog.messages)


@pytest.mark.parametrize("what", ["a landing", "Spark"])
def test_what_hangs_is_told_though_nothing_is_due(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Ticks took it for idle, second by second: neither `/healthz` nor a metric told of it."""
    owner, name = (Landing, "classify") if what == "a landing" else (StreamingQuery, "isActive")
    met, goes_on = threading.Event(), threading.Event()
    work: Any = getattr(owner, name)

    def hanging(*given: Any) -> Any:
        met.set()
        goes_on.wait(300)
        return work(*given) if what == "a landing" else work.fget(*given)

    with Coordinator(spark, lake.config).start() as running:
        assert running._served.scheduler
        rounds = running._served.scheduler.rounds
        try:
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, hanging if what == "a landing" else property(hanging))
                lake.message("a", topic="orders")
                assert met.wait(60 * patience())
                wait_for(lambda: lake.topic("orders") or what == "a landing")
                wait_for(lambda: now_ms() - rounds.alive_at > 5_000, 60)
        finally:
            goes_on.set()
        wait_for(lambda: now_ms() - rounds.alive_at < 2_000 and len(lake.topic("orders")) == 1, 60)
