"""RocketMQ's transaction example, ported, and a Node client, a trace, and batches, by a real coordinator.

The example of scheduled messages: tests/e2e/test_notebook.py.
"""

from __future__ import annotations

import runpy
import shutil
import signal
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from tests.support import tables
from tests.support.collector import Collector, parent, traceparent
from tests.support.killing import ROOT, kill
from tests.support.namespace import Listener
from tests.support.polling import wait_for
from tests.support.running import fetch

import commitlake
from commitlake import DefaultMQProducer, LocalTransactionState, Message, TransactionMQProducer
from commitlake.clients import tracing

if TYPE_CHECKING:
    from commitlake.coordinator.coordinator import Coordinator

EXAMPLES = ROOT / "notebooks" / "examples"


def kafka_of(coordinator: Coordinator) -> dict[str, Any]:
    """What a producer must know of it."""
    kafka = coordinator.config.kafka
    return {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": kafka.topic_prefix}


def test_ten_unknown_transactions_end_by_their_checks(coordinator: Coordinator) -> None:
    example: dict[str, Any] = runpy.run_path(str(EXAMPLES / "rocketmq_transaction.py"))
    warehouse, listener = coordinator.config.warehouse, example["TransactionListenerImpl"]()
    with TransactionMQProducer(example["GROUP"], listener, **kafka_of(coordinator)) as producer:
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


def test_a_trace_goes_from_the_send_by_half_check_and_topic_to_the_consumer(
    coordinator: Coordinator, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing._SWITCH, "on", None)
    collector = Collector()
    commitlake.trace(collector.provider)
    warehouse = coordinator.config.warehouse
    with TransactionMQProducer("traced", Listener(LocalTransactionState.UNKNOW), **kafka_of(coordinator)) as producer:
        with collector.tracer.start_as_current_span("request"):
            producer.send_message_in_transaction(Message(topic, "half"))
            producer.send([Message(topic, "batch")])
        wait_for(lambda: len(visible(warehouse, topic)) == 2)

    half, batch = (span for span in collector.spans if span.name == f"send {topic}")
    assert [parent(span) for span in (half, batch)] == [traceparent(collector.one("request"))] * 2
    shown = {row["body"]: dict(row["properties"]) for row in visible(warehouse, topic)}
    assert shown == {b"half": {"traceparent": traceparent(half)}, b"batch": {"traceparent": traceparent(batch)}}
    (stored,) = [row for row in tables.rows(warehouse, "half") if row["producer_group"] == "traced"]
    assert dict(stored["properties"]) == {"traceparent": traceparent(half)}
    assert parent(collector.one(f"check {topic}")) == traceparent(half)

    commitlake.consume(coordinator.config, topic, group="traced", follow=False).run(lambda _: None)
    handled = [parent(span) for span in collector.spans if span.name == f"process {topic}"]
    assert sorted(map(str, handled)) == sorted([traceparent(half), traceparent(batch)])


def ended(warehouse: str, group: str) -> list[dict[str, Any]]:
    return [row for row in tables.rows(warehouse, "transactions") if row["producer_group"] == group]


def visible(warehouse: str, topic: str) -> list[dict[str, Any]]:
    return tables.rows(warehouse, f"topics/{topic}")


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


def test_batches_are_whole_in_every_version_of_the_table(coordinator: Coordinator, topic: str) -> None:
    sent, warehouse = {}, coordinator.config.warehouse
    with DefaultMQProducer("batches", **kafka_of(coordinator)) as producer:
        for number in range(10):
            members = [
                Message(topic, f"{number}-{at}", tags=f"Tag{at}", keys=f"KEY{at}", properties={"buyer": f"buyer {at}"})
                for at in range(10)
            ]
            result = producer.send(members)
            sent[result.queue_id, result.queue_offset] = (number, result.msg_id.split(","))
    wait_for(lambda: len((visible_batches(warehouse, topic) or [{}])[-1]) == len(sent))
    versions = visible_batches(warehouse, topic)
    assert {len(members) for batches in versions for members in batches.values()} == {10}
    for place, rows in versions[-1].items():
        number, ids = sent[place]
        assert [row["message_id"] for row in rows] == ids
        assert [row["source_index"] for row in rows] == list(range(10))
        assert [row["body"] for row in rows] == [f"{number}-{at}".encode() for at in range(10)]
        assert [(row["tags"], row["keys"]) for row in rows] == [(f"Tag{at}", f"KEY{at}") for at in range(10)]
        assert [dict(row["properties"]) for row in rows] == [{"buyer": f"buyer {at}"} for at in range(10)]
        assert len({(row["stored_at"], row["born_at"], row["visible_at"], row["queue_id"]) for row in rows}) == 1


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The example with what `npm install` brings."""
    place = shutil.copytree(EXAMPLES / "node", tmp_path / "node", ignore=shutil.ignore_patterns("node_modules"))
    fetch("npm", "install", "--silent", cwd=place)
    return place


@pytest.mark.soak  # npm fetches a package
def test_a_node_client_commits_rolls_back_and_answers_a_check(coordinator: Coordinator, installed: Path) -> None:
    kafka, warehouse = coordinator.config.kafka, coordinator.config.warehouse
    command = ["node", "transaction.js", kafka.bootstrap_servers, kafka.topic_prefix]
    client = subprocess.Popen(command, cwd=installed, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert client.stdout is not None
        sent = dict(client.stdout.readline().split()[:2] for _ in range(3))

        def ends() -> dict[str, tuple[str, str]]:
            mine = [row for row in tables.rows(warehouse, "transactions") if row["producer_group"] == "node-service"]
            return {row["transaction_id"]: (row["state"], row["reason"]) for row in mine}

        wait_for(lambda: len(ends()) == 3)
        assert ends() == {
            sent["paid"]: ("COMMITTED", "DIRECT"),
            sent["declined"]: ("ROLLED_BACK", "DIRECT"),
            sent["late"]: ("COMMITTED", "CHECK"),
        }
        client.send_signal(signal.SIGTERM)
        assert client.wait(30) == 0
    finally:
        kill(client)
