"""Counters, and labels of metrics: their number never depends on what producers choose."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from commitlake.coordinator.counters import Ages, Counters
from commitlake.coordinator.metrics.collect import MetricNames, of_counters
from commitlake.protocol.states import LANDING_REASONS

CONTRACT = Path(__file__).parents[2] / "docs" / "contract.md"


def test_counts_are_added_by_labels_and_may_begin_at_0() -> None:
    counters = Counters()
    counters.add("rejected", {("BAD_OP",): 2})
    counters.add("rejected", {("BAD_OP",): 1, ("NULL_BODY",): 1})
    assert counters.of("rejected", [("BAD_OP",), ("BAD_BATCH",)]) == {
        ("BAD_OP",): 3,
        ("NULL_BODY",): 1,
        ("BAD_BATCH",): 0,
    }
    assert counters.of("answers", [()]) == {(): 0}


def test_ages_are_counted_up_to_each_bound() -> None:
    ages = Ages()
    ages.add([(0, 1), (89_998_500, 2)], until=90_000_000)
    ages.add([(1_000, 1), (1_001, 1)], until=1_000)
    assert ages.sums == ((2, 4, 4, 4, 4, 4, 4, 4, 4, 4), 5, 90_003.0)


def test_what_is_counted_are_counters_and_histograms_of_prometheus() -> None:
    class Collector:
        def collect(self) -> list[Metric]:
            return list(of_counters(counters))

    counters = Counters()
    counters.ended.add([(500, 1)], until=1_000)
    counters.normal.add([(500, 1)], until=1_000)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    families = {each.name: each for each in text_string_to_metric_families(generate_latest(registry).decode())}
    kinds = {name: each.type for name, each in families.items()}
    assert set(kinds.values()) == {"counter", "histogram"}
    assert {each.name for each in families["commitlake_ended"].samples} == {"commitlake_ended_total"}
    assert all(each.value == 0 for each in families["commitlake_rejected"].samples)
    assert {"_bucket", "_count", "_sum"} == {each.name[22:] for each in families["commitlake_end_seconds"].samples}
    late = {each.labels["source"]: each.value for each in families["commitlake_visible_late_seconds"].samples}
    assert late == {"half": 0, "messages": 0.5}, "the last sample of each is its sum"


def test_however_many_topics_there_are_few_have_a_name_and_keep_it() -> None:
    names = MetricNames()
    first = [names.label(f"topic{number}") for number in range(50)]
    assert first == [f"topic{number}" for number in range(50)]
    assert {names.label(f"more{number}") for number in range(1_000)} == {"_others"}
    assert names.label("topic7") == "topic7"


def test_every_reason_of_the_contract_is_a_series_from_the_start() -> None:
    listed = re.findall(r"^\d+\. `([A-Z_]+)`", CONTRACT.read_text(), re.MULTILINE)
    assert list(LANDING_REASONS) == listed
