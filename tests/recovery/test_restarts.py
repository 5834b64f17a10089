"""What ends the queries and may pass: all begin again in the same process; what a changed configuration does."""

from __future__ import annotations

import gc
import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from tests.support.brokers import UnsteadyBroker, paused
from tests.support.cluster import free_port
from tests.support.faults import WriteFault, WriteFaults
from tests.support.lake import Lake, newest
from tests.support.namespace import Listener
from tests.support.polling import patience, wait_for
from tests.support.prometheus import get, samples
from tests.support.running import coordinator
from tests.support.traffic import HASTY, Traffic

from commitlake import LocalTransactionState, Message, TransactionMQProducer
from commitlake.coordinator import restarts, run
from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.landing.land import Landing
from commitlake.coordinator.recovery import fencing, recover
from commitlake.coordinator.restarts import Restarts
from commitlake.coordinator.run import Run
from commitlake.errors import CommitLakeError, FencedError
from commitlake.protocol.encoding import Position

AT_ONCE = {key.replace(".", "_"): value for key, value in HASTY.items()}
STEPS = (
    *("landing:half", "landing:topic", "positions", "coordination:transactions", "coordination:topic"),
    *("discarded", "checks", "batches", "deliveries"),
)
AGAIN = "all queries run again, after"


class Failures(WriteFaults):
    """Each of some writes fails once, one after the other, before it or after it.

    Attributes:
        left: those still to come.
    """

    def __init__(self, steps: list[tuple[str, str]]) -> None:
        super().__init__((), 0, "")
        self._count, self.left = len(steps), steps

    def around(self, step: str, rows: Any, write: Callable[[Any], object]) -> None:
        moment = self._due_now(step)
        if moment == "before":
            raise OSError(f"injected: before {step}")
        write(rows)
        if moment == "after":
            raise OSError(f"injected: after {step}")

    def happened(self, times: int) -> bool:
        """Whether so many have failed."""
        return self._count - len(self.left) >= times

    def _due_now(self, step: str) -> str:
        with self._lock:
            if self.left and WriteFault(self.left[0][0]).concerns(step):
                return self.left.pop(0)[1]
        return ""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(("positions", "coordination:transactions"), id="short"),
        pytest.param(STEPS, id="all", marks=pytest.mark.soak),
    ],
)
def test_a_write_that_fails_at_any_step_is_gone_about_again(
    spark: SparkSession,
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    steps: tuple[str, ...],
) -> None:
    failures = Failures([(step, moment) for step in steps for moment in ("before", "after")])
    count, traffic = len(failures.left), Traffic(lake)
    monkeypatch.setattr(restarts, "PAUSES_S", (0.1,) * count)
    with Coordinator(spark, lake.configured(**AT_ONCE)).start() as running:
        failures.arm(monkeypatch)  # the first start writes a position, too
        while failures.left:
            due = count - len(failures.left) + 1
            traffic.send()
            wait_for(partial(failures.happened, due), 300, lambda: running.await_termination(0))
            wait_for(lambda: caplog.text.rfind(AGAIN) > caplog.text.rfind("all queries begin again in"), 300)
        wait_for(lambda: running.await_termination(0) or traffic.is_over(), 400)
        assert 1 < caplog.text.count(AGAIN) + 1 <= running.epoch <= count + 1  # two steps may fail at once, or a start
    assert (
        len(re.findall(r"begin again in 0 s, try \d+ of .* the (landing|coordination) query failed", caplog.text)) > 1
    )
    traffic.settle(spark, **AT_ONCE)
    traffic.assert_outcome()


def test_what_lasts_ends_it_after_so_many_tries(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "PAUSES_S", (0.1, 0.1))
    told: list[Exception] = []
    with Coordinator(spark, lake.config, on_failure=told.append).start() as running:
        Failures([("positions", "before")] * 9).arm(monkeypatch)
        monkeypatch.setattr("commitlake.coordinator.coordinator._NOBODY_WAITS_S", float("inf"))
        assert not running.await_termination(0)  # so somebody waits, for ever
        lake.half("a")
        wait_for(lambda: told, 300)
        assert running.epoch == 3
    assert "the landing query failed: " in str(told[0])
    assert "injected" in str(told[0])


