"""`visible_at` says when a row could be read, and lateness counts until then, however long a step before is held up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support import tables
from tests.support.cluster import free_port
from tests.support.faults import WriteFault, WriteFaults
from tests.support.lake import Lake
from tests.support.polling import patience, wait_for
from tests.support.prometheus import Samples, samples

import commitlake
from commitlake.coordinator.coordination.batch import Batch
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol import headers

HELD_S = 6.0
"""How long each step before a topic's append is held up."""
LAG_MS = SPAN_MS = 3_000
"""How far a job that reads by `visible_at` stays behind, and what it takes at once: a twentieth of the contract's."""
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Commit:
    """A commit to a topic's table: its time, and `visible_at` of its rows by their places; ms since epoch, UTC."""

    at_ms: int
    visible_ms: dict[tuple[Any, ...], float]


def commits(lake: Lake, topic: str) -> list[Commit]:
    """The commits that added rows, the first one first."""
    table = tables.opened(str(lake.tables), f"topics/{topic}")
    assert table is not None
    found, seen = [], set[tuple[Any, ...]]()
    for entry in sorted(table.history(), key=lambda each: each["version"]):
        table.load_as_version(entry["version"])
        rows = {(r["source"], r["source_queue"], r["source_offset"]): r for r in table.to_pyarrow_table().to_pylist()}
        new = {place: row["visible_at"].timestamp() * 1_000 for place, row in rows.items() if place not in seen}
        seen |= set(new)
        if new:
            found.append(Commit(entry["timestamp"], new))
    return found


@pytest.fixture(scope="module")
def held(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Lake, Samples]]:
    """What a coordinator has made of a message of each kind while its steps before the append were held up.

    A landing writes four tables at a time, and `half`, `op`, `delayed` and `rejected` before a topic's.
    """
    port, place = free_port(), tmp_path_factory.mktemp("visible")
    steps = [*map("landing:{}".format, ("half", "op", "delayed", "rejected")), "coordination:transactions"]
    faults = [WriteFault(step, "before", "delay", seconds=HELD_S) for step in [*steps, "coordination:deliveries"]]
    with Lake(broker.bootstrap_servers, "visible.", place, **{"metrics.port": port}) as lake:
        lake.commit("a")
        lake.message("b", topic="orders", delays={headers.TIMER_DELAY_MS: "10"})
        lake.message("c", topic="orders")
        lake.message("")
        with pytest.MonkeyPatch.context() as patch:
            WriteFaults(faults, 0, str(place)).arm(patch)
            with commitlake.start(spark, lake.settings):
                wait_for(lambda: "orders" in lake.topics() and len(lake.topic("orders")) == 3)
                found = wait_for(lambda: counted(samples(port)), 60)
        yield lake, found


def counted(found: Samples) -> Samples:
    """The samples, once all three messages are counted."""
    late, delayed = (found[f"commitlake_{name}_late_seconds_count"] for name in ("visible", "delivered"))
    return found if (*late.values(), *delayed.values()) == (1, 1, 1) else {}


def test_visible_at_is_right_before_the_commit_whatever_the_steps_before_took(held: tuple[Lake, Samples]) -> None:
    gaps_s = [(each.at_ms - at) / 1_000 for each in commits(held[0], "orders") for at in each.visible_ms.values()]
    assert len(gaps_s) == 3
    assert min(gaps_s) > -0.1 and max(gaps_s) < min(1.5 * patience(), HELD_S), gaps_s


def test_a_job_that_stays_behind_by_the_lag_of_the_contract_misses_no_row(held: tuple[Lake, Samples]) -> None:
    """Again and again it takes a span of `visible_at` that ended a while ago, from the table as it is then."""
    shown, lag_ms = commits(held[0], "orders"), int(LAG_MS * patience())
    first, last = min(min(each.visible_ms.values()) for each in shown), max(each.at_ms for each in shown)
    taken: list[tuple[Any, ...]] = []
    for until in range(int(first) - 1, last + SPAN_MS, SPAN_MS):
        there = [row for each in shown if each.at_ms <= until + lag_ms for row in each.visible_ms.items()]
        taken += [place for place, at in there if until - SPAN_MS <= at < until]
    assert sorted(taken) == sorted(place for each in shown for place in each.visible_ms)


def test_metrics_tell_the_time_until_a_row_could_be_read(held: tuple[Lake, Samples]) -> None:
    """From the op, the normal message, or the due time, with all that was held up."""
    late, delayed = (held[1][f"commitlake_{name}_late_seconds_sum"] for name in ("visible", "delivered"))
    assert set(late) == {("half",), ("messages",)}
    for seconds in (*late.values(), *delayed.values()):
        assert HELD_S <= seconds < 60 * patience()


def test_visible_at_never_falls_though_the_clock_is_put_back(spark: SparkSession, lake: Lake) -> None:
    """It was an hour ahead at first."""
    with commitlake.start(spark, lake.settings) as coordinator:
        coordinator._clock.set(coordinator._clock.now_ms() + HOUR_MS)
        for number in range(2):
            lake.commit(f"a{number}")
            lake.message(f"b{number}", topic="orders")
            wanted = 2 * (number + 1)
            wait_for(lambda: "orders" in lake.topics() and len(lake.topic("orders")) == wanted)  # noqa: B023
            coordinator._clock.set(coordinator._clock.now_ms() - HOUR_MS)
    times = [at for each in commits(lake, "orders") for at in sorted(each.visible_ms.values())]
    assert len(times) == 4 and times == sorted(times)


def test_no_row_is_visible_before_its_end_in_the_ledger_though_the_clock_is_put_back(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the leader of `settings` changes to a broker whose clock is behind."""
    publish = Batch.publish

    def put_back(batch: Batch) -> None:
        batch.context.clock.set(batch.context.clock.now_ms() - HOUR_MS)
        publish(batch)

    monkeypatch.setattr(Batch, "publish", put_back)
    lake.commit("a")
    lake.run(spark)
    (shown,), (ended,), (batch,) = lake.topic("orders"), lake.rows("transactions"), lake.rows("batches")
    assert ended["resolved_at"] <= shown["visible_at"] <= batch["completed_at"]
