"""RocketMQ's tests of scheduled and batch messages, through a real broker and one running coordinator.

What a single rule says is tested where the rule is; here is what a user sees of them.

| RocketMQ | here |
|---|---|
| example `schedule/ScheduledMessageProducer`, `ScheduleMessageServiceTest` | `test_a_hundred_messages_...` |
| `NormalMsgDelayIT` (levels) | `test_a_due_time_is_exact_...`; order: tests/unit/test_protocol_delays.py |
| `TimerMessageStoreTest` put, precision, clamped level, roll over days | `test_a_due_time_is_exact_...`, `test_what_is_due_in_hours_or_weeks_waits` |
| `TimerMessageStoreTest` past time, beyond the maximum | tests/unit/test_delay.py, tests/spark/test_landing_records.py, tests/e2e/test_producer.py |
| `TimerMessageStoreTest` delete, `SendAndRecallDelayMessageIT`, `RecallMessageProcessorTest` | `test_recalled_messages_...`, `test_a_recall_that_...`; wrong ones: tests/unit/test_protocol_delays.py |
| `RecallMessageHandleTest`, `SendMessageProcessorTest` recall handle | tests/unit/test_producer.py |
| delay of a transactional message (cleared there) | tests/unit/test_protocol_delays.py, tests/spark/test_coordination_rules.py |
| `BatchSendIT` view, inner batch, properties; `BatchPutMessageTest` | `test_batches_are_whole_...` |
| `MessageBatchTest`, `AppendCallbackTest` (refused whole, nothing sent) | tests/e2e/test_producer.py, tests/unit/test_batch.py |
| example `batch/SplitBatchProducer` | tests/e2e/test_producer.py `test_a_long_list_...` |
| `ProduceAccumulatorTest`, `BatchConsumeQueueTest`, timer wheel, log and checkpoint tests | no such thing here |
"""  # noqa: E501

from __future__ import annotations

import runpy
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from tests.support import tables
from tests.support.polling import wait_for

from commitlake import DefaultMQProducer, Message, SendResult, TransactionMQProducer
from commitlake.protocol.recall_handle import decode_handle
from commitlake.testing import codecs

if TYPE_CHECKING:
    from commitlake.coordinator.coordinator import Coordinator

EXAMPLE: dict[str, Any] = runpy.run_path(
    str(Path(__file__).parents[2] / "notebooks" / "examples" / "rocketmq_schedule.py")
)
TOPIC = "DelayTopic"
TIMED: dict[str, tuple[dict[str, Any], timedelta]] = {
    "level": ({"delay_time_level": 1}, timedelta(seconds=1)),
    "milliseconds": ({"delay_milliseconds": 2_345}, timedelta(milliseconds=2_345)),
    "level beats all": (
        {"delay_time_level": 2, "delay_seconds": 1, "delay_milliseconds": 7, "deliver_at": 1},
        timedelta(seconds=5),
    ),
}
LONG: dict[str, tuple[dict[str, Any], timedelta]] = {
    "level 999": ({"delay_time_level": 999}, timedelta(hours=2)),
    "three hours": ({"delay_seconds": 3 * 3_600}, timedelta(hours=3)),
    "forty days": ({"delay_seconds": 40 * 86_400}, timedelta(days=40)),
}


@dataclass
class Played:
    """What was sent, by name, and when each message was first read (`seen`, by id, time after the read)."""

    warehouse: str
    sent: dict[str, SendResult] = field(default_factory=dict)
    example: list[SendResult] = field(default_factory=list)
    recalled: list[SendResult] = field(default_factory=list)
    seen: dict[str, datetime] = field(default_factory=dict)
    absolute: datetime | None = None

    def rows(self, table: str) -> list[dict[str, Any]]:
        return tables.rows(self.warehouse, table)

    def visible(self) -> dict[str, dict[str, Any]]:
        rows = self.rows(f"topics/{TOPIC}") + EXAMPLE["visible"](self.warehouse, self.example)
        assert max(Counter(row["message_id"] for row in rows).values(), default=1) == 1, "visible twice"
        return {row["message_id"]: row for row in rows}

    def watch(self) -> bool:
        """Reads once; whether all that is due within a minute and not recalled is visible."""
        ids, now = self.visible(), datetime.now(UTC)
        self.seen |= {one: now for one in ids if one not in self.seen}
        short = [self.sent[name] for name in (*TIMED, "a time", "past", "now")]
        return {one.msg_id for one in (*short, *self.example)} <= set(ids)

    def refusals(self) -> dict[object, str]:
        """Reasons by recall."""
        recalls = [row for row in self.rows("rejected") if row["source"] == "op" and b"RECALL" in row["value"]]
        return {codecs.decode_op(row["value"]): row["reason"] for row in recalls}

    def delayed(self) -> dict[str, dict[str, Any]]:
        return {row["message_id"]: row for row in self.rows("delayed")}


@pytest.fixture(scope="module")
def producer(coordinator: Coordinator) -> Any:
    """A started producer of the running coordinator."""
    kafka = coordinator.config.kafka
    with TransactionMQProducer(
        EXAMPLE["GROUP"], bootstrap_servers=kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix
    ) as started:
        yield started


@pytest.fixture(scope="module")
def played(coordinator: Coordinator, producer: DefaultMQProducer) -> Played:
    """All delayed messages of this file, sent at one time and watched until the last of the short ones is visible."""
    played = Played(coordinator.config.warehouse)
    send = producer.send
    played.sent["past"] = send(Message(TOPIC, "past", deliver_at=datetime.now(UTC) - timedelta(days=300)))
    wait_for(lambda: played.sent["past"].msg_id in played.visible())  # first batches take long

    for name, (delay, _) in {**TIMED, **LONG}.items():
        played.sent[name] = send(Message(TOPIC, name, **delay))
    played.absolute = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3, milliseconds=321)
    played.sent["a time"] = send(Message(TOPIC, "a time", deliver_at=played.absolute))
    played.sent["now"] = send(Message(TOPIC, "now", delay_milliseconds=0))
    send_recalled(producer, played)
    played.example = EXAMPLE["send_hundred"](producer)
    wait_for(played.watch)
    return played


