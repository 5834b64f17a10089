"""The rules of coordination in a real query on real tables: one history, then a test for each rule."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession
from tests.support.lake import Record
from tests.support.story import COMMITTED, DELAYED, DELIVERED, DISCARDED, REJECTED, Story

from commitlake.config import from_mapping
from commitlake.coordinator.coordination.check_requests import tell_unanswered
from commitlake.protocol.encoding import Position

pytestmark = pytest.mark.short

CHECK_MAX = [
    *("unknown", "wrong id", "wrong group", "whole", "foreign", "missing", "late to a deadline"),
    *("resumed and committed", "resumed with a part", *DISCARDED),
]
"""Transactions that were checked once, and discarded when no answer came."""


@pytest.fixture(scope="module")
def ledger(story: Story) -> dict[tuple[Position, int], dict[str, Any]]:
    """Rows of `transactions` by half message and round."""
    rows = story.lake.rows("transactions")
    return {(Position(row["queue"], row["half_offset"]), row["round"]): row for row in rows}


@pytest.fixture(scope="module")
def rejected(story: Story) -> dict[Record, dict[str, Any]]:
    return story.lake.rejected()


@pytest.fixture(scope="module")
def visible(story: Story) -> dict[tuple[str, Position], dict[str, Any]]:
    """Rows of all topic tables by their Kafka record."""
    rows = [row | {"topic": topic} for topic in story.lake.topics() for row in story.lake.topic(topic)]
    rows = [row for row in rows if row["source_index"] == 0]  # of a batch the first member
    found = {(row["source"], Position(row["source_queue"], row["source_offset"])): row for row in rows}
    assert len(found) == len(rows), "a message is visible twice"
    return found


ENDS = [
    *((name, "COMMITTED", "DIRECT", "ops") for name in (*COMMITTED, *DELIVERED)),
    *((name, "DISCARDED", "CHECK_MAX", "discarded") for name in (*CHECK_MAX, "whole 2")),
    ("committed", "COMMITTED", "DIRECT", "ops"),
    ("rolled back", "ROLLED_BACK", "DIRECT", "ops"),
    ("from check", "COMMITTED", "CHECK", "ops"),
    ("forced", "COMMITTED", "ADMIN", "ops"),
    ("first wins", "COMMITTED", "DIRECT", "ops"),
    ("early", "COMMITTED", "DIRECT", "parked"),
    ("three", "COMMITTED", "DIRECT", "ops"),
    ("three 2", "COMMITTED", "DIRECT", "ops"),
    ("three 3", "COMMITTED", "DIRECT", "ops"),
    ("unlisted", "COMMITTED", "DIRECT", "ops"),
    ("unlisted 2", "COMMITTED", "DIRECT", "ops"),
    ("waits", "COMMITTED", "DIRECT", "parked"),
    ("waits 2", "COMMITTED", "DIRECT", "parked"),
    ("late part", "COMMITTED", "DIRECT", "ops"),
    ("late part 2", "COMMITTED", "DIRECT", "parked"),
    ("late, rolled back", "ROLLED_BACK", "DIRECT", "ops"),
    ("late, rolled back 2", "ROLLED_BACK", "DIRECT", "parked"),
    ("orphan", "DISCARDED", "ORPHAN", "parked"),
    ("stranger by group", "DISCARDED", "ORPHAN", "ops"),
    ("stranger by id", "DISCARDED", "ORPHAN", "ops"),
    ("immune", "DISCARDED", "EXPIRED", "expired"),
    ("relative", "COMMITTED", "DIRECT", "ops"),
    ("absolute", "COMMITTED", "DIRECT", "ops"),
    ("relative, over", "COMMITTED", "DIRECT", "ops"),
]


def test_every_half_message_ends_as_its_rule_says(story: Story, spark: SparkSession) -> None:
    rows = [(*story.half[name], state, reason) for name, state, reason, _ in ENDS]
    schema = "queue int, half_offset bigint, state string, reason string"
    ledger = spark.read.format("delta").load(f"{story.lake.root}/warehouse/transactions")
    found = ledger.where("round = 0").select("queue", "half_offset", "state", "reason")
    assert_df_equality(found, spark.createDataFrame(rows, schema), ignore_row_order=True, ignore_nullable=True)


@pytest.mark.parametrize(("name", "start"), [(name, start) for name, _, _, start in ENDS])
def test_a_half_message_ends_no_earlier_and_no_later(story: Story, ledger: Any, name: str, start: str) -> None:
    starts = list(story.until)
    before = story.until[starts[starts.index(start) - 1]] if starts.index(start) else -1
    assert before < ledger[story.half[name], 0]["batch_id"] <= story.until[start]


RESUMED = [
    *("unknown", "whole", "whole 2", "resumed and committed"),
    *("resumed with a part", "resumed with a part 2"),
]
"""Half messages that were committed after a RESUME, in their second round."""

REFUSED = [
    *((name, "ILLEGAL_TOPIC", "ops") for name in REJECTED),
    ("too late to roll back", "ALREADY_COMMITTED", "parked"),
    ("too late to commit", "ALREADY_ROLLED_BACK", "parked"),
    ("second loses", "ALREADY_COMMITTED", "parked"),
    ("never", "NO_HALF_MESSAGE", "parked"),
    ("missing", "NO_HALF_MESSAGE", "parked"),
    ("wrong id", "WRONG_TRANSACTION_ID", "ops"),
    ("wrong group", "WRONG_PRODUCER_GROUP", "ops"),
    ("wrong id and group, decided", "WRONG_TRANSACTION_ID", "ops"),
    ("wrong group, decided", "WRONG_PRODUCER_GROUP", "ops"),
    ("names a part first", "BAD_FIRST_HALF", "parked"),
    ("names a part of what is committed first", "BAD_FIRST_HALF", "parked"),
    ("lists another's part", "WRONG_TRANSACTION_ID", "parked"),
    ("late to a deadline", "ALREADY_DISCARDED", "resumed"),
    ("after the discard", "ALREADY_DISCARDED", "resumed"),
    ("resume in op", "BAD_OP", "ops"),
    ("recall by an administrator", "BAD_OP", "resumed"),
    ("resume committed", "NOT_DISCARDED", "resumed"),
    ("resume orphan", "NOT_DISCARDED", "resumed"),
    ("resume immune", "NOT_DISCARDED", "resumed"),
    ("resume twice", "NOT_DISCARDED", "resumed"),
    ("resume nothing", "NO_HALF_MESSAGE", "resumed"),
    ("resume by another id", "WRONG_TRANSACTION_ID", "resumed"),
    ("recall by another id", "NO_DELAYED_MESSAGE", "ops"),
    ("recall by another topic", "NO_DELAYED_MESSAGE", "ops"),
    ("recall of nothing", "NO_DELAYED_MESSAGE", "parked"),
    ("recalled too late", "RECALL_TOO_LATE", "parked"),
]


@pytest.mark.parametrize(("name", "reason"), [(name, reason) for name, reason, _ in REFUSED])
def test_an_op_that_changes_nothing_is_rejected_with_its_reason(
    story: Story, rejected: Any, name: str, reason: str
) -> None:
    assert rejected[story.op[name]]["reason"] == reason


def test_nothing_else_is_rejected(story: Story, rejected: Any) -> None:
    assert set(rejected) == {story.op[name] for name, _, _ in REFUSED}


def test_an_op_is_rejected_once_in_the_first_batch_after_park_time(story: Story) -> None:
    starts = list(story.until)
    wanted = Counter(start for _, _, start in REFUSED)
    upto = {start: sum(wanted[each] for each in starts[: starts.index(start) + 1]) for start in starts}
    assert story.rejected_after == upto


def test_a_rejected_record_keeps_its_original_bytes(story: Story, rejected: Any) -> None:
    sent = {
        (source, r.partition, r.offset): (r.key, r.value)
        for source in ("op", "admin", "half")
        for r in story.lake.kafka(source)
    }
    kept = {record: (row["key"], row["value"]) for record, row in rejected.items()}
    assert kept == {record: sent[record] for record in kept}


def test_a_committed_message_is_visible_whole(story: Story, visible: Any) -> None:
    row = visible["half", story.half["committed"]]
    wanted = {
        "topic": "orders",
        "queue_id": 3,
        "message_id": "committed-1",
        "transaction_id": "committed",
        "producer_group": "g",
        "tags": "t",
        "keys": "k",
        "properties": [("a", "b")],
        "sharding_key": b"s",
        "body": b"committed",
        "source_index": 0,
    }
    assert {name: row[name] for name in wanted} == wanted
    assert row["visible_at"] >= row["stored_at"]


def test_only_committed_half_messages_without_a_waiting_delay_are_visible(story: Story, visible: Any) -> None:
    shown = {at for source, at in visible if source == "half"}
    waiting = {"relative", "absolute"}
    committed = {story.half[name] for name, state, *_ in ENDS if state == "COMMITTED" and name not in waiting}
    assert shown == committed | {story.half[name] for name in RESUMED}


def test_the_first_decision_wins_in_the_order_of_append_times(story: Story, ledger: Any) -> None:
    row = ledger[story.half["first wins"], 0]
    assert Record("op", row["op_queue"], row["op_offset"]) == story.op["first wins"]


def test_all_half_messages_of_a_transaction_end_in_one_batch_with_one_op(story: Story, ledger: Any) -> None:
    for parts in (
        ("three", "three 2", "three 3"),
        ("unlisted", "unlisted 2"),
        ("waits", "waits 2"),
        ("whole", "whole 2"),
    ):
        rows = [ledger[story.half[name], 0] for name in parts]
        assert len({(r["batch_id"], r["state"], r["reason"], r["op_queue"], r["op_offset"]) for r in rows}) == 1


def test_a_late_part_names_the_op_that_decided_its_first(story: Story, ledger: Any) -> None:
    row = ledger[story.half["late part 2"], 0]
    assert Record("op", row["op_queue"], row["op_offset"]) == story.op["late part"]


def test_each_open_transaction_has_one_check_by_its_first_half_message(story: Story) -> None:
    rows = story.lake.rows("checks")
    found = {(Position(row["queue"], row["half_offset"]), row["round"], row["check_no"]) for row in rows}
    assert found == {(story.half[name], 0, 1) for name in CHECK_MAX}
    assert len(rows) == len(CHECK_MAX)


def test_a_check_request_carries_what_an_answer_needs(story: Story) -> None:
    records = {check.check_id: check for check in story.lake.checks()}
    first, part = story.half["whole"], story.half["whole 2"]
    check = records[f"{first.queue}-{first.offset}-0-1"]
    assert (check.transaction_id, check.producer_group, check.msg_id) == ("whole", "g", "whole-0")
    assert (check.topic, check.queue_id, check.body, check.check_times) == ("orders", 0, b"whole", 1)
    assert (check.half, check.half_messages) == (first, (first, part))
    stored = {(row["queue"], row["queue_offset"]): row["stored_at"] for row in story.lake.rows("half")}
    assert check.stored_timestamp == round(stored[first].timestamp() * 1_000)


def test_a_check_sent_again_after_a_start_is_the_same_record(story: Story) -> None:
    sent = Counter((r.partition, r.key, r.value, json.dumps(r.headers, default=str)) for r in story.lake.kafka("check"))
    assert len(sent) == len(CHECK_MAX)
    assert set(sent.values()) == {2}


def test_a_discarded_message_is_kept_whole(story: Story) -> None:
    halves = {(row["queue"], row["queue_offset"]): row for row in story.lake.rows("half")}
    kept = story.lake.rows("discarded")
    wanted = [(*story.half[name], reason) for name, state, reason, _ in ENDS if state == "DISCARDED"]
    assert sorted((r["queue"], r["queue_offset"], r["reason"]) for r in kept if r["round"] == 0) == sorted(wanted)
    for row in kept:
        half = halves[row["queue"], row["queue_offset"]]
        assert {name: row[name] for name in half} == half


def test_a_resumed_transaction_is_committed_whole_in_a_new_round(story: Story, ledger: Any) -> None:
    for name in RESUMED:
        row = ledger[story.half[name], 1]
        assert (row["state"], row["reason"], row["checks"]) == ("COMMITTED", "DIRECT", 0)


def test_a_commit_in_the_batch_of_its_resume_commits(story: Story, ledger: Any) -> None:
    """Its park time, which is none here, is over in that batch."""
    row = ledger[story.half["resumed and committed"], 1]
    assert Record("op", row["op_queue"], row["op_offset"]) == story.op["resumed and committed"]
    assert story.until["discarded"] < row["batch_id"] <= story.until["resumed"]


def test_a_part_that_lands_with_the_resume_of_its_first_is_open_with_it(story: Story, ledger: Any) -> None:
    first, part = (ledger[story.half[name], 1] for name in ("resumed with a part", "resumed with a part 2"))
    assert (story.half["resumed with a part 2"], 0) not in ledger
    assert story.until["resumed"] < first["batch_id"] == part["batch_id"]


def test_a_delayed_message_is_visible_at_the_first_batch_after_its_time(story: Story, visible: Any) -> None:
    rows = {row["message_id"]: row for row in story.lake.rows("deliveries") if row["source"] == "messages"}
    delivered = {name for name, row in rows.items() if row["state"] == "DELIVERED"}
    assert delivered == {"past", "level", "in 1 s", "in 2 s", *DELAYED}
    assert {name for name, row in rows.items() if row["state"] == "RECALLED"} == {"recalled", "recalled early"}
    for name in delivered:
        row = visible["messages", story.message[name]]
        assert row["visible_at"] >= rows[name]["deliver_at"]
        assert row["batch_id"] == rows[name]["batch_id"]
    assert rows["past"]["batch_id"] <= story.until["ops"]
    assert rows["in 1 s"]["batch_id"] <= rows["in 2 s"]["batch_id"]


def test_a_delay_of_a_half_message_counts_from_its_op_or_is_a_time(story: Story, ledger: Any) -> None:
    op = next(
        row for row in story.lake.rows("op") if Record("op", row["queue"], row["op_offset"]) == story.op["relative"]
    )
    assert (ledger[story.half["relative"], 0]["deliver_at"] - op["stored_at"]).total_seconds() == 3_600
    absolute = ledger[story.half["absolute"], 0]["deliver_at"].timestamp() * 1_000
    assert round(absolute) == story.start_ms + 3_600_000


def test_a_recalled_or_waiting_message_is_not_visible(story: Story, visible: Any) -> None:
    shown = {at for source, at in visible if source == "messages"}
    assert not shown & {story.message[name] for name in ("recalled", "recalled early", "waiting")}


def test_a_start_that_finds_nothing_to_decide_writes_no_batch(story: Story) -> None:
    """What it found is a half message whose op and deadline are to come."""
    assert story.until["again"] == story.until["expired"]


def test_groups_that_answer_nothing_and_have_no_rule_are_told(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [("silent\x1b", 1), ("new", 0), ("ruled", 2), ("silent\x1b", 3)]
    checked = spark.createDataFrame(rows, "producer_group string, repeat int")
    tell_unanswered(from_mapping({"checks": {"ruled": {"table": "delta-log"}}}), checked)
    tell_unanswered(from_mapping({}), checked.where("repeat = 0"))
    (told,) = caplog.messages
    assert told.startswith("nobody has answered the checks of silent\\x1b for 300 s or more: ")
