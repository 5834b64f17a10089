"""Delayed messages found and recalled by their business key."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.polling import wait_for, wait_until_equal
from typer.testing import CliRunner

import commitlake
from commitlake import DefaultMQProducer, Message
from commitlake.errors import MQClientException
from commitlake.protocol.recall_handle import decode_handle
from commitlake.tools.cli.app import app


def ask(lake: Lake, *words: str) -> tuple[int, list[Any], str]:
    sets = [f"--set={key}={value}" for key, value in lake.settings.items() if key.startswith(("kafka.", "warehouse"))]
    done = CliRunner().invoke(app, [*words, *sets])
    lines = done.output.splitlines()
    return done.exit_code, [json.loads(line) for line in lines if line.startswith("{")], done.output


def test_a_message_in_place_of_a_delayed_one_is_shown_once(spark: SparkSession, lake: Lake) -> None:
    dedup = {"topics.dedup": {"reminders": {"window": "1d"}}}
    with (
        commitlake.start(spark, {**lake.settings, **dedup}),
        DefaultMQProducer(
            "g",
            bootstrap_servers=str(lake.settings["kafka.bootstrap_servers"]),
            topic_prefix=lake.config.kafka.topic_prefix,
        ) as producer,
    ):
        first = producer.send(Message("reminders", "in an hour", keys="A", delay_seconds=3_600))
        with pytest.raises(MQClientException, match="what is to be replaced is in reminders; nothing was sent"):
            producer.reschedule(str(first.recall_handle), Message("others", "", keys="A"))
        producer.reschedule(str(first.recall_handle), Message("reminders", "soon", keys="A", delay_milliseconds=1))
        late = producer.send(Message("reminders", "at once", keys="B", delay_milliseconds=1))
        wait_for(lambda: bodies(lake) == [b"at once", b"soon"])
        producer.reschedule(str(late.recall_handle), Message("reminders", "too late", keys="B", delay_milliseconds=1))
        wait_for(lambda: len(lake.rows("deliveries")) == 4 and lake.rows("rejected"))
    states = Counter(row["state"] for row in lake.rows("deliveries"))
    assert states == {"DELIVERED": 2, "RECALLED": 1, "DUPLICATE": 1}
    assert [row["reason"] for row in lake.rows("rejected")] == ["RECALL_TOO_LATE"]
    assert bodies(lake) == [b"at once", b"soon"]


def bodies(lake: Lake) -> list[bytes]:
    return sorted(row["body"] for row in lake.topic("reminders"))


def test_a_key_finds_and_recalls_what_is_waiting(spark: SparkSession, lake: Lake) -> None:
    due = {"TIMER_DELIVER_MS": str(time.time_ns() // 1_000_000 + 3_600_000)}
    with commitlake.start(spark, lake.settings):
        place = lake.message("one", topic="reminders", keys="order-17 mail", delays=due)
        lake.message("two", topic="reminders", keys="order-17", delays=due)
        lake.message("three", topic="reminders", keys="order-18", delays=due)
        lake.message("four", topic="others", keys="order-17", delays=due)
        lake.message("soon", topic="reminders", keys="order-17", delays={"TIMER_DELAY_MS": "1"})
        wait_for(lambda: len(lake.rows("deliveries")) == 1)
        code, rows, _ = ask(lake, "delayed", "--topic=reminders", "--keys=order-17", "--json")
        assert (code, sorted(row["message_id"] for row in rows)) == (0, ["one", "two"])
        found = {row["message_id"]: row for row in commitlake.delayed(lake.settings)}
        assert sorted(found) == ["four", "one", "three", "two"]
        handle = decode_handle(found["one"]["recall_handle"])
        assert (handle.msg_id, handle.topic, handle.message) == ("one", "reminders", place)

        assert ask(lake, "recall", "reminders", "--keys=order-19")[0] == 3
        code, _, told = ask(lake, "recall", "reminders", "--keys=order-17", "--dry-run")
        assert (code, "are sent" in told) == (0, False)
        code, _, told = ask(lake, "recall", "reminders", "--keys=order-17", "--yes")
        assert (code, told.splitlines()[-1].split(";")[0]) == (0, "sent 2 recalls")
        wait_until_equal(
            lambda: sorted((row["message_id"], row["state"]) for row in lake.rows("deliveries")),
            [("one", "RECALLED"), ("soon", "DELIVERED"), ("two", "RECALLED")],
        )
        wait_until_equal(
            lambda: sorted(row["message_id"] for row in commitlake.delayed(lake.settings)), ["four", "three"]
        )
    assert lake.rows("rejected") == []
