"""The calls of the gateway: kinds of messages, transactions, routes, streams, and the codes of what is refused."""

from __future__ import annotations

import asyncio
import gzip
import os
import threading
import time
import tracemalloc
from typing import Any

import grpc
import pytest
from tests.support.gateway import CLIENT, Kafka, code, end_of, message
from tests.support.polling import awaited

from commitlake.clients.gateway.access import Caller
from commitlake.clients.gateway.messages import TransactionHandle
from commitlake.clients.gateway.producers import THREADS, Producers
from commitlake.clients.gateway.sessions import MOST_TOPICS, MOST_UNSENT, MOST_UNSENT_BYTES, Session
from commitlake.clients.gateway.stubs import definitions as d
from commitlake.clients.gateway.stubs import services as s
from commitlake.clients.producer.message import Message
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.testing import Fault

ENDPOINTS = d.Endpoints(scheme=d.IPv4, addresses=[d.Address(host="127.0.0.1", port=8081)])


def end(entry: Any, resolution: int = d.COMMIT) -> Any:
    return s.EndTransactionRequest(
        topic=d.Resource(name="orders"), message_id=entry.message_id, transaction_id=entry.transaction_id,
        resolution=resolution, source=d.SOURCE_CLIENT,
    )  # fmt: skip


def test_a_message_comes_through_with_all_that_it_has() -> None:
    kafka = Kafka()
    sent = kafka.send(
        message(
            tag="TagA", keys=["k1", "k2"], properties={"region": "Zürich"}, message_id="01FF", namespace="shop",
            kind=d.FIFO, message_group="customer-4", body=gzip.compress(b"zipped"), body_encoding=d.GZIP,
        )
    )  # fmt: skip
    assert (code(sent), [d.Code.Name(entry.status.code) for entry in sent.entries]) == ("OK", ["OK"])
    entry = sent.entries[0]
    assert (entry.message_id, entry.transaction_id) == ("01FF", "01FF"), "the second one as in RocketMQ"
    (shown,) = kafka.coordinator.messages("shop%orders")
    found = (shown.body, shown.message_id, shown.tags, shown.keys, dict(shown.properties), shown.sharding_key)
    assert found == (b"zipped", "01FF", "TagA", "k1 k2", {"region": "Zürich"}, b"customer-4")
    assert shown.producer_group == "shop%orders", "as RocketMQ's proxy has it"


def test_a_property_names_the_group_and_that_of_a_former_transaction_is_dropped() -> None:
    kafka = Kafka()
    kafka.send(message(properties={"PGROUP": "order-service", "__transactionId__": "of another message"}))
    (shown,) = kafka.coordinator.messages("orders")
    assert (shown.producer_group, dict(shown.properties)) == ("order-service", {})


def test_messages_of_one_topic_are_one_batch() -> None:
    kafka = Kafka()
    sent = kafka.send(message(message_id="A"), message(message_id="B"))
    assert [entry.message_id for entry in sent.entries] == ["A", "B"]
    assert [shown.message_id for shown in kafka.coordinator.messages("orders")] == ["A", "B"]
    assert [shown.position for shown in kafka.coordinator.messages("orders")] == ["messages-0-0-0", "messages-0-0-1"]


def test_a_delayed_message_waits_and_is_recalled() -> None:
    kafka = Kafka()
    due = int(time.time()) + 60
    sent = kafka.send(message(kind=d.DELAY, delivery_timestamp={"seconds": due}))
    handle = sent.entries[0].recall_handle
    other = s.RecallMessageRequest(topic=d.Resource(name="points"), recall_handle=handle)
    right = s.RecallMessageRequest(topic=d.Resource(name="orders"), recall_handle=handle)
    broken = s.RecallMessageRequest(topic=d.Resource(name="orders"), recall_handle="broken")
    assert code(kafka.serve(lambda stub: stub.RecallMessage(other, metadata=CLIENT))) == "BAD_REQUEST"
    assert code(kafka.serve(lambda stub: stub.RecallMessage(broken, metadata=CLIENT))) == "BAD_REQUEST"
    recalled = kafka.serve(lambda stub: stub.RecallMessage(right, metadata=CLIENT))
    assert (code(recalled), recalled.message_id) == ("OK", "01AB")
    kafka.coordinator.advance("2m")
    assert kafka.coordinator.messages("orders") == []


