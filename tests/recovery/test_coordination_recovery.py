"""A coordinator killed between any two of its writes loses nothing and does nothing twice: names, and topics, too."""

from __future__ import annotations

import os
import socket
from collections import Counter

import pytest
from pyspark.sql import SparkSession
from tests.support.killing import KILLED, Run, Runs, cut_checkpoints, delete_checkpoints, killed_at
from tests.support.lake import Lake
from tests.support.polling import wait_for
from tests.support.traffic import HASTY, Traffic

from commitlake.coordinator.coordinator import Coordinator
from commitlake.tools.audit.audit import audit

HASTILY = pytest.mark.lake(HASTY)
KILLS = [
    ("coordination:transactions", "after", 1),
    ("coordination:topic", "after", 1),
    ("coordination:batches", "before", 1),
]
"""One start each, over one warehouse; what a kill cuts short the next start completes, or dies completing."""
MORE_KILLS = [
    ("coordination:deliveries", "after", 1),
    ("coordination:discarded", "before", 1),
    ("coordination:kafka", "before", 1),
]


@HASTILY
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(KILLS, id="first", marks=pytest.mark.short(core_seconds=90)),  # a JVM for each kill
        pytest.param(MORE_KILLS, id="more"),
    ],
)
def test_kills_at_step_after_step_end_every_transaction_once(
    spark: SparkSession, lake: Lake, kills: list[tuple[str, str, int]]
) -> None:
    traffic = Traffic(lake)
    with Runs(lake.settings, lake.root) as coordinators:
        for number, (step, moment, nth) in enumerate(kills, 1):
            traffic.send()
            assert coordinators.killed_at(step, moment, nth, is_last=number == len(kills)) == KILLED, step
            (delete_checkpoints if number % 2 == 0 else cut_checkpoints)(lake)
    traffic.settle(spark)
    traffic.assert_outcome()


@HASTILY
@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_kill_around_a_resume_reopens_once(spark: SparkSession, lake: Lake) -> None:
    traffic = Traffic(lake)
    traffic.send()
    traffic.settle(spark)
    traffic.resume()
    for moment in ("before", "after"):
        assert killed_at(lake, "coordination:reentries", moment, transaction_timeout="1h") == KILLED
    traffic.commit_resumed()
    lake.run(spark, transaction_timeout="1h")
    traffic.assert_outcome()


@HASTILY
@pytest.mark.short
def test_a_second_coordinator_names_the_first_and_ends(spark: SparkSession, lake: Lake) -> None:
    with Coordinator(spark, lake.config).start() as first, Run(lake.settings, lake.root) as second:
        error = second.begin().end()
        assert error.startswith("error: FencedError: ")
        assert f"host {socket.gethostname()}, pid {os.getpid()}, epoch {first.epoch}" in error
        lake.commit("t")
        wait_for(lambda: lake.topic("orders"), why=lambda: first.await_termination(timeout=0))
    assert len(lake.rows("epochs")) == 1


KILLS_OF_NAMES = [("coordination:transactions", "after", 1)]
MORE_KILLS_OF_NAMES = [
    ("landing:topic", "after", 1),
    ("landing:rejected", "after", 1),
    ("coordination:topic", "before", 1),
    ("coordination:topic", "after", 1),
    ("coordination:deliveries", "after", 1),
]
NAMES = 5


@pytest.mark.lake({"topics.dedup": {"orders": {"window": "1d"}}})
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kills", [KILLS_OF_NAMES, pytest.param(MORE_KILLS_OF_NAMES, marks=pytest.mark.soak)], ids=["first", "more"]
)
def test_kills_never_show_a_name_twice_or_not_at_all(
    spark: SparkSession, lake: Lake, kills: list[tuple[str, str, int]]
) -> None:
    sent: dict[str, set[str]] = {}
    with Runs(lake.settings, lake.root) as coordinators:
        for number, (step, moment, nth) in enumerate(kills, 1):
            sent |= send_names(lake, number)
            assert coordinators.killed_at(step, moment, nth, is_last=number == len(kills)) == KILLED, step
    sent |= send_names(lake, len(kills) + 1)
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


def send_names(lake: Lake, number: int) -> dict[str, set[str]]:
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


TOPICS = [f"topic{number}" for number in range(6)]
KILLS_OF_TOPICS: list[tuple[str, str, int, int | None]] = [
    ("landing:topic", "before", 3, None),
    ("files", "after", 6, None),
    ("coordination:topic", "after", 4, None),
    ("landing:staged", "before", 3, 0),
    ("coordination:staged", "after", 4, 0),
]
"""Of six commits: two are there, or only a file of one more, or four; the last ones as if these rows were many."""


@pytest.mark.timeout(900)
def test_kills_between_the_commits_of_topics_show_each_message_once(spark: SparkSession, lake: Lake) -> None:
    sent: Counter[str] = Counter()
    with Runs(lake.settings, lake.root) as coordinators:
        for number, (step, moment, nth, few) in enumerate(KILLS_OF_TOPICS, 1):
            sent.update(send_to_topics(lake, number))
            how = coordinators.killed_at(step, moment, nth, is_last=number == len(KILLS_OF_TOPICS), most_few=few)
            assert how == KILLED, step
    sent.update(send_to_topics(lake, len(KILLS_OF_TOPICS) + 1))
    lake.run(spark)
    shown = Counter(row["body"].decode() for topic in TOPICS for row in lake.topic(topic))
    assert shown == sent
    report = audit(spark, str(lake.warehouse))
    assert report.is_well, report


def send_to_topics(lake: Lake, number: int) -> list[str]:
    """To each topic a committed transaction and a normal message."""
    names = []
    for topic in TOPICS:
        tid, normal = f"{number} half {topic}", f"{number} normal {topic}"
        lake.op("COMMIT", tid, lake.half(tid, number % 2, topic=topic))
        lake.message(normal, number % 2, topic=topic)
        names += [tid, normal]
    return names
