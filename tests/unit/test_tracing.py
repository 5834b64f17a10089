"""`commitlake.trace`: the trace goes from a send to the consumer and to checks; spans go to a collector in memory."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context, propagate
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode
from tests.support.collector import Collector, attributes, parent, traceparent
from tests.support.memory_kafka import Kafka, producer
from tests.support.polling import awaited
from tests.support.topic_table import message as row
from tests.support.topic_table import write

import commitlake
from commitlake import LocalTransactionState, Message, MessageExt, RefusedSendError, TransactionListener
from commitlake.clients import tracing
from commitlake.clients.consumer.runner import traced
from commitlake.clients.producer import AsyncTransactionMQProducer
from commitlake.clients.producer.check_reader import Calls
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.testing import Fault, InMemoryCoordinator

ROOT = Path(__file__).parents[2]
COMMIT, UNKNOW = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.UNKNOW
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""The example of W3C Trace Context."""


class Shop(TransactionListener):
    """Does not know at first, and commits when it is asked."""

    def __init__(self, first: LocalTransactionState = COMMIT) -> None:
        self.first = first

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        if arg == "broken":
            raise ValueError("no such table")
        return self.first

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return COMMIT


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Where the spans of the test are; tracing is off again after it."""
    monkeypatch.setattr(tracing._SWITCH, "on", None)
    made = Collector()
    commitlake.trace(made.provider)
    yield made


# what a send carries


def test_a_send_is_a_producer_span_below_the_current_one_and_its_message_carries_it(collector: Collector) -> None:
    lake = InMemoryCoordinator()
    with lake.producer("shop") as producer, collector.tracer.start_as_current_span("request"):
        result = producer.send(Message("orders", "a book", properties={"color": "red"}))
    span = collector.one("send orders")
    assert (span.kind, parent(span)) == (SpanKind.PRODUCER, traceparent(collector.one("request")))
    assert lake.messages("orders")[0].properties == {"color": "red", "traceparent": traceparent(span)}
    assert dict(span.attributes or {}) == {
        "messaging.system": "commitlake",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": result.msg_id,
    }


def test_all_members_of_a_batch_carry_its_span(collector: Collector) -> None:
    lake = InMemoryCoordinator()
    with lake.producer("shop") as producer:
        producer.send([Message("orders", "1"), Message("orders", "2")])
    span = collector.one("send orders")
    assert [each.properties for each in lake.messages("orders")] == [{"traceparent": traceparent(span)}] * 2
    assert attributes(span, "messaging.batch.message_count") == [2]


def test_a_list_that_was_split_before_its_send_fits_with_the_trace(collector: Collector) -> None:
    lake = InMemoryCoordinator({"max_message_size": 4_000})
    with lake.producer("shop") as producer:
        for part in producer.split([Message("orders", "x" * 10) for _ in range(200)]):
            producer.send(part)
    assert len(lake.messages("orders")) == 200
    assert {span.status.status_code for span in collector.spans} == {StatusCode.UNSET}


def test_a_delayed_message_carries_its_trace(collector: Collector) -> None:
    lake = InMemoryCoordinator()
    with lake.producer("shop") as producer:
        producer.send(Message("orders", "later", delay_seconds=60))
    lake.advance("2m")
    assert lake.messages("orders")[0].properties == {"traceparent": traceparent(collector.one("send orders"))}


def test_each_half_message_of_a_transaction_carries_its_own_span(collector: Collector) -> None:
    lake = InMemoryCoordinator()
    request = collector.tracer.start_as_current_span("request")
    with lake.producer("shop", Shop()) as producer, request, producer.begin_transaction() as transaction:
        transaction.send(Message("orders", "a book"))
        transaction.send(Message("points", "+2"))
    found = [lake.messages(topic)[0].properties["traceparent"] for topic in ("orders", "points")]
    assert found == [traceparent(collector.one("send orders")), traceparent(collector.one("send points"))]
    assert [parent(span) for span in collector.spans[:2]] == [traceparent(collector.one("request"))] * 2


@pytest.mark.parametrize("topic", ["normal", "batch", "transaction"])
def test_a_trace_that_the_application_set_is_kept(collector: Collector, topic: str) -> None:
    own = {"traceparent": TRACE, "tracestate": "a=1"}
    message = Message(topic, "", properties=own)
    lake = InMemoryCoordinator()
    with lake.producer("shop", Shop()) as producer:
        if topic == "transaction":
            producer.send_message_in_transaction(message)
        else:
            producer.send([message] if topic == "batch" else message)
    assert (lake.messages(topic)[0].properties, message.properties) == (own, own)


def test_a_message_that_is_sent_again_is_not_changed_and_gets_a_trace_of_its_own(collector: Collector) -> None:
    message, lake = Message("orders", ""), InMemoryCoordinator()
    with lake.producer("shop") as producer:
        producer.send(message)
        producer.send(message)
    assert message.properties == {}
    first, second = (each.properties["traceparent"] for each in lake.messages("orders"))
    assert first != second


def test_the_state_of_a_trace_goes_along_and_without_a_provider_the_current_trace_does(collector: Collector) -> None:
    commitlake.trace(NoOpTracerProvider())
    token = context.attach(propagate.extract({"traceparent": TRACE, "tracestate": "a=1"}))
    lake = InMemoryCoordinator()
    with lake.producer("shop") as producer:
        producer.send(Message("orders", ""))
    context.detach(token)
    assert lake.messages("orders")[0].properties == {"traceparent": TRACE, "tracestate": "a=1"}
    assert collector.spans == []


def test_the_state_of_another_trace_is_not_put_beside_the_one_that_the_application_set(collector: Collector) -> None:
    other = propagate.extract({"traceparent": TRACE.replace("0af", "1af"), "tracestate": "a=1"})
    token = context.attach(other)
    lake = InMemoryCoordinator()
    with lake.producer("shop") as producer:
        producer.send(Message("orders", "", properties={"traceparent": TRACE}))
        producer.send(Message("points", ""))
    context.detach(token)
    assert lake.messages("orders")[0].properties == {"traceparent": TRACE}
    assert lake.messages("points")[0].properties["tracestate"] == "a=1"
    assert len(collector.spans) == 2


def test_without_a_provider_and_without_a_trace_nothing_is_added(collector: Collector) -> None:
    commitlake.trace(NoOpTracerProvider())
    lake = InMemoryCoordinator()
    with lake.producer("shop", Shop(UNKNOW)) as producer:
        producer.send(Message("orders", ""))
        producer.send_message_in_transaction(Message("orders", ""))
        lake.advance("10m")
    assert [each.properties for each in lake.messages("orders")] == [{}, {}]


@pytest.mark.parametrize("when", ["on_start", "on_end"])
def test_what_a_span_processor_raises_changes_neither_a_send_nor_a_decision(
    collector: Collector, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SpanProcessor):
        pass

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no collector")

    setattr(Broken, when, fails)
    collector.provider.add_span_processor(Broken())
    lake = InMemoryCoordinator({"transaction.timeout": "10s"})
    with lake.producer("shop", Shop(UNKNOW)) as producer:
        producer.send(Message("orders", "plain"))
        producer.send_message_in_transaction(Message("orders", "asked"))
        assert producer.send_message_in_transaction(Message("orders", "x"), "broken").local_transaction_state == UNKNOW
        lake.advance("10m")
    assert sorted(bytes(each.body) for each in lake.messages("orders")) == [b"asked", b"plain", b"x"]
    assert any("tracing failed, and what was traced goes on" in line for line in caplog.messages)


def test_a_send_that_fails_is_a_span_with_an_error(collector: Collector) -> None:
    with InMemoryCoordinator().producer("shop", fault=Fault.KAFKA_AWAY) as producer:
        with pytest.raises(commitlake.FailedSendError):
            producer.send(Message("orders", ""))
        with pytest.raises(RefusedSendError):
            producer.send([])
    failed, refused = collector.spans
    assert failed.status.status_code is refused.status.status_code is StatusCode.ERROR
    assert [attributes(span, "error.type") for span in (failed, refused)] == [["FailedSendError"], ["RefusedSendError"]]


# local transactions and checks


def test_a_local_transaction_is_a_span_in_the_trace_of_its_half_message(collector: Collector) -> None:
    with InMemoryCoordinator().producer("shop", Shop()) as producer:
        result = producer.send_message_in_transaction(Message("orders", ""))
    sent, executed = collector.one("send orders"), collector.one("execute orders")
    assert parent(executed) == traceparent(sent)
    told = attributes(executed, "commitlake.transaction_id", "commitlake.decision", "messaging.message.id")
    assert told == [result.transaction_id, "COMMIT", result.msg_id]
    assert attributes(sent, "commitlake.transaction_id") == [result.transaction_id]


def test_a_local_transaction_that_raises_is_a_span_with_an_error(collector: Collector) -> None:
    with InMemoryCoordinator().producer("shop", Shop()) as producer:
        producer.send_message_in_transaction(Message("orders", ""), "broken")
    span = collector.one("execute orders")
    assert (span.status.status_code, attributes(span, "error.type")) == (StatusCode.ERROR, ["ValueError"])


def test_an_answer_of_another_instance_is_a_span_in_the_trace_of_the_send(collector: Collector) -> None:
    lake = InMemoryCoordinator()
    with lake.producer("shop", Shop(UNKNOW)) as producer:
        producer.send_message_in_transaction(Message("orders", ""))
    with lake.producer("shop", Shop()):
        lake.advance("10m")
    sent, checked = collector.one("send orders"), collector.one("check orders")
    assert parent(checked) == traceparent(sent) == lake.messages("orders")[0].properties["traceparent"]
    assert attributes(checked, "commitlake.decision", "commitlake.check_id") == ["COMMIT", "0-0-0-1"]


# consumers


def consume(place: Path, handler: Any, **more: Any) -> None:
    messages = commitlake.consume({"warehouse": str(place)}, "orders", group="points", follow=False, poll="50ms")
    messages.run(handler, **more)


def test_a_handler_runs_in_a_consumer_span_in_the_trace_of_its_message(collector: Collector, tmp_path: Path) -> None:
    write(tmp_path, "orders", [row(1, properties={"traceparent": TRACE}), row(2)])

    def handle(message: Any) -> None:
        with collector.tracer.start_as_current_span(f"book {message.message_id}"):
            pass

    consume(tmp_path, handle)
    first, second = (span for span in collector.spans if span.name == "process orders")
    assert (first.kind, parent(first), parent(second)) == (SpanKind.CONSUMER, TRACE, None)
    assert parent(collector.one("book m1")) == traceparent(first)
    assert dict(first.attributes or {}) == {
        "messaging.system": "commitlake",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "points",
        "messaging.message.id": "m1",
        "commitlake.attempt": 1,
    }


def test_a_handler_that_fails_is_a_span_with_an_error_and_its_message_comes_again(
    collector: Collector, tmp_path: Path
) -> None:
    write(tmp_path, "orders", [row(1, properties={"traceparent": TRACE})])
    attempts: list[int] = []

    def handle(message: Any) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise ValueError("no such customer")

    consume(tmp_path, handle, pauses=["50ms"])
    time.sleep(0.1)  # a start before the pause is over ends without the message
    consume(tmp_path, handle, pauses=["50ms"])
    failed, done = collector.spans
    assert attempts == [1, 2]
    assert (failed.status.status_code, done.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert [parent(failed), parent(done)] == [TRACE, TRACE]


@pytest.mark.parametrize("wrong", ["", "none", TRACE.replace("b7ad6b7169203331", "0" * 16)])
def test_a_trace_that_is_none_begins_one(collector: Collector, tmp_path: Path, wrong: str) -> None:
    write(tmp_path, "orders", [row(1, properties={"traceparent": wrong})])
    consume(tmp_path, lambda _: None)
    assert parent(collector.one("process orders")) is None


# asyncio


class AsyncShop:
    """Its methods open spans where they await."""

    def __init__(self, collector: Collector) -> None:
        self.tracer = collector.tracer

    async def execute_local_transaction(self, message: Message, arg: object) -> Any:
        with self.tracer.start_as_current_span(f"book {message.keys}"):
            await asyncio.sleep(0.01)
        return COMMIT

    async def check_local_transaction(self, message: Message) -> Any:
        with self.tracer.start_as_current_span("look up"):
            await asyncio.sleep(0.01)
        raise ValueError("no such table")


@awaited
async def test_a_coroutine_that_answers_a_check_runs_in_the_trace_of_the_send(collector: Collector) -> None:
    kafka = Kafka()
    check = wire.CheckRecord(
        transaction_id="t", producer_group="group", msg_id="m", topic="orders", body=b"", half=Position(0, 0),
        half_messages=(Position(0, 0),), check_times=1, check_id="0-0-0-1", properties={"traceparent": TRACE},
    )  # fmt: skip
    async with producer(kafka, AsyncShop(collector), threads=2) as sender:
        await sender._producer._answer(check, Calls(1), lambda _: None)
    span = collector.one("check orders")
    assert (parent(span), parent(collector.one("look up"))) == (TRACE, traceparent(span))
    assert (span.status.status_code, attributes(span, "error.type")) == (StatusCode.ERROR, ["ValueError"])
    assert b"UNKNOWN" in kafka.sent("op")[0]


@awaited
async def test_sends_of_asyncio_carry_the_span_of_the_task_that_awaits_them(collector: Collector) -> None:
    kafka = Kafka()

    async def request(sender: AsyncTransactionMQProducer, name: str) -> None:
        with collector.tracer.start_as_current_span(f"request {name}"):
            await sender.send_message_in_transaction(Message(name, "", keys=name))

    async with producer(kafka, AsyncShop(collector), threads=2) as sender:
        await asyncio.gather(*(request(sender, name) for name in ("a", "b", "c")))
    for name in ("a", "b", "c"):
        sent, executed = collector.one(f"send {name}"), collector.one(f"execute {name}")
        assert parent(sent) == traceparent(collector.one(f"request {name}"))
        assert parent(executed) == traceparent(sent)
        assert parent(collector.one(f"book {name}")) == traceparent(executed)
        (half,) = [
            dict(each.headers) for each in kafka.encoded if dict(each.headers).get("REAL_TOPIC") == name.encode()
        ]
        assert half["traceparent"] == traceparent(sent).encode()


# off, and without OpenTelemetry

OFF = """
import sys
import commitlake
from commitlake.testing import InMemoryCoordinator