@pytest.mark.parametrize(("resolution", "shown"), [(d.COMMIT, ["01AB"]), (d.ROLLBACK, [])])
def test_another_gateway_ends_a_transaction(resolution: int, shown: list[str]) -> None:
    kafka = Kafka()
    (entry,) = kafka.send(message(kind=d.TRANSACTION, properties={"PGROUP": "order service: ü"})).entries
    assert kafka.coordinator.messages("orders") == []
    (transaction_id,) = kafka.coordinator.pending
    assert entry.transaction_id.startswith(transaction_id), "so whoever has the receipt finds it in the tables"
    assert code(kafka.serve(lambda stub: stub.EndTransaction(end(entry, resolution), metadata=CLIENT))) == "OK"
    assert [row.message_id for row in kafka.coordinator.messages("orders")] == shown
    assert kafka.coordinator.rejected == []


def test_the_immunity_of_a_half_message() -> None:
    kafka = Kafka(transaction__timeout="6s")
    kafka.send(message(kind=d.TRANSACTION, orphaned_transaction_recovery_duration={"seconds": 60}))
    kafka.coordinator.advance("50s")
    assert kafka.coordinator.checks == []
    kafka.coordinator.advance("20s")
    assert len(kafka.coordinator.checks) == 1


def test_a_half_message_whose_client_has_gone_is_rolled_back() -> None:
    kafka = Kafka()
    send, is_out, sent = kafka.engine.send, threading.Event(), []

    def slow(topic: str, queue: Any, record: Any, timeout_ms: int) -> Any:
        is_out.set()
        sent.append(topic)
        time.sleep(0.5)
        return send(topic, queue, record, timeout_ms)

    async def work(stub: Any) -> None:
        call = stub.SendMessage(s.SendMessageRequest(messages=[message(kind=d.TRANSACTION)]), metadata=CLIENT)
        await asyncio.to_thread(is_out.wait, 10)
        call.cancel()
        while len(sent) < 2 or kafka.coordinator.pending:
            await asyncio.sleep(0.05)

    kafka.engine.send = slow  # type: ignore[method-assign]
    kafka.serve(work)
    assert [topic.rpartition(".")[2] for topic in sent] == ["half", "op"]
    assert kafka.coordinator.messages("orders") == []


def test_messages_of_one_group_go_out_in_the_order_in_which_they_came() -> None:
    kafka, sent = Kafka(), list[tuple[str, int]]()
    send = kafka.engine.send

    def slow_or_not(topic: str, queue: Any, record: wire.Encoded, timeout_ms: int) -> Any:
        time.sleep(0 if int(record.value) % 3 else 0.002)
        sent.append((topic, int(record.value)))
        return send(topic, queue, record, timeout_ms)

    async def work() -> None:
        producers = Producers(kafka.link)
        given = [Message("orders", str(number), sharding_key="customer-4") for number in range(200)]
        plain = [producers.send("g", [each]) for each in given[:100]]
        await asyncio.gather(*plain, *(producers.send_half("g", each) for each in given[100:]))
        await asyncio.to_thread(producers._pool.stop, 10)

    kafka.engine.send = slow_or_not  # type: ignore[method-assign]
    asyncio.run(work())
    assert [number for _, number in sent] == list(range(200))


