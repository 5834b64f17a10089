"""Consumers of a gateway: what they get, receipt handles, what is refused, and what happens when something is amiss."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.gateway import (
    CLIENT,
    ConsumerCalls,
    Kafka,
    attempt,
    calls,
    code,
    end_of,
    failing_receipts,
    handle,
    ids,
    outcomes,
    run,
)
from tests.support.polling import awaited
from tests.support.topic_table import AT, message, write

from commitlake.clients.consumer import group_member
from commitlake.clients.consumer.consume import Consumer
from commitlake.clients.gateway import consumers, deliveries, reader, receiving, service, stubs
from commitlake.clients.gateway.stubs import definitions as d
from commitlake.clients.gateway.stubs import services as s
from commitlake.protocol.topic_names import path_name

OTHER = (("x-mq-client-id", "client-2"),)
PUSH = d.Settings(client_type=d.PUSH_CONSUMER, subscription={"group": {"name": "points"}})
SIMPLE = d.Settings(
    client_type=d.SIMPLE_CONSUMER, request_timeout={"seconds": 2}, subscription={"group": {"name": "points"}}
)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Three messages in two queues."""
    place = tmp_path / "warehouse"
    write(place, "orders", [message(n, queue=n % 2, tags="paid" if n else "new") for n in range(3)])
    return place


def test_a_message_comes_with_all_that_it_has(tmp_path: Path) -> None:
    given = {"region": "Zürich", "__SHARDINGKEY": "customer-3", "of a header without a value": None}
    row = message(7, batch=1, queue=1, tags="paid", keys="k1 k2", properties=given, sharding_key=b"customer-4")
    write(tmp_path / "w", path_name("shop%orders"), [row])

    async def work() -> Any:
        async with calls(tmp_path / "w") as client:
            client.names["topic"] = d.Resource(name="orders", resource_namespace="shop")
            return await client.answers()

    status, answer, delivered = run(work())
    got, own = answer.message, answer.message.system_properties
    assert (code(status), delivered.HasField("delivery_timestamp")) == ("OK", True)
    assert (got.topic.name, got.topic.resource_namespace, got.body) == ("orders", "shop", b"7")
    shown = {"__SHARDINGKEY": "customer-4", "__transactionId__": "m7"}
    assert dict(got.user_properties) == {"region": "Zürich", **shown}, "as RocketMQ shows them"
    assert (own.message_id, own.tag, list(own.keys), own.message_group) == ("m7", "paid", ["k1", "k2"], "customer-4")
    assert (own.queue_id, own.queue_offset, own.delivery_attempt) == (1, 7, 1)
    assert own.body_digest.checksum == "902BA3CDA1883801594B6E1B452790CC53948FDA"
    assert own.invisible_duration.seconds == 60
    assert own.store_timestamp.ToMilliseconds() == 1_767_225_600_007