def send_recalled(producer: DefaultMQProducer, played: Played) -> None:
    """One of each kind of delay is recalled, and then once more."""
    due = datetime.now(UTC) + timedelta(seconds=20)
    kinds: list[dict[str, Any]] = [
        {"delay_time_level": 4}, {"delay_seconds": 20}, {"delay_milliseconds": 20_000}, {"deliver_at": due}
    ]  # fmt: skip
    played.recalled = [producer.send(Message(TOPIC, "recalled", **delay)) for delay in kinds]
    for result in played.recalled:
        assert producer.recall(str(result.recall_handle)) == result.msg_id
    producer.recall(str(played.recalled[0].recall_handle))


def test_a_hundred_messages_of_level_3_are_visible_after_ten_seconds(
    played: Played,
) -> None:
    rows = EXAMPLE["visible"](played.warehouse, played.example)
    assert Counter(row["body"] for row in rows) == Counter(f"Hello scheduled message {i}".encode() for i in range(100))
    for row in rows:
        due = row["stored_at"] + timedelta(seconds=10)
        assert played.seen[row["message_id"]] > due, "a consumer has read it too early"
        assert due <= row["visible_at"] < due + timedelta(seconds=120)  # some batches later on a busy machine


@pytest.mark.parametrize("name", TIMED)
def test_a_due_time_is_exact_to_the_millisecond(played: Played, name: str) -> None:
    sent, row = played.sent[name].msg_id, played.delayed()[played.sent[name].msg_id]
    assert row["deliver_at"] - row["stored_at"] == TIMED[name][1]
    assert played.visible()[sent]["visible_at"] >= row["deliver_at"]


def test_a_time_with_a_zone_is_due_then(played: Played) -> None:
    sent = played.sent["a time"].msg_id
    assert played.delayed()[sent]["deliver_at"] == played.absolute
    assert played.visible()[sent]["visible_at"] >= played.absolute


@pytest.mark.parametrize("name", LONG)
def test_what_is_due_in_hours_or_weeks_waits(played: Played, name: str) -> None:
    row = played.delayed()[played.sent[name].msg_id]
    assert row["deliver_at"] - row["stored_at"] == LONG[name][1]
    assert row["message_id"] not in played.visible()


def test_recalled_messages_never_appear_whatever_their_delay(played: Played) -> None:
    ends = {row["message_id"]: row for row in played.rows("deliveries")}
    for result in played.recalled:
        assert ends[result.msg_id]["state"] == "RECALLED"
        assert result.msg_id not in played.visible()
        assert decode_handle(str(result.recall_handle)) not in played.refusals()
    last = max(row["visible_at"] for row in played.visible().values())
    assert all(ends[result.msg_id]["deliver_at"] <= last for result in played.recalled[1:]), "they would be visible now"


def test_a_recall_that_is_too_late_is_rejected_and_a_second_one_is_not(
    played: Played, producer: DefaultMQProducer
) -> None:
    again, late = (str(one.recall_handle) for one in (played.recalled[0], played.sent["past"]))
    producer.recall(again)
    producer.recall(late)
    wait_for(lambda: decode_handle(late) in played.refusals())
    assert played.refusals()[decode_handle(late)] == "RECALL_TOO_LATE"
    assert decode_handle(again) not in played.refusals()


def visible_batches(warehouse: str, topic: str) -> list[dict[tuple[int, int], list[dict[str, Any]]]]:
    """The batches that a reader sees at each version of a topic's table: members in order, by Kafka record."""
    table = tables.opened(warehouse, f"topics/{topic}")
    if table is None:
        return []
    versions = []
    for version in range(table.version() + 1):
        batches: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
        rows = DeltaTable(table.table_uri, version=version).to_pyarrow_table().to_pylist()
        for row in sorted(rows, key=lambda row: row["source_index"]):
            batches[row["source_queue"], row["source_offset"]].append(row)
        versions.append(batches)
    return versions


def test_batches_are_whole_in_every_version_of_the_table(coordinator: Coordinator, producer: DefaultMQProducer) -> None:
    topic, sent = "BatchTopic", {}
    for number in range(10):
        members = [
            Message(topic, f"{number}-{at}", tags=f"Tag{at}", keys=f"KEY{at}", properties={"buyerId": f"buyer {at}"})
            for at in range(10)
        ]
        result = producer.send(members)
        sent[result.queue_id, result.queue_offset] = (number, result.msg_id.split(","))
    warehouse = coordinator.config.warehouse
    wait_for(lambda: len((visible_batches(warehouse, topic) or [{}])[-1]) == len(sent))
    versions = visible_batches(warehouse, topic)
    assert {len(members) for batches in versions for members in batches.values()} == {10}
    for place, rows in versions[-1].items():
        number, ids = sent[place]
        assert [row["message_id"] for row in rows] == ids
        assert [row["source_index"] for row in rows] == list(range(10))
        assert [row["body"] for row in rows] == [f"{number}-{at}".encode() for at in range(10)]
        assert [(row["tags"], row["keys"]) for row in rows] == [(f"Tag{at}", f"KEY{at}") for at in range(10)]
        assert [dict(row["properties"]) for row in rows] == [{"buyerId": f"buyer {at}"} for at in range(10)]
        assert len({(row["stored_at"], row["born_at"], row["visible_at"], row["queue_id"]) for row in rows}) == 1