def test_a_half_message_that_has_not_begun_is_not_sent_when_its_client_has_gone() -> None:
    kafka = Kafka()

    async def work() -> bool:
        producers, end = Producers(kafka.link), threading.Event()
        for _ in range(THREADS):
            producers._pool.submit(end.wait, 10)
        sending = asyncio.create_task(producers.send_half("orders", Message("orders", b"body")))
        await asyncio.sleep(0.05)
        sending.cancel()
        await asyncio.wait([sending])
        end.set()
        await asyncio.to_thread(producers._pool.stop, 10)
        return sending.cancelled()

    assert asyncio.run(work())
    assert kafka.coordinator._unread == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (message(topic=""), "ILLEGAL_TOPIC"),
        (message(topic="a b"), "ILLEGAL_TOPIC"),
        (message(topic="forbidden"), "TOPIC_NOT_FOUND"),
        (message(message_id=""), "ILLEGAL_MESSAGE_ID"),
        (message(message_id="x" * 256), "ILLEGAL_MESSAGE_ID"),
        (message(body=b"x" * 2_000_000), "MESSAGE_BODY_TOO_LARGE"),
        (message(body=gzip.compress(b"x" * 2_000_000), body_encoding=d.GZIP), "MESSAGE_BODY_TOO_LARGE"),
        (message(body=b"plain", body_encoding=d.GZIP), "MESSAGE_CORRUPTED"),
        (message(body=gzip.compress(b"x" * 100)[:-9], body_encoding=d.GZIP), "MESSAGE_CORRUPTED"),
        (message(body=gzip.compress(b"x" * 600_000) * 2, body_encoding=d.GZIP), "MESSAGE_BODY_TOO_LARGE"),
        (message(body=gzip.compress(b"x") + b"garbage", body_encoding=d.GZIP), "MESSAGE_CORRUPTED"),
        (message(body=gzip.compress(b"x") * 101, body_encoding=d.GZIP), "MESSAGE_CORRUPTED"),
        (message(body=b"", body_encoding=d.GZIP), "MESSAGE_CORRUPTED"),
        (message(tag="a|b"), "ILLEGAL_MESSAGE_TAG"),
        (message(tag=" "), "ILLEGAL_MESSAGE_TAG"),
        (message(tag="a "), "ILLEGAL_MESSAGE_TAG"),
        (message(tag="a\0"), "ILLEGAL_MESSAGE_TAG"),
        (message(keys=["a", " "]), "ILLEGAL_MESSAGE_KEY"),
        (message(keys=["a\n"]), "ILLEGAL_MESSAGE_KEY"),
        (message(message_group=" "), "ILLEGAL_MESSAGE_GROUP"),
        (message(message_group="a\n"), "ILLEGAL_MESSAGE_GROUP"),
        (message(message_group="g" * 64), "ILLEGAL_MESSAGE_GROUP"),
        (message(kind=d.FIFO), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        (message(kind=d.DELAY), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        (message(kind=d.LITE, lite_topic="a"), "UNSUPPORTED"),
        (message(kind=d.PRIORITY, priority=1), "UNSUPPORTED"),
        (message(properties={"UNIQ_KEY": "a"}), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        (message(properties={"a": ""}), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        (message(properties={"\0": "a"}), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        (message(properties={"a": "x" * 16_384}), "MESSAGE_PROPERTIES_TOO_LARGE"),
        (message(tag="t" * 8_193, keys=["k" * 8_192]), "MESSAGE_PROPERTIES_TOO_LARGE"),
        (message(properties={str(n): "a" for n in range(129)}), "MESSAGE_PROPERTIES_TOO_LARGE"),
        (message(properties={"PGROUP": "x" * 256}), "BAD_REQUEST"),
        (message(kind=d.TRANSACTION, properties={"FIRST_HALF\0": "0-1"}), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        (message(kind=d.DELAY, delivery_timestamp={"seconds": 9_999_999_999}), "ILLEGAL_DELIVERY_TIME"),
        (message(kind=d.DELAY, delivery_timestamp={"seconds": 2**62}), "ILLEGAL_DELIVERY_TIME"),
        (message(kind=d.DELAY, delivery_timestamp={"seconds": 1_767_225}), "ILLEGAL_DELIVERY_TIME"),
    ],
)
def test_what_is_refused_has_rocketmqs_code(given: Any, expected: str) -> None:
    kafka = Kafka(max_message_size="1MiB", topics__allowed="orders*")
    response = kafka.send(given)
    assert (code(response), len(response.status.message) > 10) == (expected, True)
    assert kafka.coordinator.messages("orders") == []


@pytest.mark.parametrize(
    ("key", "value", "given"),
    [
        ("max_properties", 129, message(properties={str(n): "a" for n in range(129)})),
        ("max_property_size", "32KiB", message(properties={"a": "x" * 16_384})),
        ("max_message_group", "64B", message(message_group="g" * 64)),
    ],
)
def test_rocketmqs_limits_are_keys(key: str, value: object, given: Any) -> None:
    assert code(Kafka(**{f"gateway.{key}": value}).send(given)) == "OK"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], "BAD_REQUEST"),
        ([message(), message(topic="points")], "MESSAGE_CORRUPTED"),
        ([message(), message(kind=d.TRANSACTION)], "MESSAGE_CORRUPTED"),
        ([message(), message(kind=d.DELAY, delivery_timestamp={"seconds": 1})], "MESSAGE_CORRUPTED"),
    ],
)
def test_what_is_no_batch_is_refused(given: list[Any], expected: str) -> None:
    assert code(Kafka().send(*given)) == expected