@pytest.mark.parametrize(("batch", "kind"), [(None, d.DELAY), (1, d.TRANSACTION)])
def test_a_message_with_a_delay_comes_as_one_and_says_when_it_was_due(
    tmp_path: Path, batch: int | None, kind: int
) -> None:
    write(tmp_path / "w", "orders", [message(7, batch=batch, sharding_key=b"k", due_at=AT + 5_000)])

    async def work() -> Any:
        async with calls(tmp_path / "w") as client:
            return await client.answers()

    own = run(work())[1].message.system_properties
    assert (own.message_type, own.delivery_timestamp.ToMilliseconds()) == (kind, AT // 1_000 + 5)


@awaited
async def test_what_is_acknowledged_is_done_and_does_not_come_again(warehouse: Path) -> None:
    async with calls(warehouse) as client:
        got = await client.receive_all(3)
        assert await client.ack(*got) == ["OK"] * 4
    async with calls(warehouse) as client:
        (nothing,) = await client.answers(wait_s=2)
        assert code(nothing) == "MESSAGE_NOT_FOUND"
    assert outcomes(warehouse) == [(f"m{n}", "DONE", 1) for n in range(3)]


@awaited
async def test_each_group_gets_all_messages_and_its_clients_share_them(warehouse: Path) -> None:
    async with calls(warehouse) as client:
        second = ConsumerCalls(client.stub, OTHER)
        mine, theirs = await asyncio.gather(client.receive(most=1), second.receive(most=1))
        rest = await client.receive_all(1)
        assert {ids(each) for each in mine + theirs + rest} == {"m0", "m1", "m2"}
        logistics = ConsumerCalls(client.stub, group="logistics")
        assert len(await logistics.receive_all(3)) == 3


@awaited
async def test_a_call_waits_for_the_next_message(warehouse: Path) -> None:
    async with calls(warehouse) as client:
        await client.ack(*await client.receive_all(3))
        waiting = asyncio.create_task(client.receive(wait_s=20))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await asyncio.to_thread(write, warehouse, "orders", [message(9)])
        assert [ids(each) for each in await waiting] == ["m9"]


@awaited
async def test_a_call_ends_in_time_for_its_client_to_hear_of_it(tmp_path: Path) -> None:
    async with calls(tmp_path / "empty") as client:
        stream = client.stub.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand(settings=SIMPLE))
        await stream.read()
        begun = time.monotonic()
        request = s.ReceiveMessageRequest(
            group=client.names["group"], message_queue={"topic": client.names["topic"]}, batch_size=1,
            auto_renew=True,
        )  # fmt: skip
        call = client.stub.ReceiveMessage(request, metadata=CLIENT, timeout=3)
        assert [code(answer) async for answer in call] == ["MESSAGE_NOT_FOUND"]
        assert 1.5 < time.monotonic() - begun < 2.5, "half of its request time-out is left"


@awaited
async def test_what_is_not_acknowledged_in_time_comes_again_and_its_handle_is_good_no_more(warehouse: Path) -> None:
    async with calls(warehouse) as client:
        first = await client.receive_all(3, hidden_s=1)
        again = await client.receive_all(3)
        assert sorted(map(ids, again)) == ["m0", "m1", "m2"]
        assert {attempt(each) for each in again} == {2}
        assert await client.ack(first[0]) == ["INVALID_RECEIPT_HANDLE"] * 2
        assert await client.ack(again[0], first[0]) == ["MULTIPLE_RESULTS", "OK", "INVALID_RECEIPT_HANDLE"]


@awaited
async def test_the_text_names_the_code_of_a_handle_that_is_no_good(warehouse: Path) -> None:
    """RocketMQ's Java client shows the text, and of the code only its number."""
    async with calls(warehouse) as client:
        entries = [s.AckMessageEntry(message_id="m0", receipt_handle="none")]
        answer = await client.stub.AckMessage(s.AckMessageRequest(entries=entries, **client.names), metadata=CLIENT)
        assert answer.status.message.startswith("INVALID_RECEIPT_HANDLE: 'none' is no good receipt handle")


@awaited
async def test_a_longer_duration_gives_another_handle(warehouse: Path) -> None:
    async with calls(warehouse) as client:
        (got,) = await client.receive(most=1, hidden_s=0.8)
        changed, new = await client.change(got, 30)
        assert (changed, new != handle(got)) == ("OK", True)
        assert await client.ack(got) == ["INVALID_RECEIPT_HANDLE"] * 2
        await asyncio.sleep(1)
        got.system_properties.receipt_handle = new
        assert await client.ack(got) == ["OK", "OK"]
        assert await client.ack(got) == ["INVALID_RECEIPT_HANDLE"] * 2
        assert await client.change(got, 30) == ("INVALID_RECEIPT_HANDLE", "")
    assert [state for _, state, _ in outcomes(warehouse)] == ["DONE"]


@pytest.mark.parametrize("seconds", [0.5, 0])
@awaited
async def test_a_shorter_duration_lets_it_come_sooner(warehouse: Path, seconds: float) -> None:
    async with calls(warehouse) as client:
        (got,) = await client.receive(most=1, hidden_s=600)
        assert (await client.change(got, seconds))[0] == "OK"
        again = await client.receive_all(3)
        assert {ids(each): attempt(each) for each in again}[ids(got)] == 2


