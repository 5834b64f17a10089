"""RocketMQ's own Python consumers, unchanged, with real gateways, and at the end a real coordinator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import rocketmq
from tests.support.gateway import client, gateway, message, push_consumer, simple_consumer, transaction
from tests.support.gateway_consuming import outcomes
from tests.support.namespace import Namespace
from tests.support.polling import wait_for
from tests.support.topic_table import message as row
from tests.support.topic_table import write

if TYPE_CHECKING:
    from commitlake.coordinator.coordinator import Coordinator


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Four messages in two queues."""
    place = tmp_path / "warehouse"
    write(
        place, "orders", [row(n, queue=n % 2, tags="paid" if n else "new", properties={"n": str(n)}) for n in range(4)]
    )
    return place


@pytest.fixture
def port(kafka: Namespace, warehouse: Path) -> Iterator[int]:
    """That of a gateway."""
    with gateway(kafka.servers, kafka.prefix, f"--set=warehouse={warehouse}") as running:
        yield running.port


def received(consumer: Any, count: int, hidden_s: int = 60) -> list[Any]:
    """So many messages."""
    found: list[Any] = []
    until = time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        found += consumer.receive(count - len(found), hidden_s)
    return found


def test_a_simple_consumer_receives_acknowledges_and_takes_its_time(warehouse: Path, port: int) -> None:
    with simple_consumer(port, "orders") as consumer:
        got = received(consumer, 4)
        assert sorted((each.message_id, each.tag, each.body) for each in got) == [
            (f"m{n}", "paid" if n else "new", b"%d" % n) for n in range(4)
        ]
        assert not any(each.corrupted for each in got)
        assert {each.delivery_attempt for each in got} == {1}
        consumer.change_invisible_duration(got[0], 1)
        consumer.change_invisible_duration(got[1], 120)
        for each in got[1:]:
            consumer.ack(each)
        (again,) = received(consumer, 1)
        assert (again.message_id, again.delivery_attempt) == (got[0].message_id, 2)
        with pytest.raises(Exception, match="receipt handle"):
            consumer.ack(got[0])
        consumer.ack(again)
        assert consumer.receive(1, 60) == []
    wait_for(lambda: sum(state == "DONE" for _, state, _ in outcomes(warehouse)) == 4)


def test_a_gateway_killed_before_the_acknowledgement_leaves_the_messages_to_the_next(
    kafka: Namespace, warehouse: Path
) -> None:
    at = f"--set=warehouse={warehouse}"
    with gateway(kafka.servers, kafka.prefix, at) as first, simple_consumer(first.port, "orders") as consumer:
        got = received(consumer, 4)
        consumer.ack(got[0])
        wait_for(lambda: outcomes(warehouse) == [(got[0].message_id, "DONE", 1)])
        first.kill()
        with (
            gateway(kafka.servers, kafka.prefix, at) as second,
            simple_consumer(second.port, "orders", wait_s=10) as other,
        ):
            again = received(other, 3)
            for each in again:
                other.ack(each)
            assert second.end() == 0
            assert outcomes(warehouse) == [(f"m{n}", "DONE", 1) for n in range(4)]
    assert sorted(each.message_id for each in again) == sorted(each.message_id for each in got[1:])


def test_from_a_send_to_a_push_consumer(coordinator: Coordinator, topic: str) -> None:
    """With a coordinator: what was rolled back is not seen."""
    kafka, got = coordinator.config.kafka, dict[bytes, Any]()
    at = f"--set=warehouse={coordinator.config.warehouse}"

    def consume(given: Any) -> bool:
        got[given.body] = given
        return True

    with (
        gateway(kafka.bootstrap_servers, kafka.topic_prefix, at) as running,
        client(running.port, topic, check=lambda _: rocketmq.TransactionResolution.COMMIT) as producer,
        push_consumer(running.port, topic, consume),
    ):
        normal = producer.send(message(topic, b"normal", tag="TagA", keys="KEY17", message_group="customer-4"))
        transaction(producer, message(topic, b"declined")).rollback()
        paid = transaction(producer, message(topic, b"paid"))
        paid.commit()
        wait_for(lambda: len(got) == 2)
    assert set(got) == {b"normal", b"paid"}
    first = got[b"normal"]
    assert (first.message_id, first.tag, first.keys, first.message_group) == (
        normal.message_id, "TagA", {"KEY17"}, "customer-4",
    )  # fmt: skip
