"""Delayed messages found and recalled by their business key."""

from __future__ import annotations

import json
import time
from typing import Any

from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.polling import wait_for, wait_until_equal
from typer.testing import CliRunner

import commitlake
from commitlake.cli.app import app
from commitlake.producer.recall_handle import decode_handle


def ask(lake: Lake, *words: str) -> tuple[int, list[Any], str]:
    sets = [f"--set={key}={value}" for key, value in lake.settings.items() if key.startswith(("kafka.", "warehouse"))]
    done = CliRunner().invoke(app, [*words, *sets])
    lines = done.output.splitlines()
    return done.exit_code, [json.loads(line) for line in lines if line.startswith("{")], done.output


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
        assert (code, told.splitlines()[-1].split(";")[0]) == (0, "2 recalls are sent")
        wait_until_equal(
            lambda: sorted((row["message_id"], row["state"]) for row in lake.rows("deliveries")),
            [("one", "RECALLED"), ("soon", "DELIVERED"), ("two", "RECALLED")],
        )
        wait_until_equal(
            lambda: sorted(row["message_id"] for row in commitlake.delayed(lake.settings)), ["four", "three"]
        )
    assert lake.rows("rejected") == []