@awaited
async def test_a_handle_is_good_only_for_its_topic_group_and_gateway(warehouse: Path) -> None:
    async with calls(warehouse) as client, Kafka(warehouse=str(warehouse)).stub() as other:
        (got,) = await client.receive(most=1)
        for stranger in (
            ConsumerCalls(client.stub, group="logistics"), ConsumerCalls(client.stub, topic="bills"),
            ConsumerCalls(other),
        ):  # fmt: skip
            assert await stranger.ack(got) == ["INVALID_RECEIPT_HANDLE"] * 2
            assert await stranger.give_up(got) == "INVALID_RECEIPT_HANDLE"
        assert await client.ack(got) == ["OK", "OK"]


@pytest.mark.parametrize("seconds", [2, 0])
@awaited
async def test_what_a_push_consumer_could_not_consume_comes_again_after_a_pause(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """RocketMQ's client for Node asks for 0, and gets the gateway's pause."""
    monkeypatch.setattr(deliveries, "PAUSES", ("1s", "2s"))
    async with calls(warehouse) as client:
        got = await client.receive_all(3, hidden_s=None)
        begun = time.monotonic()
        assert (await client.change(got[0], seconds))[0] == "OK"
        assert await client.ack(got[0]) == ["INVALID_RECEIPT_HANDLE"] * 2
        assert await client.ack(*got[1:]) == ["OK"] * 3
        (again,) = await client.receive_all(1, hidden_s=None)
        assert (ids(again), attempt(again)) == (ids(got[0]), 2)
        assert time.monotonic() - begun >= (seconds or 1)


@awaited
async def test_after_the_last_attempt_it_is_a_dead_letter(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "MOST_ATTEMPTS", 2)
    async with calls(warehouse) as client:
        for _ in range(2):
            for got in await client.receive_all(3, hidden_s=None):
                await client.change(got, 0.01)
        assert await client.receive(wait_s=2) == []
    assert [each for each in outcomes(warehouse) if each[1] == "DEAD"] == [(f"m{n}", "DEAD", 2) for n in range(3)]


@awaited
async def test_a_dead_letter_by_request(warehouse: Path) -> None:
    async with calls(warehouse) as client:
        got = await client.receive_all(3)
        assert [await client.give_up(each) for each in got] == ["OK"] * 3
    assert outcomes(warehouse) == [(f"m{n}", "DEAD", 1) for n in range(3)]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (d.TAG, "*", ["m0", "m1", "m2"]),
        (d.TAG, "", ["m0", "m1", "m2"]),
        (d.TAG, "paid || shipped", ["m1", "m2"]),
        (d.TAG, "paid || " + "x" * 10_240, ["m1"]),
        (d.SQL, "TAGS = 'paid' AND KEYS <> 'k1'", ["m2"]),
    ],
)
def test_filters(warehouse: Path, kind: int, text: str, expected: list[str]) -> None:
    async def work() -> list[str]:
        async with calls(warehouse) as client:
            wanted = d.FilterExpression(type=kind, expression=text)
            return [ids(each) for each in await client.receive_all(len(expected), filter_expression=wanted)]

    assert sorted(run(work())) == expected


def _filter(text: str, kind: int = d.SQL) -> dict[str, Any]:
    return {"filter_expression": {"type": kind, "expression": text}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_filter("a >"), "ILLEGAL_FILTER_EXPRESSION"),
        (_filter("read_text('/etc/passwd') = ''"), "ILLEGAL_FILTER_EXPRESSION"),
        (_filter("(" * 2_000 + "a" + ")" * 2_000), "ILLEGAL_FILTER_EXPRESSION"),
        (_filter("a||" * 6_000, d.TAG), "ILLEGAL_FILTER_EXPRESSION"),
        ({"group": {"name": ""}}, "ILLEGAL_CONSUMER_GROUP"),
        ({"group": {"name": "x" * 300}}, "ILLEGAL_CONSUMER_GROUP"),
        ({"message_queue": {"topic": {"name": "../orders"}}}, "ILLEGAL_TOPIC"),
        ({"message_queue": {"topic": {"name": "secret"}}}, "TOPIC_NOT_FOUND"),
        ({"invisible_duration": {"seconds": 9, "nanos": 999_000_000}}, "ILLEGAL_INVISIBLE_TIME"),
        ({"invisible_duration": {"seconds": 43_201}}, "ILLEGAL_INVISIBLE_TIME"),
    ],
)
def test_what_can_not_be_received_is_refused(warehouse: Path, change: dict[str, Any], expected: str) -> None:
    fields = {
        "group": {"name": "points"}, "message_queue": {"topic": {"name": "orders"}}, "batch_size": 1,
        "invisible_duration": {"seconds": 60}, **change,
    }  # fmt: skip

    async def work(stub: Any) -> list[str]:
        call = stub.ReceiveMessage(s.ReceiveMessageRequest(**fields), metadata=CLIENT)
        return [code(answer) async for answer in call]

    assert Kafka(warehouse=str(warehouse), topics__allowed="orders").serve(work) == [expected]


