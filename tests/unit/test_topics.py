"""Which topic names are legal, system's, allowed, and what they are called on disk.

Illegal ones: tests/spark/test_landing_records.py, also for the coordinator in memory.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from commitlake.errors import RecordError
from commitlake.protocol import topic_names
from commitlake.tables import TABLES, TableName, topic_table
from commitlake.tables.names import CHECKPOINT_INTERVALS


@pytest.mark.parametrize("topic", ["a", "Order_1-x", "%RETRY%group", "x" * 127, "RMQ_SYS", "TBW102x"])
def test_letters_digits_percent_underscore_and_dash_make_a_topic(topic: str) -> None:
    topic_names.check_name(topic)


@pytest.mark.parametrize(
    "topic",
    [
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_",
        "SCHEDULE_TOPIC_XXXX",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "TBW102",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    ],
)
def test_a_system_name_is_illegal(topic: str) -> None:
    with pytest.raises(RecordError, match="system") as error:
        topic_names.check_name(topic)
    assert error.value.reason == "ILLEGAL_TOPIC"


def test_allowed_topics_are_shell_patterns_whose_case_counts() -> None:
    assert topic_names.is_allowed("orders-eu", ["points", "orders-*"])
    assert not topic_names.is_allowed("Orders-eu", ["points", "orders-*"])
    assert topic_names.is_allowed("o1", ["o[0-9]"])


@pytest.mark.parametrize(("topic", "fits"), [("a", True), ("c", False)])
def test_a_new_topic_is_one_too_many_when_topics_max_are_known(topic: str, fits: bool) -> None:
    if fits:
        topic_names.check_admitted(topic, ["*"], {"a", "b"}, 2)
    else:
        with pytest.raises(RecordError) as error:
            topic_names.check_admitted(topic, ["*"], {"a", "b"}, 2)
        assert error.value.reason == "TOPIC_NOT_ALLOWED"


def test_a_percent_is_a_tilde_on_disk() -> None:
    assert topic_names.path_name("%RETRY%g") == "~RETRY~g"
    assert topic_names.from_path_name("~RETRY~g") == "%RETRY%g"


@pytest.mark.parametrize("topic", ["_samples", "_", "__HIVE__", "_%_", "topic_x", "%_samples", "%5F"])
def test_a_directory_that_would_be_hidden_has_a_name_of_its_own(topic: str) -> None:
    """Delta takes none called `_samples` for a table: a message to it ended the coordinator, and each start."""
    name = topic_names.path_name(topic)
    assert not name.startswith(("_", "."))
    assert topic_names.from_path_name(name) == topic
    assert (topic_names.older_path_name(topic) is None) == (topic[0] != "_" or topic == "_samples")


def test_a_twin_differs_in_case_only() -> None:
    assert topic_names.has_twin("Orders", {"orders", "points"})
    assert not topic_names.has_twin("orders", {"orders", "order"})


def test_no_two_fixed_tables_write_their_checkpoints_at_once() -> None:
    assert len({TableName(name).layout.checkpoint_interval for name in TABLES}) == len(TABLES)


def test_tables_of_topics_write_their_checkpoints_in_different_rounds() -> None:
    intervals = Counter(topic_table(f"topic{number}").layout.checkpoint_interval for number in range(100))
    assert set(intervals) <= set(CHECKPOINT_INTERVALS)
    assert max(intervals.values()) <= 12
    assert topic_table("orders").layout.properties()["delta.checkpointInterval"] in map(str, CHECKPOINT_INTERVALS)


def test_intervals_of_checkpoints_meet_after_a_thousand_commits() -> None:
    assert min(math.lcm(*pair) for pair in itertools.combinations(CHECKPOINT_INTERVALS, 2)) > 1_000
