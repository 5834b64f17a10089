"""`/metrics` and `/healthz` of a running coordinator, and that alerts and dashboard name metrics that exist."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import yaml
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from tests.support.cluster import free_port
from tests.support.killing import ROOT
from tests.support.lake import Lake
from tests.support.polling import wait_for

import commitlake
from commitlake.coordinator import Coordinator
from commitlake.errors import SetupError
from commitlake.metrics.server import serving

Samples = dict[str, dict[tuple[str, ...], float]]


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(port: int) -> Samples:
    code, text = get(port, "/metrics")
    assert code == 200, text
    return {
        family.name: {tuple(sorted(sample.labels.values())): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }


@pytest.fixture
def running(spark: SparkSession, lake: Lake) -> Iterator[tuple[Coordinator, int]]:
    port = free_port()
    settings = {**lake.settings, "metrics.port": port, "transaction.timeout": "1s", "transaction.check_interval": "1h"}
    with commitlake.start(spark, settings) as coordinator:
        yield coordinator, port


def test_metrics_are_what_the_tables_say(running: tuple[Coordinator, int], lake: Lake) -> None:
    coordinator, port = running
    for number in range(3):
        lake.op("COMMIT", f"t{number}", lake.half(f"t{number}"))
    lake.op("ROLLBACK", "no", lake.half("no"))
    lake.half("open")
    lake.op("COMMIT", "wrong", lake.half("right"))
    wait_for(lambda: len(lake.rows("transactions")) == 4 and len(lake.rows("checks")) == 2)
    found = wait_for(lambda: ended(samples(port)), 60)
    assert found["commitlake_ended_5m"] == {
        ("COMMITTED", "DIRECT", "orders"): 3,
        ("DIRECT", "ROLLED_BACK", "orders"): 1,
    }
    assert found["commitlake_pending"] == {("g", "orders"): 2}
    assert found["commitlake_oldest_pending_seconds"][()] > 1
    assert found["commitlake_checks_sent_5m"] == {("g",): 2}
    assert found["commitlake_landing_lag_records"] == {("half",): 0, ("op",): 0, ("messages",): 0, ("admin",): 0}
    assert found["commitlake_rejected_5m"] == {("WRONG_TRANSACTION_ID",): 1}
    assert found["commitlake_epoch"][()] == coordinator.epoch
    assert found["commitlake_round_records"][()] >= 1
    assert set(found["commitlake_round_seconds"]) == {("judge",), ("write",)}
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/")[0] == 404

    named = set(re.findall(r"commitlake_\w+", (ROOT / "conf/prometheus/alerts.yml").read_text()))
    named |= set(re.findall(r"commitlake_\w+", (ROOT / "conf/grafana/commitlake.json").read_text()))
    assert named <= set(found) | EMPTY
    documented = set(re.findall(r"`(commitlake_\w+)", (ROOT / "docs/operations.md").read_text()))
    assert documented == set(found) | EMPTY


EMPTY = {"commitlake_checks_repeated_5m", "commitlake_checks_answered_5m"}
"""Metrics that may have no sample."""


def ended(found: Samples) -> Samples:
    """The samples, once they have all that was sent."""
    return found if sum(found.get("commitlake_ended_5m", {}).values()) == 4 and found["commitlake_rejected_5m"] else {}


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
    assert all(needed <= set(rule) <= needed | {"for"} for rule in rules)
    operations = (ROOT / "docs/operations.md").read_text()
    assert [rule["alert"] for rule in rules if f"`{rule['alert']}`" not in operations] == []
    board = json.loads((ROOT / "conf/grafana/commitlake.json").read_text())
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(places) == len(set(places)) == 12
    assert all(target["expr"] for panel in board["panels"] for target in panel["targets"])