@pytest.mark.timeout(600)
def test_one_that_was_replaced_while_it_paused_does_not_begin_again(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Off local disks, where epochs alone keep two apart: it would fence the newer one, and that one it."""
    monkeypatch.setattr(fencing, "is_local", lambda _: False)
    monkeypatch.setattr(restarts, "PAUSES_S", (0.1,))
    goes_on, pause_s = threading.Event(), Restarts.pause_s

    def pausing(own: Restarts, error: CommitLakeError, ran_s: float) -> float | None:
        found = pause_s(own, error, ran_s)
        if found is not None:
            goes_on.wait(300)
        return found

    monkeypatch.setattr(Restarts, "pause_s", pausing)
    with Coordinator(spark, lake.config).start() as first:
        Failures([("positions", "before")]).arm(monkeypatch)
        lake.commit("a")
        wait_for(lambda: "all queries begin again" in caplog.text, why=lambda: caplog.text)
        with Coordinator(spark, lake.config).start() as second:
            goes_on.set()
            with pytest.raises(FencedError, match=r"has taken over this warehouse: .* epoch 2;"):
                first.await_termination(timeout=60 * patience())
            lake.commit("b")
            wait_for(lambda: len(lake.topic("orders")) == 2, why=lambda: second.await_termination(0))
    assert len(lake.rows("epochs")) == 2


def test_a_begin_that_fails_behind_its_own_epoch_is_gone_about_again(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off local disks it took the epoch that it had just begun for another coordinator's, and ended."""
    monkeypatch.setattr(fencing, "is_local", lambda _: False)
    monkeypatch.setattr(restarts, "PAUSES_S", (0.1, 0.1))
    fence, failed = fencing.fence, threading.Event()

    def failing(*given: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError("injected: before a fence")
        fence(*given)

    with Coordinator(spark, lake.config).start() as running:
        Failures([("positions", "before")]).arm(monkeypatch)
        monkeypatch.setattr(fencing, "fence", failing)
        lake.commit("a")
        wait_for(lambda: running.await_termination(0) or len(lake.topic("orders")) == 1, 300)
        assert failed.is_set()
        assert running.epoch == 3


def test_a_run_that_can_not_be_stopped_ends_it(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the application has stopped Spark: nobody can tell whether the next one would be alone."""
    told: list[Exception] = []
    stop = Run.stop

    def failing(own: Run) -> bool:
        stop(own)
        raise Py4JError("injected: while it stops")

    with Coordinator(spark, lake.config, on_failure=told.append).start(), monkeypatch.context() as patch:
        patch.setattr(Run, "stop", failing)
        Failures([("positions", "before")]).arm(patch)
        lake.half("a")
        wait_for(lambda: told, 120)
    assert "the landing query failed: " in str(told[0])


class SlowRejects(Failures):
    """What coordination rejects takes some seconds to write."""

    def around(self, step: str, rows: Any, write: Callable[[Any], object]) -> None:
        if WriteFault("coordination:rejected").concerns(step):
            time.sleep(5)
        super().around(step, rows, write)


def test_what_is_over_only_when_its_query_has_ended_keeps_none_from_beginning_again(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a store is away: what is under way may take longer to fail than a stop waits."""
    monkeypatch.setattr(restarts, "PAUSES_S", (0.1,))
    monkeypatch.setattr(run, "_STOP_TIMEOUT_S", 0.5)
    at = lake.half("a")
    lake.op("COMMIT", "a", at)
    with Coordinator(spark, lake.configured(transaction_op_park_time="0s")).start() as running:
        wait_for(lambda: len(lake.topic("orders")) == 1, why=lambda: running.await_termination(0))
        failures = SlowRejects([("positions", "before")])
        failures.arm(monkeypatch)
        lake.op("ROLLBACK", "a", at)  # in vain: written behind what the round shows, while its landing fails
        wait_for(lambda: running.await_termination(0) or bool(lake.rejected()), 300)
        assert failures.happened(1)
        assert running.epoch == 2


def test_a_run_that_has_ended_leaves_nothing_in_memory(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Java kept what its queries call, and that kept Java's queries: each restart left a whole run, with its caches."""
    monkeypatch.setattr(restarts, "PAUSES_S", (0.1,))
    caplog.set_level(logging.CRITICAL, "py4j")  # its record of the error would keep the run
    java: Any = spark._jvm

    def is_gone(ended: weakref.ref[Run]) -> bool:
        gc.collect()
        java.System.gc()
        return ended() is None

    with Coordinator(spark, lake.config).start() as running:
        assert running._run is not None
        first = weakref.ref(running._run)
        Failures([("positions", "before")]).arm(monkeypatch)
        lake.commit("a")
        wait_for(lambda: len(lake.topic("orders")) == 1, 300, lambda: running.await_termination(0))
        wait_for(lambda: is_gone(first), 120)
        lake.commit("b")
        wait_for(lambda: len(lake.topic("orders")) == 2, 300, lambda: running.await_termination(0))
        assert running._served.scheduler is not None
        kept = running._served.scheduler._context.half_cache._kept
        assert kept
    assert not kept


class Outages(WriteFaults):
    """Kafka goes away when something is about to be done, and comes back after some time.

    Attributes:
        step: when; empty for never.
    """

    def __init__(self, away: Callable[[], object]) -> None:
        super().__init__((), 0, "")
        self._away, self.step = away, ""
        self._may_begin = threading.Event()
        self._thread: threading.Thread | None = None

    def around(self, step: str, rows: Any, write: Callable[[Any], object]) -> None:
        self.meets(step)
        write(rows)

    def meet(self, step: str, send: Callable[[], None]) -> None:
        """The next outage begins at that step, and not before all is sent that leads to it."""
        self._may_begin.clear()
        self.step = step
        send()
        self._may_begin.set()

    def meets(self, step: str) -> None:
        """Begins the outage, if it is this step's."""
        with self._lock:
            if not self.step or not WriteFault(self.step).concerns(step):
                return
            self.step, self._thread = "", None
        assert self._may_begin.wait(300)
        thread = threading.Thread(target=self._away, daemon=True)
        thread.start()
        self._thread = thread
        time.sleep(1)

    def is_over(self) -> bool:
        """Whether it has begun, and Kafka is back."""
        return not self.step and self._thread is not None and not self._thread.is_alive()

    def arm(self, patch: pytest.MonkeyPatch) -> None:
        """As for writes; reading Kafka, and the tables at a start, are steps too."""
        super().arm(patch)
        for owner, name in ((Landing, "classify"), (recover, "recover")):
            patch.setattr(owner, name, met(self, name, getattr(owner, name)))


def met(outages: Outages, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    def meeting(*given: Any) -> Any:
        outages.meets(name)
        return work(*given)

    return meeting


def test_a_kafka_that_answers_and_is_refused_is_waited_for_with_an_alert(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with rights that were taken away: the process is well, makes its rounds, and no figure told that it waits."""
    monkeypatch.setattr(restarts, "PAUSES_S", (0.1,))
    port, op = free_port(), lake.config.kafka.topic("op")

    def reachable() -> float:
        return samples(port)["commitlake_kafka_reachable"][()]

    with closing(KafkaAdminClient(bootstrap_servers=lake.config.kafka.bootstrap_servers)) as admin:

        def clean_up_by(policy: str) -> None:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, op, configs={"cleanup.policy": policy})])

        with Coordinator(spark, lake.configured(metrics_port=port)).start() as running:
            clean_up_by("compact")
            Failures([("positions", "before")]).arm(monkeypatch)
            lake.commit("a")
            wait_for(lambda: "all queries wait for Kafka, and nothing is lost: the Kafka topic " in caplog.text, 300)
            wait_for(lambda: reachable() == 0, 60)
            assert get(port, "/healthz")[0] == 200
            clean_up_by("delete")
            wait_for(lambda: running.await_termination(0) or len(lake.topic("orders")) == 1, 300)
            wait_for(lambda: reachable() == 1, 60)


OUTAGE_S = 20.0
IMPATIENT = {
    f"kafka.options.{name}": ms
    for name, ms in {
        "default.api.timeout.ms": 3_000,
        "request.timeout.ms": 2_500,
        "session.timeout.ms": 2_400,
        "heartbeat.interval.ms": 500,
    }.items()
}
"""What takes Kafka's client a minute by default takes it three seconds."""


@pytest.fixture
def unsteady(tmp_path: Path) -> Iterator[UnsteadyBroker]:
    broker = UnsteadyBroker(tmp_path / "kafka")
    with broker:
        yield broker


@pytest.fixture
def soon_given_up(spark: SparkSession) -> Iterator[None]:
    """Spark waits so long for records of Kafka, by default two minutes."""
    conf: Any = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.network.timeout", "4s")
    yield
    conf.remove("spark.network.timeout")


@pytest.mark.soak
@pytest.mark.timeout(3_000)
@pytest.mark.usefixtures("soon_given_up")
@pytest.mark.parametrize("how", ["hangs", "is killed"])
def test_an_outage_of_kafka_is_waited_for_at_each_step(
    spark: SparkSession,
    unsteady: UnsteadyBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    away = unsteady.freeze if how == "hangs" else unsteady.crash
    outages, port = Outages(partial(away, OUTAGE_S)), free_port()
    outages.arm(monkeypatch)
    servers = unsteady.bootstrap_servers
    with Lake(servers, "outages.", tmp_path, **IMPATIENT, **{**HASTY, "metrics.port": port}) as lake:
        traffic = Traffic(lake)
        with Coordinator(spark, lake.config).start() as running:
            steps = ("classify", "landing:half", "positions", "coordination:transactions", "batches", "kafka")
            for step in steps:
                outages.meet(step, traffic.send)
                wait_for(outages.is_over, 300, lambda: caplog.text)
                wait_for(lambda: get(port, "/healthz") == (200, "ok\n"), 60)  # what failed may be told after it
                wait_for(traffic.is_written, 300, lambda: (running.await_termination(0), caplog.text))
            # Met by the start that follows an outage, which is the second one then.
            outages.meet("classify", traffic.send)
            wait_for(lambda: not outages.step, 300)
            outages.step = "recover"
            wait_for(lambda: not outages.step or traffic.is_written(), 300)
            outages.step = ""
            wait_for(outages.is_over, 300)
            wait_for(lambda: running.await_termination(0) or traffic.is_over(), 400, lambda: caplog.text)
            assert samples(port)["commitlake_kafka_reachable"] == {(): 1}
            assert caplog.text.count("all queries begin again in") <= len(steps) + 2
        assert AGAIN in caplog.text  # at least what read Kafka had to
        traffic.settle(spark)
        traffic.assert_outcome()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("how", ["hangs", "is killed"])
def test_five_minutes_without_kafka_are_waited_for(unsteady: UnsteadyBroker, tmp_path: Path, how: str) -> None:
    port = free_port()
    with Lake(unsteady.bootstrap_servers, "five.", tmp_path, **{**HASTY, "metrics.port": port}) as lake:
        traffic = Traffic(lake)
        given = {key: value for key, value in lake.settings.items() if key not in ("warehouse", "checkpoints")}
        with coordinator(tmp_path, **given) as running:
            running.ready()
            traffic.send()
            running.until(traffic.is_written, 300)
            stopping = threading.Event()

            def send() -> None:
                # Kafka goes away in the middle; an idempotent producer would wait for ever for what it has given up.
                producer = KafkaProducer(bootstrap_servers=unsteady.bootstrap_servers, enable_idempotence=False)
                with suppress(Exception):
                    while not stopping.wait(0.05):
                        producer.send(lake.config.kafka.topic("op"), b"not JSON")
                with suppress(Exception):
                    producer.close(timeout=0)

            thread = threading.Thread(target=send, daemon=True)
            thread.start()
            time.sleep(5)
            if how == "hangs":
                with paused(unsteady):
                    stopping.set()
                    watch(port, running.process.poll)
            else:
                assert unsteady._process is not None
                stopping.set()
                away = threading.Thread(target=unsteady.crash, args=(300,))
                away.start()
                watch(port, running.process.poll)
                away.join()
            wait_for(lambda: samples(port)["commitlake_kafka_reachable"] == {(): 1}, 300)
            with Lake(unsteady.bootstrap_servers, "five.", tmp_path, **HASTY) as later:
                traffic.lake = later
                traffic.send()
                running.until(traffic.is_written, 600)
                running.stop()
    assert running.process.returncode == 0
    assert len([line for line in running.said.splitlines() if " WARN" in line]) < 40, running.said


def watch(port: int, ended: Callable[[], int | None]) -> None:
    """Five minutes in which it must be well, and tell that Kafka is away."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        assert ended() is None
        assert get(port, "/healthz") == (200, "ok\n")
        time.sleep(5)
    assert samples(port)["commitlake_kafka_reachable"] == {(): 0}


def checks_of(lake: Lake, at: Position) -> list[int]:
    found = (row["check_no"] for row in lake.rows("checks") if (row["queue"], row["half_offset"]) == tuple(at))
    return sorted(found)


def end_of(lake: Lake, at: Position) -> tuple[str, str] | None:
    row = newest(lake.rows("transactions")).get((at.queue, at.offset))
    return (row["state"], row["reason"]) if row else None


@pytest.mark.soak
def test_next_deadlines_follow_changed_timings_and_checks_count_on(spark: SparkSession, lake: Lake) -> None:
    at = lake.half("t")
    lake.run(spark)
    assert checks_of(lake, at) == []
    lake.run(spark, transaction_timeout="0s")
    assert checks_of(lake, at) == [1]
    lake.run(spark, transaction_timeout="0s", transaction_check_interval="1ms")  # it waits for its answer
    assert checks_of(lake, at) == [1]
    lake.run(spark, transaction_check_repeat="1ms")
    assert checks_of(lake, at) == [1, 1]
    lake.answer_unknown()
    lake.run(spark)  # the interval, an hour, counts from the answer
    assert checks_of(lake, at) == [1, 1]
    lake.run(spark, transaction_check_interval="1ms", transaction_check_max=3)
    assert checks_of(lake, at) == [1, 1, 2]
    lake.answer_unknown()
    lake.run(spark, transaction_check_interval="1h", transaction_check_max=3)
    assert (checks_of(lake, at), end_of(lake, at)) == ([1, 1, 2], None)
    lake.run(spark, transaction_check_interval="1ms", transaction_check_max=2)
    assert (checks_of(lake, at), end_of(lake, at)) == ([1, 1, 2], ("DISCARDED", "CHECK_MAX"))


@pytest.mark.soak
def test_an_unanswered_check_that_counts_does_so_across_starts(spark: SparkSession, lake: Lake) -> None:
    at = lake.half("t")
    counts = {"transaction_unanswered": "count", "transaction_timeout": "0s", "transaction_check_max": 2}
    for _ in range(2):  # the interval is an hour
        lake.run(spark, **counts)
        assert (checks_of(lake, at), end_of(lake, at)) == ([1], None)
    for _ in range(2):  # one start may come to the second check, or past it
        lake.run(spark, **{**counts, "transaction_check_interval": "1ms"})
    assert (checks_of(lake, at), end_of(lake, at)) == ([1, 2], ("DISCARDED", "CHECK_MAX"))


class Sending:
    """A producer that keeps sending transactions from a thread of its own; every fifth stays open until its check."""

    def __init__(self, lake: Lake) -> None:
        kafka = lake.config.kafka
        self.producer = TransactionMQProducer(
            "g",
            Listener(),
            bootstrap_servers=kafka.bootstrap_servers,
            topic_prefix=kafka.topic_prefix,
            options={"metadata.max.age.ms": "1000"},
        )
        self.sent: list[str] = []
        self.queues: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        known = (LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.UNKNOW)
        while not self._over.is_set():
            body = f"order {len(self.sent)}"
            result = self.producer.send_message_in_transaction(Message("orders", body), known[len(self.sent) % 5 == 0])
            self.queues.add(result.queue_id)
            self.sent.append(body)
            time.sleep(0.05)

    def __enter__(self) -> Sending:
        self.producer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        self.producer.shutdown()

    def finish(self) -> None:
        """Sends no more, and goes on answering checks."""
        self._over.set()
        self._thread.join()


@pytest.mark.soak
def test_queues_added_at_a_restart_are_used_and_old_transactions_end(spark: SparkSession, lake: Lake) -> None:
    with Coordinator(spark, lake.config).start(), Sending(lake) as sending:
        wait_for(lambda: len(sending.sent) > 20 and lake.topic("orders"))
    ended_before = len(lake.rows("transactions"))
    grown = lake.configured(
        kafka_queues=4, transaction_timeout="2s", transaction_check_interval="2s", transaction_check_max=15
    )
    with Sending(lake) as later, Coordinator(spark, grown).start():
        wait_for(lambda: later.queues == {0, 1, 2, 3})
        later.finish()
        sent = len(sending.sent) + len(later.sent)
        wait_for(lambda: len(lake.rows("transactions")) == sent, why=lambda: lake.rows("transactions"))
    assert ended_before < len(sending.sent), "none was open at the restart"
    assert sending.queues == {0, 1}
    assert {(row["state"], row["reason"]) for row in lake.rows("transactions")} <= {
        ("COMMITTED", "DIRECT"),
        ("COMMITTED", "CHECK"),
    }
    assert {row["queue"] for row in lake.rows("half")} == {0, 1, 2, 3}
    assert sorted(row["body"].decode() for row in lake.topic("orders")) == sorted(sending.sent + later.sent)
    assert lake.rejected() == {}
