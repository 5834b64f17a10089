"""Consumers of a gateway when something is amiss: hostile records, standstills, clients that hold much, a stop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.awaited import awaited
from tests.support.gateway_consuming import ConsumerCalls, attempt, calls, ids, outcomes, run
from tests.support.gateway_in_memory import CLIENT, Kafka, code
from tests.support.topic_table import message, write

from commitlake.clients.consumer import group_member, receipts
from commitlake.clients.gateway import consumers, deliveries, reader, receiving, service
from commitlake.clients.gateway.stubs import definitions as d
from commitlake.clients.gateway.stubs import services as s

OTHER = (("x-mq-client-id", "client-2"),)
SIMPLE = d.Settings(client_type=d.SIMPLE_CONSUMER, subscription={"group": {"name": "points"}})


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Three messages in two queues."""
    place = tmp_path / "warehouse"
    write(place, "orders", [message(n, queue=n % 2) for n in range(3)])
    return place


def test_a_property_without_a_value_is_left_out(tmp_path: Path) -> None:
    """Kafka's headers may have none."""
    write(
        tmp_path / "w", "orders", [message(n, properties={"none": None, "a": "1"} if n == 1 else {}) for n in range(3)]
    )

    async def work() -> list[Any]:
        async with calls(tmp_path / "w") as client:
            return await client.receive_all(3)

    assert [dict(each.user_properties) for each in run(work())] == [{}, {"a": "1"}, {}]


