"""RocketMQ's transaction example, ported, and a trace, by a real broker and coordinator; results read without Spark."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.collector import Collector, parent, traceparent
from tests.support.polling import wait_for
from tests.support.tables import rows

import commitlake
from commitlake import LocalTransactionState, Message, MessageExt, TransactionListener, TransactionMQProducer
from commitlake.clients import tracing

if TYPE_CHECKING:
    from commitlake.coordinator.coordinator import Coordinator

EXAMPLE = Path(__file__).parents[2] / "notebooks" / "examples" / "rocketmq_transaction.py"


def test_ten_unknown_transactions_end_by_their_checks(
    coordinator: Coordinator,
) -> None:
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    kafka, warehouse = coordinator.config.kafka, coordinator.config.warehouse
    with TransactionMQProducer(
        example["GROUP"],
        example["TransactionListenerImpl"](),
        bootstrap_servers=kafka.bootstrap_servers,
        topic_prefix=kafka.topic_prefix,
    ) as producer:
        ids = example["send_ten"](producer)
        wait_for(lambda: len(ended(warehouse, example["GROUP"])) == 10)

    ends = {row["transaction_id"]: row for row in ended(warehouse, example["GROUP"])}
    found = [(ends[one]["state"], ends[one]["reason"]) for one in ids]
    discarded, committed, rolled_back = ("DISCARDED", "CHECK_MAX"), ("COMMITTED", "CHECK"), ("ROLLED_BACK", "CHECK")
    assert found == [(discarded, committed, rolled_back)[i % 3] for i in range(10)]
    assert {ends[one]["checks"] for one in ids[::3]} == {coordinator.config.transaction.check_max}

    wait_for(lambda: len(visible(warehouse, example["TOPIC"])) >= 3)
    seen = visible(warehouse, example["TOPIC"])
    assert sorted((row["body"], row["tags"], row["keys"]) for row in seen) == [
        (f"Hello RocketMQ {i}".encode(), example["TAGS"][i % 5], f"KEY{i}") for i in (1, 4, 7)
    ]


class Later(TransactionListener):
    """Does not know until it is asked."""

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


def test_a_trace_goes_from_the_send_by_half_check_and_topic_to_the_consumer(
    coordinator: Coordinator, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing._SWITCH, "on", None)
    collector = Collector()
    commitlake.trace(collector.provider)
    kafka, warehouse = coordinator.config.kafka, coordinator.config.warehouse
    where: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": kafka.topic_prefix}
    with TransactionMQProducer("traced", Later(), **where) as producer:
        with collector.tracer.start_as_current_span("request"):
            producer.send_message_in_transaction(Message(topic, "half"))
            producer.send([Message(topic, "batch")])
        wait_for(lambda: len(visible(warehouse, topic)) == 2)

    half, batch = (span for span in collector.spans if span.name == f"send {topic}")
    assert [parent(span) for span in (half, batch)] == [traceparent(collector.one("request"))] * 2
    shown = {row["body"]: dict(row["properties"]) for row in visible(warehouse, topic)}
    assert shown == {b"half": {"traceparent": traceparent(half)}, b"batch": {"traceparent": traceparent(batch)}}
    (stored,) = [row for row in rows(warehouse, "half") if row["producer_group"] == "traced"]
    assert dict(stored["properties"]) == {"traceparent": traceparent(half)}
    assert parent(collector.one(f"check {topic}")) == traceparent(half)

    commitlake.consume(coordinator.config, topic, group="traced", follow=False).run(lambda _: None)
    handled = [parent(span) for span in collector.spans if span.name == f"process {topic}"]
    assert sorted(map(str, handled)) == sorted([traceparent(half), traceparent(batch)])


def ended(warehouse: str, group: str) -> list[dict[str, Any]]:
    return [row for row in rows(warehouse, "transactions") if row["producer_group"] == group]


def visible(warehouse: str, topic: str) -> list[dict[str, Any]]:
    return rows(warehouse, f"topics/{topic}")
