"""What a changed configuration does to what was open before."""

from __future__ import annotations

import threading
import time

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake, newest
from tests.support.namespace import Listener
from tests.support.polling import wait_for

from commitlake import LocalTransactionState, Message, TransactionMQProducer
from commitlake.coordinator.coordinator import Coordinator
from commitlake.protocol.encoding import Position

pytestmark = pytest.mark.soak


def checks_of(lake: Lake, at: Position) -> list[int]:
    found = (row["check_no"] for row in lake.rows("checks") if (row["queue"], row["half_offset"]) == tuple(at))
    return sorted(found)


def end_of(lake: Lake, at: Position) -> tuple[str, str] | None:
    row = newest(lake.rows("transactions")).get((at.queue, at.offset))
    return (row["state"], row["reason"]) if row else None


def test_next_deadlines_follow_changed_timings_and_checks_count_on(spark: SparkSession, lake: Lake) -> None:
    at = lake.half("t")
    lake.run(spark)
    assert checks_of(lake, at) == []
    lake.run(spark, transaction_timeout="0s")
    assert checks_of(lake, at) == [1]
    lake.run(spark, transaction_timeout="0s", transaction_check_interval="1ms")  # it waits for its answer
    assert checks_of(lake, at) == [1]
    lake.run(spark, transaction_check_repeat="1ms")
    assert checks_of(lake, at) == [1, 1]
    lake.answer_unknown()
    lake.run(spark)  # the interval, an hour, counts from the answer
    assert checks_of(lake, at) == [1, 1]
    lake.run(spark, transaction_check_interval="1ms", transaction_check_max=3)
    assert checks_of(lake, at) == [1, 1, 2]
    lake.answer_unknown()
    lake.run(spark, transaction_check_interval="1h", transaction_check_max=3)
    assert (checks_of(lake, at), end_of(lake, at)) == ([1, 1, 2], None)
    lake.run(spark, transaction_check_interval="1ms", transaction_check_max=2)
    assert (checks_of(lake, at), end_of(lake, at)) == ([1, 1, 2], ("DISCARDED", "CHECK_MAX"))


class Sending:
    """A producer that keeps sending transactions from a thread of its own; every fifth stays open until its check."""

    def __init__(self, lake: Lake) -> None:
        kafka = lake.config.kafka
        self.producer = TransactionMQProducer(
            "g",
            Listener(),
            bootstrap_servers=kafka.bootstrap_servers,
            topic_prefix=kafka.topic_prefix,
            options={"metadata.max.age.ms": "1000"},
        )
        self.sent: list[str] = []
        self.queues: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        known = (LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.UNKNOW)
        while not self._over.is_set():
            body = f"order {len(self.sent)}"
            result = self.producer.send_message_in_transaction(Message("orders", body), known[len(self.sent) % 5 == 0])
            self.queues.add(result.queue_id)
            self.sent.append(body)
            time.sleep(0.05)

    def __enter__(self) -> Sending:
        self.producer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        self.producer.shutdown()

    def finish(self) -> None:
        """Sends no more, and goes on answering checks."""
        self._over.set()
        self._thread.join()


def test_queues_added_at_a_restart_are_used_and_old_transactions_end(spark: SparkSession, lake: Lake) -> None:
    with Coordinator(spark, lake.config).start(), Sending(lake) as sending:
        wait_for(lambda: len(sending.sent) > 20 and lake.topic("orders"))
    ended_before = len(lake.rows("transactions"))
    grown = lake.configured(
        kafka_queues=4, transaction_timeout="2s", transaction_check_interval="2s", transaction_check_max=15
    )
    with Sending(lake) as later, Coordinator(spark, grown).start():
        wait_for(lambda: later.queues == {0, 1, 2, 3})
        later.finish()
        sent = len(sending.sent) + len(later.sent)
        wait_for(lambda: len(lake.rows("transactions")) == sent, why=lambda: lake.rows("transactions"))
    assert ended_before < len(sending.sent), "none was open at the restart"
    assert sending.queues == {0, 1}
    assert {(row["state"], row["reason"]) for row in lake.rows("transactions")} <= {
        ("COMMITTED", "DIRECT"),
        ("COMMITTED", "CHECK"),
    }
    assert {row["queue"] for row in lake.rows("half")} == {0, 1, 2, 3}
    assert sorted(row["body"].decode() for row in lake.topic("orders")) == sorted(sending.sent + later.sent)
    assert lake.rejected() == {}