@pytest.mark.parametrize("count", [1, 2])
@awaited
async def test_a_message_that_its_client_can_not_get_holds_no_other_up(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """gRPC's own limit of a client is 4 MiB, and a message may have so much."""
    monkeypatch.setattr(deliveries, "_FAILED_S", 0.1)
    monkeypatch.setattr(deliveries, "MOST_ATTEMPTS", 3)
    large = [message(n, queue=n % 2, body=b"x" * (4 << 20)) for n in range(4, 4 + count)]
    write(warehouse, "orders", [*large, message(9)])
    async with calls(warehouse) as client:
        done: list[str] = []
        for _ in range(60):
            try:
                got = await client.receive(wait_s=8, hidden_s=5)  # a write may succeed all the same
            except grpc.aio.AioRpcError as error:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                continue
            if not got:
                break
            await client.ack(*got)
            done += map(ids, got)
        assert sorted(done) == ["m0", "m1", "m2", "m9"]
    found = outcomes(warehouse)
    assert [(name, state) for name, state, _ in found if state == "DEAD"] == [
        (f"m{4 + n}", "DEAD") for n in range(count)
    ]


def test_acknowledgements_of_one_call_are_bounded(warehouse: Path) -> None:
    request = s.AckMessageRequest(group={"name": "g"}, topic={"name": "orders"}, entries=[s.AckMessageEntry()] * 2_501)
    answer = Kafka(warehouse=str(warehouse)).serve(lambda stub: stub.AckMessage(request, metadata=CLIENT))
    assert (code(answer), len(answer.entries)) == ("BAD_REQUEST", 0)


def test_tables_that_only_spark_reads_are_refused() -> None:
    async def work() -> list[str]:
        async with Kafka(warehouse="hdfs://namenode/lake").stub() as stub:
            return [code(answer) for answer in await ConsumerCalls(stub).answers()]

    assert run(work()) == ["UNSUPPORTED"]


def test_one_client_does_not_take_all_places(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "_MOST_OF_CLIENT", 1)
    monkeypatch.setattr(consumers, "_REFUSED_S", 0.1)

    async def work() -> list[str]:
        async with calls(warehouse) as client:
            second, other = (ConsumerCalls(client.stub, who, group="second") for who in (CLIENT, OTHER))
            return [code((await each.answers())[0]) for each in (client, second, other)]

    assert run(work()) == ["OK", "TOO_MANY_REQUESTS", "OK"]


@awaited
async def test_a_group_that_nobody_asks_for_is_left_to_other_gateways(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "IDLE_S", 0.5)
    async with calls(warehouse) as first, calls(warehouse) as second:
        (got,) = await first.receive(most=1)
        asked = asyncio.create_task(second.receive_all(2))  # of the queue that is not held, or later
        await first.ack(got)
        begun = time.monotonic()
        assert {ids(each) for each in await asked} | {ids(got)} == {"m0", "m1", "m2"}
        assert time.monotonic() - begun < 12, "less than the lease"


@awaited
async def test_two_gateways_share_a_group(warehouse: Path) -> None:
    async with calls(warehouse) as first, calls(warehouse) as second:
        got: list[str] = []

        async def consume(client: ConsumerCalls) -> None:
            while len(got) < 43:
                messages = await client.receive(most=4, wait_s=1)
                await client.ack(*messages)
                got.extend(map(ids, messages))

        both = asyncio.gather(consume(first), consume(second))
        for batch in range(4):
            await asyncio.sleep(1)
            rows = [message(100 + 10 * batch + n, queue=n % 2) for n in range(10)]
            await asyncio.to_thread(write, warehouse, "orders", rows)
        await both
        assert sorted(got) == sorted({f"m{n}" for n in (*range(3), *range(100, 140))})


@awaited
async def test_a_push_consumer_that_ends_gives_back_what_it_has(warehouse: Path) -> None:
    """No attempt is counted: starting and failing again and again makes no dead letters of what was never handled."""
    async with calls(warehouse) as client:
        await client.receive_all(3, hidden_s=None)
        await client.stub.NotifyClientTermination(s.NotifyClientTerminationRequest(), metadata=CLIENT)
        again = await ConsumerCalls(client.stub, OTHER).receive_all(3)
        assert {attempt(each) for each in again} == {1}
        assert await ConsumerCalls(client.stub, OTHER).ack(*again) == ["OK"] * 4
    assert {state for _, state, _ in outcomes(warehouse)} == {"DONE"}


@pytest.mark.parametrize(("settings", "hidden_s"), [(PUSH, None), (SIMPLE, 43_200)], ids=["push", "simple"])
@pytest.mark.parametrize("is_connected", [True, False])
@awaited
async def test_what_a_client_has_comes_again_once_it_is_gone(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, is_connected: bool, settings: Any, hidden_s: float | None
) -> None:
    """A simple consumer could hold its queues, and this gateway in the group, for 12 h."""
    monkeypatch.setattr(deliveries, "RENEW_S", 0.2)
    if settings is SIMPLE:  # those of a push consumer, which renews them, do not wait so long
        monkeypatch.setattr(deliveries, "GONE_S", 0.8)
    async with calls(warehouse) as client:
        stream = client.stub.Telemetry(metadata=CLIENT if is_connected else OTHER)
        await stream.write(s.TelemetryCommand(settings=settings))
        await stream.read()
        got = await client.receive_all(3, hidden_s=hidden_s)
        again = await ConsumerCalls(client.stub, OTHER).receive(wait_s=4)
        assert bool(again) != is_connected
        assert (await client.ack(got[0]))[0] == ("OK" if is_connected else "INVALID_RECEIPT_HANDLE")
        stream.cancel()


@awaited
async def test_a_client_that_goes_while_it_waits_takes_nothing(warehouse: Path) -> None:
    async with calls(warehouse) as client:
        await client.ack(*await client.receive_all(3))
        waiting = asyncio.create_task(client.receive(wait_s=20))
        await asyncio.sleep(0.3)
        waiting.cancel()
        await asyncio.sleep(0.3)
        await asyncio.to_thread(write, warehouse, "orders", [message(9)])
        (got,) = await ConsumerCalls(client.stub, OTHER).receive()
        assert (ids(got), attempt(got)) == ("m9", 1)


def test_a_consumer_hears_how_to_consume() -> None:
    async def work(stub: Any) -> Any:
        stream = stub.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand(settings=PUSH))
        good = await stream.read()
        broken = d.FilterExpression(type=d.SQL, expression="a >")
        entry = d.SubscriptionEntry(topic={"name": "orders"}, expression=broken)
        bad = d.Settings(client_type=d.PUSH_CONSUMER, subscription={"group": {"name": "g"}, "subscriptions": [entry]})
        await stream.write(s.TelemetryCommand(settings=bad))
        return good, await end_of(stream)

    good, (ended, reason) = Kafka().serve(work)
    settings = good.settings
    assert (code(good), settings.subscription.receive_batch_size, settings.subscription.fifo) == ("OK", 32, False)
    assert settings.backoff_policy.max_attempts == 16
    assert [each.seconds for each in settings.backoff_policy.customized_backoff.next][:3] == [10, 30, 60]
    assert ended == "INVALID_ARGUMENT"
    assert reason.startswith("ILLEGAL_FILTER_EXPRESSION: the filter")


