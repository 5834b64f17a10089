"""Many producers in one process, against a real broker: what they share, and when it ends."""

from __future__ import annotations

import gc
import logging
import threading
import time
from pathlib import Path

import pytest
from tests.support.namespace import Listener, Namespace, check, failed, published
from tests.support.polling import WAIT_S, wait_for

from commitlake.clients.producer import FailedSendError, Message, TransactionMQProducer
from commitlake.clients.producer.link import ENGINES
from commitlake.kafka.embedded import EmbeddedBroker


@pytest.fixture(params=ENGINES)
def kafka(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Namespace:
    """Empty topics with published settings, for both engines."""
    namespace = published(broker, request.param)
    wait_for(lambda: not ours(), why=ours)  # those of the test before
    return namespace


def ours() -> list[str]:
    """Names of threads of producers."""
    names = [each.name for each in threading.enumerate()]
    return [name for name in names if name.startswith(("commitlake", "kafka-")) and name != "commitlake-broker"]


def test_100_producers_have_few_threads_and_each_answers_its_checks(kafka: Namespace) -> None:
    listeners = {f"group-{number}": Listener() for number in range(100)}
    producers: list[TransactionMQProducer] = [kafka.producer(each, group) for group, each in listeners.items()]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.send(Message("orders", b"body"), timeout=f"{WAIT_S}s")
    asked = ("group-0", "group-50", "group-99")
    for group in asked:
        kafka.ask(check(group=group))
    wait_for(lambda: all(listeners[group].checked for group in asked))
    assert len(ours()) <= 60
    for producer in producers:
        producer.shutdown()
    wait_for(lambda: not ours(), why=ours)


def test_a_producer_that_shuts_down_takes_the_connection_from_no_other(kafka: Namespace) -> None:
    first, second, last = (kafka.producer(Listener(), group) for group in ("a", "a", "b"))
    with first:
        with second, last:
            second.send(Message("orders", b"body"))
        with pytest.raises(FailedSendError, match="not running"):
            second.send(Message("orders", b"body"))
        first.send(Message("orders", b"body"))
        with second:
            second.send(Message("orders", b"body"))
    wait_for(lambda: not ours(), why=ours)


def test_a_connection_that_hangs_holds_up_the_checks_of_no_other(kafka: Namespace) -> None:
    """In the resolver of names, for example, or in an application's provider of tokens."""
    hung, other = Listener(), Listener()
    with kafka.producer(hung, "a") as first, kafka.producer(other, "b", start_timeout=11):
        kafka.ask(check(group="a"), check(group="b"))
        wait_for(lambda: hung.checked and other.checked)
        is_over, hangs = threading.Event(), threading.Event()

        async def hang() -> None:
            hangs.set()
            is_over.wait(WAIT_S)

        first._checks._consumer._client._net.call_soon_threadsafe(hang)
        assert hangs.wait(WAIT_S)
        try:
            kafka.ask(check("n", "b"))
            wait_for(lambda: len(other.checked) > 1, 20)
        finally:
            is_over.set()


def test_producers_that_nobody_holds_end(kafka: Namespace) -> None:
    for number in range(3):
        producer = kafka.producer(Listener(), f"group-{number}")
        producer.start()
        producer.send_message_in_transaction(Message("orders", b"body"))
    wait_for(lambda: len(kafka.ops()) == 3)
    del producer
    gc.collect()
    wait_for(lambda: not ours(), why=ours)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_outage_is_a_few_lines_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture, engine: str) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        kafka = published(broker, engine)
        with kafka.producer(Listener(), send_msg_timeout=1) as producer:
            wait_for(lambda: not failed(producer.send, Message("orders", b"body")))
            with caplog.at_level(logging.INFO):
                caplog.clear()
                broker.stop()
                until = time.monotonic() + 8
                while time.monotonic() < until:
                    failed(producer.send, Message("orders", b"body"))
                lines = [f"{each.threadName} {each.name} {each.getMessage()}" for each in caplog.records]
                assert len(lines) <= 5, "\n".join(lines)
