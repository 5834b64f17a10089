"""Records of Kafka's own transactions, as Connect, Flink and Streams write them: committed, aborted, left open."""

from __future__ import annotations

import logging
import re
import time

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.polling import wait_for

from commitlake.coordinator.coordinator import Coordinator
from commitlake.errors import KafkaError
from commitlake.kafka import log_end_watcher
from commitlake.protocol.clock import now_ms
from commitlake.reading.questions.tables import opened as tables_of
from commitlake.tools import doctor

LONG_MS = 600_000


def test_what_an_aborted_transaction_holds_never_lands(spark: SparkSession, lake: Lake) -> None:
    pending = lake.half("pending")
    with lake.relay() as relay:
        relay.message("committed")
        relay.producer.commit_transaction()
        relay.producer.begin_transaction()
        relay.message("aborted")
        relay.half("aborted")
        relay.op("COMMIT", "pending", pending)
        relay.producer.abort_transaction()
    lake.run(spark)
    lake.message("after")
    lake.run(spark)
    assert {row["message_id"] for row in lake.topic("delays")} == {"committed", "after"}
    assert [row["transaction_id"] for row in lake.rows("half")] == ["pending"]
    assert lake.rows("transactions") == []


@pytest.mark.timeout(300)
def test_a_deadline_waits_for_an_op_behind_a_transaction_that_is_open_and_that_is_told(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the last stable offset all would seem to have landed, and `t` be discarded though its COMMIT is there."""
    monkeypatch.setattr(log_end_watcher, "_LOOK_S", 0.0)
    monkeypatch.setattr(log_end_watcher, "_LONG_S", 1.0)
    caplog.set_level(logging.WARNING, logger="commitlake")
    settings = lake.configured(transaction_timeout="1s", transaction_check_max=0)
    with lake.relay(LONG_MS) as relay, Coordinator(spark, settings).start():
        opened = relay.op("UNKNOWN", "nothing", lake.end("half", 1), queue=0)
        lake.op("COMMIT", "t", lake.half("t"))
        lake.half("silent")
        lake.message("n")
        wait_for(lambda: lake.topic("delays"))  # what stands elsewhere lands meanwhile
        name = lake.config.kafka.topic("op")
        told = f"{name}-0 from offset {opened.offset} on; until they end nothing behind them lands"
        wait_for(lambda: told in caplog.text, why=lambda: caplog.text)
        assert lake.rows("transactions") == []
        (kafka,) = [each for each in doctor.examine(settings) if each.what == "kafka"]
        late = r"records? still to land, the oldest for \d+ s, behind Kafka transactions that are open in"
        assert re.search(f"{late} {re.escape(name)}-0", kafka.detail), kafka.detail
        with tables_of(settings.warehouse) as tables, pytest.MonkeyPatch.context() as patched:
            patched.setattr(doctor, "now_ms", lambda: now_ms() + 120_000)
            kafka = doctor._kafka(tables, settings)
        assert not kafka.is_well
        assert re.search(r"the oldest for 1\d\d s, .*; does a coordinator run, and keep up\?$", kafka.detail)
        relay.producer.abort_transaction()
        wait_for(lambda: len(lake.rows("transactions")) == 2)
    ends = {row["transaction_id"]: row["state"] for row in lake.rows("transactions")}
    assert ends == {"t": "COMMITTED", "silent": "DISCARDED"}


def test_a_start_beside_an_open_transaction_delivers_what_was_due_before_it(spark: SparkSession, lake: Lake) -> None:
    """Where one is open at any time, a run that works off what is there would never deliver, check or discard."""
    lake.message("due", delays={"TIMER_DELAY_MS": "1"})
    time.sleep(0.1)
    with lake.relay(LONG_MS) as relay:
        relay.op("UNKNOWN", "nothing", lake.end("half", 1), queue=0)
        lake.message("due later", delays={"TIMER_DELAY_MS": "1"})
        time.sleep(0.1)
        lake.run(spark)
        assert [row["message_id"] for row in lake.topic("delays")] == ["due"]
        relay.producer.abort_transaction()
    lake.run(spark)
    assert {row["message_id"] for row in lake.topic("delays")} == {"due", "due later"}


def test_uncommitted_records_land_where_that_is_configured(spark: SparkSession, lake: Lake) -> None:
    uncommitted = {"kafka_options": {"isolation.level": "read_uncommitted", "fetch.max.wait.ms": "5"}}
    with lake.relay(LONG_MS) as relay:
        relay.message("open")
        lake.run(spark, **uncommitted)
        assert [row["message_id"] for row in lake.topic("delays")] == ["open"]
        with pytest.raises(
            KafkaError, match=r"messages-0 has a Kafka transaction that is open since offset 0, but 1 is"
        ):
            lake.run(spark)
        relay.producer.abort_transaction()
    lake.run(spark)