def test_an_assignment_is_one_queue_at_the_address_by_which_the_client_calls() -> None:
    endpoints = d.Endpoints(scheme=d.IPv4, addresses=[d.Address(host="127.0.0.1", port=8081)])

    def asked(**fields: Any) -> Any:
        request = s.QueryAssignmentRequest(group={"name": "points"}, **fields)
        return Kafka(topics__allowed="orders").serve(lambda stub: stub.QueryAssignment(request, metadata=CLIENT))

    (assigned,) = asked(topic={"name": "orders"}, endpoints=endpoints).assignments
    assert (assigned.message_queue.id, assigned.message_queue.broker.endpoints) == (-1, endpoints)
    assert code(asked(topic={"name": "secret"}, endpoints=endpoints)) == "TOPIC_NOT_FOUND"
    assert code(asked(topic={"name": "orders"})) == "ILLEGAL_ACCESS_POINT"
    many = d.Endpoints(scheme=d.IPv4, addresses=[d.Address(host="h" * 100, port=1)] * 100)
    assert code(asked(topic={"name": "orders"}, endpoints=many)) == "ILLEGAL_ACCESS_POINT"


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

    async with calls(warehouse) as client:
        first, second = await client.receive(most=1) + await client.receive(most=1)
        with failing_receipts():
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