def test_bodies_are_unpacked_up_to_the_limit_of_all_together() -> None:
    kafka, packed = Kafka(max_message_size="1MiB"), gzip.compress(b"x" * 1_000_000)
    tracemalloc.start()
    try:
        refused = kafka.send(*[message(body=packed, body_encoding=d.GZIP)] * 50)
        assert code(refused) == "MESSAGE_BODY_TOO_LARGE"
        assert tracemalloc.get_traced_memory()[1] < 10_000_000, "50 MB were unpacked"
    finally:
        tracemalloc.stop()


def test_all_members_of_a_gzip_body_are_unpacked() -> None:
    kafka, large = Kafka(), os.urandom(200_000)
    parts = [b"", b"first,", large, b"", b"second"]
    assert code(kafka.send(message(body=b"".join(map(gzip.compress, parts)), body_encoding=d.GZIP))) == "OK"
    (shown,) = kafka.coordinator.messages("orders")
    assert shown.body == b"".join(parts)


def test_a_request_has_a_bounded_number_of_messages() -> None:
    assert code(Kafka().send(*[message()] * 1_001)) == "PAYLOAD_TOO_LARGE"


@pytest.mark.parametrize(
    ("fault", "expected"),
    [(Fault.KAFKA_AWAY, "HA_NOT_AVAILABLE"), (Fault.UNACKNOWLEDGED, "MASTER_PERSISTENCE_TIMEOUT")],
)
def test_a_send_says_whether_it_may_have_been(fault: Fault, expected: str) -> None:
    kafka = Kafka()
    kafka.engine.fault = fault
    assert code(kafka.send(message())) == expected


def test_transactions_may_be_switched_off() -> None:
    assert code(Kafka(transaction__reject=True).send(message(kind=d.TRANSACTION))) == "FORBIDDEN"


@pytest.mark.parametrize(
    "handle",
    ["", "x", "a:b:c:", "a:b:0-1", ":g:0-1:", "a:g:0-1:x:y", "a" * 256 + ":g:0-1:", "a:" + "g" * 256 + ":0-1:"],
)
def test_what_is_no_transaction_id_is_refused(handle: str) -> None:
    request = s.EndTransactionRequest(transaction_id=handle, resolution=d.COMMIT)
    answer = Kafka().serve(lambda stub: stub.EndTransaction(request, metadata=CLIENT))
    assert code(answer) == "INVALID_TRANSACTION_ID"


def test_a_handle_reads_back_whatever_its_texts_are() -> None:
    handle = TransactionHandle(
        transaction_id="a:b,c %", group="Zürich: x", half_messages=(Position(0, 1), Position(3, 2)), check_id="0-1-0-1"
    )
    assert TransactionHandle.parse(str(handle)) == handle
    assert str(handle).endswith(":0-1,3-2:0-1-0-1")


def test_a_route_is_the_address_by_which_the_client_calls() -> None:
    kafka = Kafka(kafka__queues=3, topics__allowed="orders")

    def found(topic: str, **more: Any) -> Any:
        request = s.QueryRouteRequest(topic=d.Resource(name=topic), **more)
        return kafka.serve(lambda stub: stub.QueryRoute(request, metadata=CLIENT))

    queues = found("orders", endpoints=ENDPOINTS).message_queues
    assert [(queue.id, queue.broker.endpoints) for queue in queues] == [(id_, ENDPOINTS) for id_ in range(3)]
    assert set(queues[0].accept_message_types) == {d.NORMAL, d.FIFO, d.DELAY, d.TRANSACTION}
    assert code(found("points", endpoints=ENDPOINTS)) == "TOPIC_NOT_FOUND"
    assert code(found("a b", endpoints=ENDPOINTS)) == "ILLEGAL_TOPIC"
    assert code(found("orders")) == "ILLEGAL_ACCESS_POINT"


def test_settings_go_both_ways_and_another_kind_of_consumer_is_refused() -> None:
    async def work(stub: Any) -> list[Any]:
        stream = stub.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand(settings=d.Settings(client_type=d.PRODUCER, publishing={})))
        producer = await stream.read()
        await stream.write(s.TelemetryCommand(settings=d.Settings(client_type=d.PULL_CONSUMER, subscription={})))
        return [producer, await end_of(stream)]

    producer, (ended, reason) = Kafka(max_message_size="1MiB").serve(work)
    assert (code(producer), producer.settings.publishing.max_body_size) == ("OK", 1024 * 1024)
    assert producer.settings.backoff_policy.exponential_backoff.multiplier == 2
    assert (ended, reason.partition(":")[0]) == ("INVALID_ARGUMENT", "UNSUPPORTED"), "RocketMQ's clients wait for it"