lake = InMemoryCoordinator()
with lake.producer("shop") as producer:
    producer.send(commitlake.Message("orders", ""))
print(dict(lake.messages("orders")[0].properties), "opentelemetry" in sys.modules)
sys.modules["opentelemetry"] = None
try:
    commitlake.trace()
except commitlake.SetupError as error:
    print(error)
"""


def test_nothing_is_imported_or_added_before_it_is_asked_for_and_the_extra_that_is_missing_is_named() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
    done = subprocess.run([sys.executable, "-c", OFF], env=environment, capture_output=True, text=True, check=True)
    off, missing = done.stdout.splitlines()
    assert off == "{} False"
    assert missing.startswith("commitlake.trace needs the module opentelemetry")
    assert missing.endswith("install it with pip install '/path/to/clone[opentelemetry]'")


def test_a_handler_is_called_itself_where_nobody_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing._SWITCH, "on", None)
    assert traced(print, "points") is print


PAGE = (ROOT / "docs" / "how-to" / "trace.md").read_text()
SNIPPETS = re.findall(r"```(?:python|text)\n(.*?)```", PAGE, re.DOTALL)


def test_the_program_of_the_document_prints_what_stands_there() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
    command = [sys.executable, "-c", SNIPPETS[0]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == SNIPPETS[1]


def test_the_loop_of_the_document_goes_on_with_the_trace_of_each_message(collector: Collector, tmp_path: Path) -> None:
    write(tmp_path, "orders", [row(1, properties={"traceparent": TRACE})])
    messages = commitlake.consume({"warehouse": str(tmp_path)}, "orders", group="points", follow=False)
    booked: list[Any] = []
    with messages:
        exec(SNIPPETS[2], {"messages": messages, "tracer": collector.tracer, "book": booked.append})
    assert [message.message_id for message in booked] == ["m1"]
    assert parent(collector.one("book")) == TRACE