@awaited
async def test_one_client_does_not_wait_in_all_calls(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And a loop of refused calls slows itself, and does not fill the log."""
    monkeypatch.setattr(consumers, "_MOST_CALLS_OF_CLIENT", 1)
    async with calls(warehouse) as client:
        await client.ack(*await client.receive_all(3))
        waiting = asyncio.create_task(client.answers(wait_s=4))
        await asyncio.sleep(0.5)
        begun = time.monotonic()
        for _ in range(2):
            assert [code(each) for each in await client.answers(wait_s=0.5)] == ["TOO_MANY_REQUESTS"]
        assert 1 <= time.monotonic() - begun < 2
        begun = time.monotonic()
        assert [code(each) for each in await client.answers(wait_s=0)] == ["TOO_MANY_REQUESTS"]
        assert time.monotonic() - begun >= 0.5
        assert caplog.text.count("a client may wait in 1 calls at a time") == 1
        other = await ConsumerCalls(client.stub, OTHER).answers(wait_s=0.1)
        assert [code(each) for each in other] == ["MESSAGE_NOT_FOUND"]
        assert [code(each) for each in await waiting] == ["MESSAGE_NOT_FOUND"]
        assert [code(each) for each in await client.answers(wait_s=0.1)] == ["MESSAGE_NOT_FOUND"]


def test_a_loop_of_calls_that_fail_does_not_fill_the_log(warehouse: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path(f"{warehouse}_receipts").write_text("no directory")
    stubs._throttle.cache_clear()

    async def work() -> list[str]:
        async with calls(warehouse) as client:
            return [code((await client.answers())[0]) for _ in range(3)]

    assert run(work()) == ["INTERNAL_SERVER_ERROR"] * 3
    assert caplog.text.count("a call failed") == 1


def test_a_call_waits_a_minute_at_most() -> None:
    request = s.ReceiveMessageRequest()
    request.long_polling_timeout.FromSeconds(43_200)
    assert receiving.wait_s(request, None, 3) == 60
    assert receiving.wait_s(request, 10, 0) == 9.5


@pytest.mark.parametrize(("await_s", "request_s", "expected"), [(10, 3, 11.5), (10, 10, 15), (0, 3, 1.5), (30, 3, 20)])
def test_a_call_that_names_no_time_ends_when_half_of_the_request_time_out_is_left(
    await_s: float, request_s: float, expected: float
) -> None:
    """RocketMQ's client for Java 5.0.3 names only a deadline, in which both times are."""
    assert receiving.wait_s(s.ReceiveMessageRequest(), await_s + request_s, request_s) == expected


@awaited
async def test_groups_that_begin_at_once_join_in_turn(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dozens of them would leave the event loop no time for the calls of others."""
    joining, most = list[int](), list[int]()
    real = Consumer.join

    def join(self: Consumer) -> None:
        joining.append(1)
        most.append(len(joining))
        time.sleep(0.05)
        real(self)
        joining.pop()

    monkeypatch.setattr(Consumer, "join", join)
    async with calls(warehouse) as client:
        groups = [ConsumerCalls(client.stub, group=f"g{n}") for n in range(8)]
        found = await asyncio.gather(*(each.receive_all(3) for each in groups))
    assert (len(found), max(most)) == (8, 2)
