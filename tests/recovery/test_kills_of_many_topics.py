"""A kill between the files of many topics and their commits shows each message once: of few rows, and of many."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import SparkSession
from tests.support.killing import KILLED, Runs
from tests.support.lake import Lake

from commitlake.tools.audit.audit import audit

TOPICS = [f"topic{number}" for number in range(6)]
KILLS: list[tuple[str, str, int, int | None]] = [
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
        for number, (step, moment, nth, few) in enumerate(KILLS, 1):
            sent.update(send(lake, number))
            how = coordinators.killed_at(step, moment, nth, is_last=number == len(KILLS), most_few=few)
            assert how == KILLED, step
    sent.update(send(lake, len(KILLS) + 1))
    lake.run(spark)
    shown = Counter(row["body"].decode() for topic in TOPICS for row in lake.topic(topic))
    assert shown == sent
    report = audit(spark, str(lake.warehouse))
    assert report.is_well, report


def send(lake: Lake, number: int) -> list[str]:
    """To each topic a committed transaction and a normal message."""
    names = []
    for topic in TOPICS:
        tid, normal = f"{number} half {topic}", f"{number} normal {topic}"
        lake.op("COMMIT", tid, lake.half(tid, number % 2, topic=topic))
        lake.message(normal, number % 2, topic=topic)
        names += [tid, normal]
    return names
