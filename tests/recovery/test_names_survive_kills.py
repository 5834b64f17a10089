"""A coordinator that is killed between two of its writes shows each name of a topic of `topics.dedup` once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.killing import KILLED, Runs
from tests.support.lake import Lake

from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.tools.audit.audit import audit

KILLS = [("coordination:transactions", "after", 1)]
MORE_KILLS = [
    ("landing:topic", "after", 1),
    ("landing:rejected", "after", 1),
    ("coordination:topic", "before", 1),
    ("coordination:topic", "after", 1),
    ("coordination:deliveries", "after", 1),
]
NAMES = 5


@pytest.fixture
def lake(broker: EmbeddedBroker, prefix: str, tmp_path: Path) -> Iterator[Lake]:
    with Lake(broker.bootstrap_servers, prefix, tmp_path, **{"topics.dedup": {"orders": {"window": "1d"}}}) as opened:
        yield opened


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [KILLS, pytest.param(MORE_KILLS, marks=pytest.mark.soak)], ids=["first", "more"])
def test_kills_never_show_a_name_twice_or_not_at_all(
    spark: SparkSession, lake: Lake, kills: list[tuple[str, str, int]]
) -> None:
    sent: dict[str, set[str]] = {}
    with Runs(lake.settings, lake.root) as coordinators:
        for number, (step, moment, nth) in enumerate(kills, 1):
            sent |= send(lake, number)
            assert coordinators.killed_at(step, moment, nth, is_last=number == len(kills)) == KILLED, step
    sent |= send(lake, len(kills) + 1)
    lake.run(spark)
    lake.run(spark)  # what was due later

    shown = Counter(row["keys"] for row in lake.topic("orders"))
    assert shown == dict.fromkeys(sent, 1)
    not_shown = Counter(row["reason"] for row in lake.rows("rejected"))
    not_shown.update(row["state"] for row in lake.rows("deliveries") if row["state"] != "DELIVERED")
    not_shown.update("committed duplicate" for row in lake.rows("transactions") if row["duplicate_of"])
    assert set(not_shown) == {"DUPLICATE_OF", "DUPLICATE", "committed duplicate"}
    assert shown.total() + not_shown.total() == sum(map(len, sent.values()))
    report = audit(spark, str(lake.warehouse))
    assert report.is_well, report


def send(lake: Lake, number: int) -> dict[str, set[str]]:
    """Of each name a delayed message and two transactions, in turns, and of every other name two normal messages."""
    found: dict[str, set[str]] = {}
    for at in range(NAMES):
        name = f"{number}-{at}"
        kinds = ["half", "delayed", "half again", *(["normal", "normal again"] if at % 2 else [])]
        for kind in kinds[at:] + kinds[:at]:
            tid = f"{name} {kind}"
            if "half" in kind:
                lake.op("COMMIT", tid, lake.half(tid, at % 2, keys=name))
            else:
                delays = {"TIMER_DELAY_MS": "1"} if kind == "delayed" else {}
                lake.message(tid, at % 2, topic="orders", keys=name, delays=delays)
            found.setdefault(name, set()).add(tid)
    return found