@awaited
async def test_a_message_that_can_not_be_sent_takes_no_other_with_it(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a record has that RocketMQ's messages can't have."""
    real = receiving.received

    def received(message: Any, *arguments: Any) -> Any:
        if message.message_id == "m1":
            raise TypeError
        return real(message, *arguments)

    monkeypatch.setattr(consumers, "received", received)
    async with calls(warehouse) as client:
        got = await client.receive_all(2)
        assert sorted(map(ids, got)) == ["m0", "m2"]
        assert await client.ack(*got) == ["OK"] * 3
    assert outcomes(warehouse) == [("m0", "DONE", 1), ("m1", "RETRY", 1), ("m2", "DONE", 1)]


@awaited
async def test_no_message_goes_out_while_another_gateway_may_have_it(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a standstill, until the next turn in the group tells whose the queues are."""
    async with calls(warehouse) as client:
        await client.ack(*await client.receive(most=1))
        with monkeypatch.context() as patch:
            patch.setattr(group_member.GroupMember, "is_late", lambda _: True)
            assert await client.receive(wait_s=0.5) == []
        assert len(await client.receive_all(2)) == 2


def test_conditions_of_a_client_let_no_other_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new one is tried in a database of its own: not in the event loop, once, and 20 of one client's settings."""
    tried: list[tuple[str, threading.Thread]] = []

    def slow(tags: str | None, where: str | None) -> None:
        tried.append((str(where), threading.current_thread()))

    monkeypatch.setattr(receiving, "Filter", slow)
    entries = [
        d.SubscriptionEntry(topic={"name": "orders"}, expression={"type": d.SQL, "expression": f"slow = {n}"})
        for n in range(50)
    ]
    settings = d.Settings(client_type=d.PUSH_CONSUMER, subscription={"group": {"name": "g"}, "subscriptions": entries})

    async def work(stub: Any) -> list[str]:
        stream = stub.Telemetry(metadata=CLIENT)
        answers = []
        for _ in range(3):
            await stream.write(s.TelemetryCommand(settings=settings))
            answers.append(code(await stream.read()))
        await stream.done_writing()
        return answers

    assert Kafka().serve(work) == ["OK"] * 3
    assert sorted(where for where, _ in tried) == sorted(f"slow = {n}" for n in range(20))
    assert threading.main_thread() not in {thread for _, thread in tried}


@awaited
async def test_a_client_that_finishes_nothing_leaves_room_for_others(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MOST_HELD", 2)
    async with calls(warehouse) as client:
        got = await client.receive_all(2)
        assert await client.receive(wait_s=1) == []
        others = await ConsumerCalls(client.stub, OTHER).receive_all(1)
        assert {ids(each) for each in got + others} == {"m0", "m1", "m2"}
        asked = asyncio.create_task(client.receive(wait_s=20))
        await client.ack(*got)
        await asyncio.to_thread(write, warehouse, "orders", [message(9)])
        assert [ids(each) for each in await asked] == ["m9"]


def test_a_client_has_a_quarter_of_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_HELD_BYTES", 25_000)
    write(tmp_path / "w", "orders", [message(n, body=b"x" * 10_000) for n in range(5)])

    async def work() -> int:
        async with calls(tmp_path / "w") as client:
            return len(await client.receive_all(3)) + len(await client.receive(wait_s=1))

    assert run(work()) == 3


@awaited
async def test_a_failure_is_noticed_while_nobody_takes_what_is_read_ahead(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what can't be written as done is not answered with OK."""
    monkeypatch.setattr(reader, "AHEAD", 1)
    monkeypatch.setattr(consumers, "LEASE", "5s")
    write(warehouse, "orders", [message(n) for n in range(3, 6)])

    rows = receipts.Receipts.rows

    def fail(self: Any, some: Any) -> Any:
        if some:
            raise RuntimeError
        return rows(self, some)

    async with calls(warehouse) as client:
        first, second = await client.receive(most=1) + await client.receive(most=1)
        with monkeypatch.context() as patch:
            patch.setattr(receipts.Receipts, "rows", fail)
            assert await client.ack(first) == ["OK", "OK"], "its receipt is written later"
            await asyncio.sleep(1.3)
            assert await client.ack(second) == ["INVALID_RECEIPT_HANDLE"] * 2
            await asyncio.sleep(1.5)
        again = await client.receive_all(6)
        assert sorted(map(ids, again)) == [f"m{n}" for n in range(6)], "by another instance"


@awaited
async def test_what_is_sent_after_the_deadline_is_not_out(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write succeeds also where nobody reads it; a push consumer would have the messages for hours."""
    async with calls(warehouse) as client:
        with monkeypatch.context() as patch:
            patch.setattr(service, "_has_ended", lambda _: True)
            await client.receive(hidden_s=None)
        assert len(await ConsumerCalls(client.stub, OTHER).receive_all(3)) == 3


@awaited
async def test_what_is_acknowledged_does_not_come_again_after_a_clean_stop(tmp_path: Path) -> None:
    """Not even where the message in front of it was out; that one comes again when its duration is over."""
    write(tmp_path / "w", "orders", [message(n) for n in range(10)])
    async with calls(tmp_path / "w") as client:
        got = await client.receive_all(10, hidden_s=6)
        await client.ack(*got[1:])
    async with calls(tmp_path / "w") as client:
        (again,) = await client.receive_all(1)
        assert (ids(again), attempt(again)) == ("m0", 2)
        assert await client.receive(wait_s=1) == []


@pytest.mark.parametrize("is_connected", [True, False])
@awaited
async def test_what_a_simple_consumer_has_that_is_gone_comes_again_before_its_duration_is_over(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, is_connected: bool
) -> None:
    """It could hold its queues, and this gateway in the group, for 12 h."""
    monkeypatch.setattr(deliveries, "RENEW_S", 0.2)
    monkeypatch.setattr(deliveries, "GONE_S", 0.8)
    async with calls(warehouse) as client:
        stream = client.stub.Telemetry(metadata=CLIENT if is_connected else OTHER)
        await stream.write(s.TelemetryCommand(settings=SIMPLE))
        await stream.read()
        await client.receive_all(3, hidden_s=43_200)
        again = await ConsumerCalls(client.stub, OTHER).receive(wait_s=4)
        assert bool(again) != is_connected
        stream.cancel()


@awaited
async def test_one_client_does_not_wait_in_all_calls(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "_MOST_CALLS_OF_CLIENT", 1)
    async with calls(warehouse) as client:
        await client.ack(*await client.receive_all(3))
        waiting = asyncio.create_task(client.answers(wait_s=3))
        await asyncio.sleep(0.5)
        assert [code(each) for each in await client.answers()] == ["TOO_MANY_REQUESTS"]
        other = await ConsumerCalls(client.stub, OTHER).answers(wait_s=0.1)
        assert [code(each) for each in other] == ["MESSAGE_NOT_FOUND"]
        assert [code(each) for each in await waiting] == ["MESSAGE_NOT_FOUND"]
        assert [code(each) for each in await client.answers(wait_s=0.1)] == ["MESSAGE_NOT_FOUND"]


def test_a_call_waits_a_minute_at_most() -> None:
    request = s.ReceiveMessageRequest()
    request.long_polling_timeout.FromSeconds(43_200)
    assert receiving.wait_s(request, None) == 60
    assert receiving.wait_s(request, 10) == 9.5
