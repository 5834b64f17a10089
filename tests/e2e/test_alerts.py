"""A night: orders go on while one thing after another breaks. What fires, what the doctor says, how all comes back.

Prometheus itself evaluates the alerts that ship, over a coordinator in a process of its own, which is started again
when it has ended. Longer nights, of times that no test has: `tests/unit/test_night.py`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from pyspark.sql import SparkSession
from tests.support.brokers import UnsteadyBroker, paused
from tests.support.cluster import free_port
from tests.support.lake import Lake
from tests.support.order_load import SETTINGS, OrderLoad
from tests.support.polling import patience, wait_for
from tests.support.prometheus import prometheus
from tests.support.running import coordinator

from commitlake import consume
from commitlake.config import from_mapping
from commitlake.tools import doctor
from commitlake.tools.audit.audit import audit

FASTER = 10
"""Alerts wait for so much less time than the rules say, and the doctor with those that nobody reads for."""


class Night(ExitStack):
    """Kafka, a coordinator and Prometheus, until the end of the block.

    Attributes:
        lake: what is sent, and what readers see.
        firing: says which alerts fire now.
    """

    def __init__(self, place: Path) -> None:
        super().__init__()
        self._place, self.port = place, free_port()

    def __enter__(self) -> Self:
        super().__enter__()
        (scraped := self._place / "prometheus").mkdir()
        self.broker = UnsteadyBroker(self._place / "kafka")
        self.enter_context(self.broker)
        self.lake = self.enter_context(Lake(self.broker.bootstrap_servers, "commitlake.", self._place, **SETTINGS))
        self.config = from_mapping({**self.lake.settings, "metrics.port": self.port})
        self.start()
        watching = self.enter_context(prometheus(scraped, self.port, FASTER))
        self.firing = watching.firing
        return self

    def start(self) -> None:
        """Start a coordinator."""
        given = {**SETTINGS, "kafka.bootstrap_servers": self.broker.bootstrap_servers, "metrics.port": self.port}
        named: dict[str, Any] = {key.replace(".", "__"): value for key, value in given.items()}
        self.running = self.enter_context(coordinator(self._place, **named))
        self.running.ready()

    def fires(self, alert: str) -> bool:
        with suppress(OSError):  # Prometheus has just started
            return f"CommitLake{alert}" in self.firing()
        return False

    def is_quiet(self) -> bool:
        with suppress(OSError):
            return self.firing() <= {"CommitLakeDiskNearlyFull"}  # this machine's disk may be
        return False

    def doctor_says(self, what: str) -> str:
        """What the doctor has to say of something that is not well; empty where it is."""
        (found,) = [each for each in doctor.examine(self.config) if each.what == what]
        return "" if found.is_well else found.detail


def kafka_hangs(night: Night) -> Iterator[None]:
    with paused(night.broker):
        yield
        assert night.doctor_says("kafka")


def kafka_is_killed(night: Night) -> Iterator[None]:
    night.broker.kill()
    yield
    night.broker.restart()


def the_coordinator_hangs(night: Night) -> Iterator[None]:
    os.killpg(night.running.process.pid, signal.SIGSTOP)
    yield
    assert "does not answer" in night.doctor_says("coordinator")
    os.killpg(night.running.process.pid, signal.SIGCONT)


def the_coordinator_is_killed(night: Night) -> Iterator[None]:
    os.killpg(night.running.process.pid, signal.SIGKILL)
    yield
    assert night.doctor_says("coordinator")
    night.start()


def nobody_answers_for_a_transaction(night: Night) -> Iterator[None]:
    dead = night.lake.half("dead", topic="dead")
    yield
    assert night.doctor_says("pending")
    night.lake.admin("ROLLBACK", "dead", dead)


def nobody_reads(night: Night) -> Iterator[None]:
    with consume(night.config, "orders", group="points") as messages:
        next(iter(messages)).done()
    yield
    assert night.doctor_says("groups")
    with consume(night.config, "orders", group="points", follow=False) as messages:
        for message in messages:
            message.done()


TROUBLES: list[tuple[Callable[[Night], Iterator[None]], str]] = [
    (kafka_hangs, "KafkaAway"),
    (kafka_is_killed, "KafkaAway"),
    (the_coordinator_hangs, "Down"),
    (the_coordinator_is_killed, "Down"),
    (nobody_answers_for_a_transaction, "OldestPending"),
    (nobody_reads, "ConsumersAway"),
]


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_each_trouble_of_a_night_is_told_and_passes(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_MOST_BEHIND_S", doctor._MOST_BEHIND_S // FASTER)
    with Night(tmp_path) as night:
        load = OrderLoad(night.lake, tmp_path)
        with load.steadily():
            wait_for(load.is_shown(), 120 * patience())
            wait_for(night.is_quiet, 120 * patience(), night.firing)
            for trouble, alert in TROUBLES:
                begun = time.monotonic()
                with contextmanager(trouble)(night):
                    wait_for(partial(night.fires, alert), 240 * patience(), night.firing)
                    told = time.monotonic()
                mended = time.monotonic()
                night.running.until(load.is_shown(), 240 * patience())
                shown = time.monotonic()
                wait_for(night.is_quiet, 240 * patience(), night.firing)
                with capsys.disabled():
                    name = trouble.__name__.replace("_", " ")
                    print(f"\n{name}: {alert} after {told - begun:.0f} s; new rows after {shown - mended:.0f} s more")
        night.running.until(load.is_over, 300 * patience())
        night.running.stop()
        load.assert_outcome()
        assert audit(spark, str(night.lake.tables)).is_well
