"""A night in which one thing after another breaks: which alerts fire, what the doctor says, how all comes back.

Orders go on meanwhile. Prometheus itself evaluates the alerts that ship, over a coordinator in a process of its own,
which is started again when it has ended. Also: what metrics, alerts and dashboard name is there. Longer nights are in
`tests/unit/test_night.py`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from prometheus_client.core import Metric
from pyspark.sql import SparkSession
from tests.support.brokers import UnsteadyBroker, paused
from tests.support.cluster import free_port
from tests.support.killing import ROOT
from tests.support.lake import Lake
from tests.support.order_load import SETTINGS, OrderLoad
from tests.support.polling import patience, wait_for
from tests.support.prometheus import Samples, get, prometheus, promtool, samples
from tests.support.running import coordinator

import commitlake
from commitlake import consume
from commitlake.config import from_mapping
from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.counters import Counters
from commitlake.coordinator.landing import start as landing_start
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.metrics import collect
from commitlake.coordinator.metrics.server import serving
from commitlake.coordinator.round_log import RoundLog
from commitlake.errors import SetupError
from commitlake.kafka.admin_client import QUICK_TIMEOUT_MS
from commitlake.protocol import headers
from commitlake.tools import doctor
from commitlake.tools.audit.audit import audit
from commitlake.tools.findings import Diagnosis

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


@pytest.fixture
def running(spark: SparkSession, lake: Lake) -> Iterator[tuple[Coordinator, int]]:
    port = free_port()
    settings = {**lake.settings, "metrics.port": port, "transaction.timeout": "1s", "transaction.check_interval": "1h"}
    with commitlake.start(spark, settings) as coordinator:
        yield coordinator, port


def test_metrics_are_what_the_tables_say(running: tuple[Coordinator, int], lake: Lake) -> None:
    coordinator, port = running
    for number in range(3):
        lake.commit(f"t{number}")
    lake.op("ROLLBACK", "no", lake.half("no"))
    lake.half("open")
    lake.message("later", delays={headers.TIMER_DELAY_MS: "3600000"})
    lake.message("soon", delays={headers.TIMER_DELAY_MS: "10"})
    lake.message("")
    lake.op("COMMIT", "wrong", lake.half("right"))
    wait_for(lambda: len(lake.rows("transactions")) == 4 and len(lake.rows("checks")) == 2)
    wait_for(lambda: lake.rows("deliveries") and len(lake.rows("rejected")) == 2)
    with commitlake.consume(coordinator.config, "orders", group="points") as messages:
        next(messages).done()
    found = wait_for(lambda: ended(samples(port)), 60)
    ends = {labels: number for labels, number in found["commitlake_ended_total"].items() if number}
    assert ends == {("COMMITTED", "DIRECT"): 3, ("DIRECT", "ROLLED_BACK"): 1}
    assert found["commitlake_ended_total"]["DISCARDED", "EXPIRED"] == 0
    assert found["commitlake_end_seconds_count"][()] == found["commitlake_end_seconds_bucket"]["+Inf",] == 4
    assert 0 < found["commitlake_end_seconds_sum"][()] < 4 * 600
    assert found["commitlake_pending"] == {("orders",): 2}
    assert found["commitlake_oldest_pending_seconds"][()] > 1
    assert found["commitlake_checks_sent_total"] == {(): 2}
    assert found["commitlake_checks_answered_total"] == {(): 0}
    assert found["commitlake_kafka_reachable"] == {(): 1}
    assert found["commitlake_landing_lag_records"] == {("half",): 0, ("op",): 0, ("messages",): 0, ("admin",): 0}
    assert found["commitlake_rejected_total"]["WRONG_TRANSACTION_ID",] == 1
    assert found["commitlake_rejected_total"]["MISSING_UNIQ_KEY",] == 1
    assert sum(found["commitlake_rejected_total"].values()) == 2
    assert found["commitlake_epoch"][()] == coordinator.epoch
    assert found["commitlake_round_records_total"][()] == 14
    assert found["commitlake_deliveries_total"] == {("DELIVERED",): 1, ("RECALLED",): 0}
    assert found["commitlake_delivered_late_seconds_count"][()] == 1
    assert found["commitlake_delayed_waiting"][()] == 1
    assert found["commitlake_consumer_behind"] == {("orders", "points"): 2}
    assert found["commitlake_consumer_oldest_seconds"]["orders", "points"] > 0
    assert found["commitlake_consumer_members"] == {("orders", "points"): 0}
    assert {key for (key,), part in found["commitlake_disk_free_ratio"].items() if 0 < part < 1} == {
        "checkpoints",
        "warehouse",
    }
    assert found["commitlake_table_log_entries"][("half",)] >= 2
    assert set(found["commitlake_round_seconds_total"]) == {("classify",), ("write",)}
    assert doctor_says(coordinator).is_well
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/")[0] == 404

    files = ("conf/prometheus/alerts.yml", "conf/grafana/commitlake.json")
    named = {name for file in files for name in re.findall(r"commitlake_\w+", (ROOT / file).read_text())}
    assert named <= set(found) | EMPTY
    documented = set(re.findall(r"`(commitlake_\w+)", (ROOT / "docs/reference/metrics.md").read_text()))
    assert documented == {re.sub(r"_(bucket|count|sum)$", "", name) for name in found} | EMPTY
    coordinator.stop()
    assert not doctor_says(coordinator).is_well


EMPTY = {"commitlake_maintained_timestamp_seconds", "commitlake_to_kafka_failed"}
"""Metrics that may have no sample."""


def ended(found: Samples) -> Samples:
    """The samples, once they have all that was sent."""
    wanted = {"ended": 4, "rejected": 2, "checks_sent": 2, "deliveries": 1}
    return found if all(sum(found[f"commitlake_{name}_total"].values()) == n for name, n in wanted.items()) else {}


def doctor_says(coordinator: Coordinator) -> Diagnosis:
    """What the doctor says of the coordinator."""
    return next(each for each in doctor.examine(coordinator.config) if each.what == "coordinator")


def test_a_stopped_coordinator_answers_no_more_and_a_taken_port_is_told() -> None:
    def broken() -> list[Metric]:
        raise RuntimeError("no table")

    with serving("127.0.0.1", 0, broken, lambda: "no round for 61 s") as port:
        assert get(port, "/healthz") == (503, "no round for 61 s\n")
        assert get(port, "/metrics") == (500, "RuntimeError: no table\n")
        with (
            pytest.raises(SetupError, match=f"metrics.port: cannot listen on 127.0.0.1:{port}"),
            serving(
                "127.0.0.1",
                port,
                broken,
                lambda: None,
            ),
        ):
            pass
    with pytest.raises(urllib.error.URLError):
        get(port, "/healthz")


def test_alerts_and_dashboard_have_the_shape_that_prometheus_and_grafana_read() -> None:
    alerts = yaml.safe_load((ROOT / "conf/prometheus/alerts.yml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    needed = {"alert", "expr", "labels", "annotations"}
    assert all(needed <= set(rule) <= needed | {"for", "keep_firing_for"} for rule in rules)
    runbook = (ROOT / "docs/runbook.md").read_text()
    assert [rule["alert"] for rule in rules if f"\n## {rule['alert']}\n" not in runbook] == []
    links = [rule["annotations"]["runbook"] for rule in rules]
    assert links == [f"docs/runbook.md#{rule['alert'].lower()}" for rule in rules]
    board = json.loads((ROOT / "conf/grafana/commitlake.json").read_text())
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(places) == len(set(places)) == 18
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert all(each.count("commitlake_") == each.count('{instance=~"$instance"}') > 0 for each in expressions)


def test_prometheus_reads_every_alert_and_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    board = json.loads((ROOT / "conf/grafana/commitlake.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    expressions = [each.replace("$__rate_interval", "1m").replace("$instance", ".*") for each in expressions]
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(expressions)]
    (tmp_path / "board.yml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    alerts = ROOT / "conf/prometheus/alerts.yml"
    told = promtool("check", "rules", "board.yml", str(alerts), place=tmp_path)
    assert f"{len(expressions)} rules found" in told
    assert "1 rule files found" in promtool("check", "config", "prometheus.yml", place=alerts.parent)


Series = dict[str, str]
LAG = "commitlake_landing_lag_records"
REJECTED = "commitlake_rejected_total"
DUPLICATES = {f'{REJECTED}{{reason="DUPLICATE_OF"}}': "0+50x75"}  # as `topics.dedup` wants
EXPIRED = '{state="DISCARDED", reason="EXPIRED"}'
ONE, OTHER = '{instance="a", job="lake"}', '{instance="b", job="lake"}'
BOTH = {f"{name}{instance}": "1x75" for name in ("commitlake_epoch", "up") for instance in (ONE, OTHER)}


def alone(alert: str, metric: str, well: str, ill: str, more: Series | None = None) -> tuple[str, Series, Series]:
    """An alert about one metric of a coordinator that runs."""
    others = {"commitlake_epoch": "1x75", **(more or {})}
    return alert, {**others, metric: well}, {**others, metric: ill}


def unread(late_s: int, members: int) -> Series:
    """A group of consumers whose oldest message is older than so many seconds."""
    group = '{consumer_group="points", topic="orders"}'
    late = {f"commitlake_consumer_oldest_seconds{group}": f"{late_s + 1}x75"}
    return {"commitlake_epoch": "1x75", **late, f"commitlake_consumer_members{group}": f"{members}x75"}


CASES = [
    ("Down", BOTH, {**BOTH, f"commitlake_epoch{OTHER}": "1x30", f"up{OTHER}": "1x30 0x44"}),  # one of two is gone
    ("Down", BOTH, {"up": "1x75"}),  # there is none
    # Whatever its own clock says: one that is two hours behind and makes rounds, one that is ahead and makes none.
    alone("Down", "commitlake_alive_timestamp_seconds", "-7200+60x75", "9000x75"),
    alone("Restarts", "commitlake_epoch", "1x70 2x1 3x2", "1x67 2x2 3x2 4x2"),
    alone("KafkaAway", "commitlake_kafka_reachable", "1x75", "1x70 0x4"),
    alone("DiskNearlyFull", "commitlake_disk_free_ratio", "0.5x75", "0.05x75"),
    alone("OldestPending", "commitlake_oldest_pending_seconds", "5x75", "97x75"),
    alone("NoMaintenance", "commitlake_maintained_timestamp_seconds", "3600x75", "0x75"),
    alone("ForwardingFailed", 'commitlake_to_kafka_failed{topic="orders"}', "0x70 1x4", "0x40 1x34"),
    ("ConsumersAway", unread(600, 1), unread(600, 0)),  # nobody reads
    ("ConsumersAway", unread(0, 0), unread(3_600, 1)),  # they are there, and come no further
    # A lost check is repeated once; an instance that does not answer gets repeats after 5, 15 and 35 minutes.
    alone("ChecksUnanswered", "commitlake_checks_repeated_total", "0x60 1x14", "0x50 1x9 2x14"),
    alone("Rejects", f'{REJECTED}{{reason="BAD_OP"}}', "0+8x75", "0+50x75", DUPLICATES),
    alone("Discards", f"commitlake_ended_total{EXPIRED}", "9x75", "0+1x75"),
    alone("LagGrows", f'{LAG}{{topic="half"}}', "900000-1000x75", "100000+1000x75"),
    alone("LagGrows", f'{LAG}{{topic="half"}}', "0+100x75", "0+9000x75", {f'{LAG}{{topic="op"}}': "0x75"}),
]


@pytest.mark.parametrize(("alert", "well", "ill"), CASES)
def test_an_alert_fires_when_it_should_and_not_before(tmp_path: Path, alert: str, well: Series, ill: Series) -> None:
    def case(values: Series, firing: int) -> dict[str, object]:
        query = f'clamp_max(count(ALERTS{{alertname="CommitLake{alert}", alertstate="firing"}}), 1) or vector(0)'
        return {
            "interval": "1m",
            "input_series": [{"series": series, "values": each} for series, each in values.items()],
            "promql_expr_test": [
                {"expr": query, "eval_time": "75m", "exp_samples": [{"labels": "{}", "value": firing}]}
            ],
        }

    tests = {"rule_files": [str(ROOT / "conf/prometheus/alerts.yml")], "tests": [case(well, 0), case(ill, 1)]}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    promtool("test", "rules", "tests.yml", place=tmp_path)


def test_every_alert_is_tested() -> None:
    alerts = yaml.safe_load((ROOT / "conf/prometheus/alerts.yml").read_text())
    names = [rule["alert"] for group in alerts["groups"] for rule in group["rules"]]
    assert {f"CommitLake{name}" for name, _, _ in CASES} == set(names)


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
def test_without_kafka_the_other_metrics_are_there_before_prometheus_gives_up(tmp_path: Path, hangs: bool) -> None:
    config = from_mapping({"warehouse": str(tmp_path), "kafka.bootstrap_servers": f"127.0.0.1:{free_port()}"})
    with socket.socket() as silent:
        if hangs:
            silent.bind(("127.0.0.1", int(config.kafka.bootstrap_servers.split(":")[1])))
            silent.listen()
        ends = partial(landing_start.ends, config, QUICK_TIMEOUT_MS)
        run = (RoundLog(1_000), Counters(), LandingPosition(0, {}))
        metrics = collect.collect(config, *run, ends, epoch=1, failed={}, names=collect.MetricNames())
        begun = time.monotonic()
        found = {sample.name: sample.value for metric in metrics for sample in metric.samples}
        assert time.monotonic() - begun < 8 * patience()
    assert found["commitlake_kafka_reachable"] == 0
    assert found["commitlake_epoch"] == 1
    assert LAG not in found