@pytest.mark.parametrize("kind", [d.CLIENT_TYPE_UNSPECIFIED, d.PUSH_CONSUMER])
def test_settings_of_neither_a_producer_nor_a_consumer_are_refused(kind: int) -> None:
    async def work(stub: Any) -> Any:
        stream = stub.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand(settings=d.Settings(client_type=kind)))
        return await end_of(stream)

    ended, reason = Kafka().serve(work)
    assert (ended, reason.partition(":")[0]) == ("INVALID_ARGUMENT", "UNRECOGNIZED_CLIENT_TYPE")


def test_a_client_that_ends_has_its_stream_ended() -> None:
    async def work(stub: Any) -> Any:
        stream = stub.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand(settings=d.Settings(publishing={})))
        await stream.read()
        ended = await stub.NotifyClientTermination(s.NotifyClientTerminationRequest(), metadata=CLIENT)
        return code(ended), code(await stub.Heartbeat(s.HeartbeatRequest(), metadata=CLIENT)), await stream.read()

    assert Kafka().serve(work) == ("OK", "OK", grpc.aio.EOF)


@pytest.mark.parametrize("name", ["UpdateOffset", "GetOffset", "QueryOffset", "SyncLiteSubscription", "PullMessage"])
def test_calls_of_other_consumers_are_refused(name: str) -> None:
    async def work(stub: Any) -> Any:
        call = getattr(stub, name)(getattr(s, f"{name}Request")(), metadata=CLIENT)
        return await call.read() if hasattr(call, "read") else await call

    answer = Kafka().serve(work)
    assert (code(answer), "a push consumer or a simple consumer" in answer.status.message) == ("UNSUPPORTED", True)


def _command(size: int = 0) -> Any:
    return s.TelemetryCommand(status=d.Status(code=d.OK, message="x" * size))


@awaited
async def test_what_a_client_does_not_read_is_bounded_by_number_and_bytes() -> None:
    session = Session(Caller("a", None))
    assert [session.ask(_command()) for _ in range(MOST_UNSENT + 1)] == [True] * MOST_UNSENT + [False]
    large = Session(Caller("b", None))
    assert [large.ask(_command(MOST_UNSENT_BYTES)) for _ in range(2)] == [True, False]
    assert not large.ask(_command())


@awaited
async def test_what_is_read_makes_room() -> None:
    session = Session(Caller("a", None))
    for _ in range(2):
        assert session.ask(_command(MOST_UNSENT_BYTES))
        assert (await anext(session.commands())).HasField("status")


def test_the_stream_of_one_that_asks_and_does_not_read_ends() -> None:
    async def work() -> list[Any]:
        session = Session(Caller("a", None))
        for _ in range(MOST_UNSENT + 1):
            session.tell(_command())
        return [command async for command in session.commands()]

    assert asyncio.run(asyncio.wait_for(work(), 10)) == []


def _settled(answer: Any, **publishing: Any) -> Any:
    async def work(stub: Any) -> Any:
        stream = stub.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand(settings=d.Settings(client_type=d.PRODUCER, publishing=publishing)))
        return await answer(stream)

    return Kafka().serve(work)


def test_settings_are_not_echoed() -> None:
    answer = _settled(lambda stream: stream.read(), topics=[d.Resource(name=f"t{number}") for number in range(5_000)])
    assert (code(answer), answer.settings.client_type, len(answer.settings.publishing.topics)) == ("OK", d.PRODUCER, 0)
    assert answer.ByteSize() < 200


@pytest.mark.parametrize("name", ["a b", "", "x" * 300])
def test_a_topic_without_a_legal_name_is_refused(name: str) -> None:
    ended, reason = _settled(end_of, topics=[d.Resource(name=name)])
    assert (ended, reason.partition(":")[0]) == ("INVALID_ARGUMENT", "ILLEGAL_TOPIC")


def test_a_client_is_asked_for_a_bounded_number_of_topics(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> list[str]:
        given = [d.Resource(name=f"t{number}") for number in range(MOST_TOPICS + 1)]
        return Session(Caller("a", None)).set_topics(given)

    assert len(asyncio.run(work())) == MOST_TOPICS
    assert "only the first 100" in caplog.text
