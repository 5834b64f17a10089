"""One bad thing, and the producer goes on: errors of Kafka, checks that nobody expects, hung calls, outages, forks."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from pyspark.sql import SparkSession
from tests.support.brokers import paused
from tests.support.lake import Lake
from tests.support.namespace import COMMIT, ROLLBACK, Listener, Namespace, check, failed, published
from tests.support.polling import WAIT_S, patience, wait_for

import commitlake
from commitlake.clients.producer import (
    FailedSendError,
    Message,
    MessageExt,
    ProducerError,
    RefusedSendError,
    SendResult,
    TransactionMQProducer,
    UncertainSendError,
)
from commitlake.clients.producer.link import ENGINES
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.kafka.topics import publish_settings
from commitlake.protocol import wire
from commitlake.protocol.recall_handle import decode_handle
from commitlake.testing import codecs

QUICK = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}


@pytest.fixture(params=ENGINES)
def kafka(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Namespace:
    """Empty topics with published settings, for both engines."""
    return published(broker, request.param)


def limit(kafka: Namespace, topic: str, size: int) -> None:
    """Sets the largest record that Kafka takes."""
    admin = KafkaAdminClient(bootstrap_servers=kafka.servers)
    name = kafka.prefix + topic
    admin.alter_configs({ConfigResource(ConfigResourceType.TOPIC, name, {"max.message.bytes": str(size)})})
    admin.close()


# no error is for ever


def test_after_a_record_that_kafka_refused_the_next_one_is_sent_and_checks_are_answered(kafka: Namespace) -> None:
    limit(kafka, "messages", 1_000)
    with kafka.producer(Listener()) as producer:
        with pytest.raises(ProducerError):
            producer.send(Message("orders", os.urandom(50_000)))
        assert producer.send(Message("orders", b"small")).queue_offset >= 0
        producer.send_message_in_transaction(Message("orders", b"half"))
        assert [op.decision for op in kafka.wait_for_ops(1)] == ["COMMIT"]
        kafka.ask(check())
        wait_for(lambda: kafka.committed() == 1)
    assert [op.decision for op in kafka.answers()] == ["COMMIT"]
    assert [record.value for record in kafka.read("messages")] == [b"small"]


# no check is poison


@pytest.mark.parametrize(
    "header",
    [
        ("colour", b""),
        ("", b"red"),
        ("colour", b"\xff\xfe"),
        ("CHECK_IMMUNITY_TIME_IN_SECONDS", b"soon"),
        ("REAL_QID", b"-7"),
        ("BORN_TIMESTAMP", b"yesterday"),
        ("KEYS", b"\xc3"),
        ("DELAY", b"many"),
    ],
    ids=lambda header: f"{header[0]}={header[1]!r}",
)
def test_a_check_with_any_header_reaches_the_listener(kafka: Namespace, header: tuple[str, bytes]) -> None:
    listener = Listener()
    key, value, headers = codecs.encode_check(check(body=b"\xff\x00 is no text"))
    client = KafkaProducer(bootstrap_servers=kafka.servers)
    client.send(f"{kafka.prefix}check", key=key, value=value, headers=[*headers, header], partition=0)
    client.close()
    with kafka.producer(listener):
        wait_for(lambda: kafka.committed() == 1)
    assert [message.body for message in listener.checked] == [b"\xff\x00 is no text"]
    assert [op.decision for op in kafka.answers()] == ["COMMIT"]


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError


ERRORS = [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt(), ValueError("\udcff"), SilentError()]


@pytest.mark.parametrize("error", ERRORS)
def test_whatever_a_listener_raises_in_a_check_is_answered_unknown(kafka: Namespace, error: BaseException) -> None:
    def raises(_: MessageExt) -> Any:
        raise error

    kafka.ask(check())
    with kafka.producer(Listener(check=raises)):
        wait_for(lambda: kafka.committed() == 1)
    (op,) = kafka.answers()
    assert (op.decision, op.remark.partition(":")[0]) == ("UNKNOWN", type(error).__name__)


def test_a_check_for_which_the_listener_has_no_method_is_answered_unknown(kafka: Namespace) -> None:
    kafka.ask(check())
    listener: Any = SimpleNamespace(execute_local_transaction=lambda message, arg: None)
    with kafka.producer(listener):
        wait_for(lambda: kafka.committed() == 1)
    (op,) = kafka.answers()
    assert (op.decision, op.remark.partition(":")[0]) == ("UNKNOWN", "AttributeError")


@pytest.mark.short
@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
def test_what_ends_a_local_transaction_goes_on_up_and_sends_unknown(kafka: Namespace, error: BaseException) -> None:
    def raises(_: Message) -> Any:
        raise error

    with kafka.producer(Listener(execute=raises)) as producer:
        with pytest.raises(type(error)):
            producer.send_message_in_transaction(Message("orders", b""))
        assert [op.decision for op in kafka.wait_for_ops(1)] == ["UNKNOWN"]


# a hung instance lets go


@pytest.mark.timeout(180)
def test_an_instance_whose_calls_hang_leaves_its_checks_to_another(
    kafka: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()
    hung, healthy = Listener(check=lambda _: go.wait(WAIT_S) and COMMIT), Listener()
    every = {f"m{at}" for at in range(40)}
    with kafka.producer(hung, check_timeout=2, options=QUICK):
        for partition in (0, 1):
            kafka.ask(*(check(f"m{at}") for at in range(partition, 40, 2)), partition=partition)
        wait_for(lambda: hung.checked)
        with kafka.producer(healthy, options=QUICK):
            wait_for(lambda: {op.transaction_id for op in kafka.answers()} == every, 60)
            go.set()
        wait_for(lambda: "this instance leaves the group" in caplog.text)
    assert {message.msg_id for message in healthy.checked} == every


class BusyMachine(Executor):
    """Its threads begin a call late."""

    def submit(self, call: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future = Future[Any]()

        def begin() -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(call(*given, **named))

        threading.Timer(2, begin).start()
        return future


@pytest.mark.parametrize("executor", [None, BusyMachine()], ids=["its pool", "a busy machine"])
def test_one_call_that_hangs_holds_up_no_other(kafka: Namespace, executor: Executor | None) -> None:
    go = threading.Event()
    listener = Listener(check=lambda message: COMMIT if message.msg_id != "slow" or go.wait(WAIT_S) else ROLLBACK)
    with kafka.producer(listener, check_timeout=0.5, executor=executor):
        kafka.ask(check("slow"))
        wait_for(lambda: listener.checked)
        time.sleep(2)
        kafka.ask(check("quick"))
        wait_for(lambda: [op.transaction_id for op in kafka.answers()] == ["quick"], 30)
        go.set()


# an uncertain send stays uncertain


def test_what_was_not_sent_in_an_outage_is_not_sent_after_it(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        kafka = published(broker)
        with kafka.producer(Listener(), send_msg_timeout=1) as producer:
            connect(producer.send_message_in_transaction)
            connect(producer.send)
            broker.stop()
            unsent = [failed(producer.send, Message("orders", f"{number}")) for number in range(4)]
            broker.start()
            wait_for(lambda: not failed(producer.send, Message("orders", b"after")))
            time.sleep(3)  # longer than the client keeps a record
            bodies = [record.value for record in [*kafka.read("half"), *kafka.read("messages")]]
    assert {type(error) for error in unsent} <= {FailedSendError, UncertainSendError}
    assert type(unsent[-1]) is FailedSendError
    gone = {f"{number}".encode() for number, error in enumerate(unsent) if isinstance(error, FailedSendError)}
    assert gone.isdisjoint(bodies)


def test_a_send_that_joins_an_older_try_to_connect_has_all_its_time(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        kafka = published(broker)
        with kafka.producer(Listener(), send_msg_timeout=2) as producer, ThreadPoolExecutor(1) as beside:
            connect(producer.send)
            broker.stop()
            for _ in range(3):  # the last ones wait for a new connection, which is tried for 2 s
                assert failed(producer.send, Message("orders", b"unsent"))
                producer.send_msg_timeout = 0.3
            producer.send_msg_timeout = 60
            sending = beside.submit(producer.send, Message("orders", b"after"))
            time.sleep(2)
            broker.start()
            sending.result(60)
            assert [record.value for record in kafka.read("messages")][-1] == b"after"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("send", ["send", "send_message_in_transaction"])
def test_tries_while_a_broker_hangs_are_a_record_or_two_more(tmp_path: Path, send: str, engine: str) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        kafka = published(broker)
        with kafka.producer(Listener(), send_msg_timeout=1, engine=engine) as producer:
            known = getattr(producer, send)
            connect(known)
            message, errors, took = Message("orders", b"one", sharding_key="one queue"), [], []
            with paused(broker):
                for _ in range(8):
                    begun = time.monotonic()
                    with pytest.raises(ProducerError) as error:
                        known(message)
                    errors.append(error.type)
                    took.append(time.monotonic() - begun)
            wait_for(lambda: not failed(known, message))
            time.sleep(3)
            found = [*kafka.read("half"), *kafka.read("messages")]
    assert max(took) < 3 * patience()
    assert set(errors) <= {FailedSendError, UncertainSendError}
    copies = [record for record in found if record.value == b"one"]
    assert 1 <= len(copies) <= min(3, 1 + errors.count(UncertainSendError))
    assert (
        engine == "confluent" or errors.count(FailedSendError) >= 5
    )  # after the first time-out there is no connection
    assert {dict(record.headers)["UNIQ_KEY"] for record in copies} == {str(message.message_id).encode()}


def connect(send: Callable[[Message], SendResult]) -> None:
    """Sends until one is acknowledged: on a busy machine the first takes longer than the second a test allows."""
    wait_for(lambda: not failed(send, Message("points", b"before", sharding_key="one queue")))


def test_a_send_waits_longer_when_told_to(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        kafka = published(broker)
        with kafka.producer(send_msg_timeout=1) as producer:
            producer.send(Message("orders", b"before"), timeout=60)
            with paused(broker, seconds=4):
                assert producer.send(Message("orders", b"meanwhile"), timeout=60).queue_offset >= 0
            with paused(broker):
                for send in (producer.send, producer.begin_transaction().send):  # the second to a topic not met yet
                    begun = time.monotonic()
                    with pytest.raises(ProducerError):
                        send(Message("orders", b"not so long"))
                    assert time.monotonic() - begun < 3 * patience()


def test_a_record_that_kafka_refuses_was_not_sent_and_those_beside_it_are_not_blamed(kafka: Namespace) -> None:
    limit(kafka, "messages", 1_000)
    with kafka.producer(Listener()) as producer, ThreadPoolExecutor(8) as pool:
        large = [pool.submit(failed, producer.send, Message("orders", os.urandom(50_000))) for _ in range(4)]
        small = [pool.submit(failed, producer.send, Message("orders", f"{number}")) for number in range(200)]
        refused = {type(each.result()) for each in large}
        blamed = [(number, each.result()) for number, each in enumerate(small) if each.result()]
    assert RefusedSendError in refused <= {RefusedSendError, UncertainSendError, FailedSendError}
    assert [each for each in blamed if isinstance(each[1], RefusedSendError)] == []
    there = {record.value for record in kafka.read("messages")}
    assert there.isdisjoint(f"{number}".encode() for number, error in blamed if isinstance(error, FailedSendError))
    with (
        kafka.producer() as producer,
        pytest.raises(RefusedSendError, match=r"nothing was sent.*(MessageSizeTooLarge|MSG_SIZE_TOO_LARGE)"),
    ):
        producer.send(Message("orders", os.urandom(50_000)))


def test_a_refused_record_that_no_thread_can_send_by_itself_fails_and_the_next_one_is_sent(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kafka, start = published(broker), threading.Thread.start
    limit(kafka, "messages", 1_000)

    def refused(thread: threading.Thread) -> None:
        if thread.name == "commitlake-librdkafka":
            raise RuntimeError("can't start new thread")
        start(thread)

    with kafka.producer(engine="confluent") as producer:
        with monkeypatch.context() as patch, pytest.raises(FailedSendError, match=r"nothing was sent.*can't start new"):
            patch.setattr(threading.Thread, "start", refused)
            producer.send(Message("orders", os.urandom(50_000)))
        assert producer.send(Message("orders", b"small")).queue_offset >= 0
    assert "can't start new thread" in caplog.text


def test_a_client_that_was_replaced_leaves_nothing_after_a_shutdown(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        kafka = published(broker)
        limit(kafka, "messages", 1_000)
        before, outcomes = set(threading.enumerate()), list[BaseException | None]()
        with kafka.producer(engine="confluent") as producer:
            producer.send(Message("orders", b"small"))
            large = wire.Encoded(None, os.urandom(50_000), [])
            with paused(broker, seconds=4):
                producer._link.send_soon("messages", 0, large, 60_000, outcomes.append)
                producer._link.send_soon("messages", 0, large, 90_000, outcomes.append)
                producer.shutdown("1ms")
                assert [type(each) for each in outcomes] == [UncertainSendError, UncertainSendError]
        time.sleep(2)  # the refusals come now, to nobody
        assert len(outcomes) == 2
        wait_for(lambda: set(threading.enumerate()) <= before)


@pytest.mark.timeout(600)
def test_what_is_sent_again_through_an_outage_is_one_message(spark: SparkSession, tmp_path: Path) -> None:
    dedup = {"topics.dedup": {"orders": {"by": "message_id", "window": "1d"}}}
    with EmbeddedBroker(tmp_path) as broker, Lake(broker.bootstrap_servers, "outage.", tmp_path, **dedup) as lake:
        publish_settings(lake.config, ())
        where: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "topic_prefix": "outage."}
        plain, delayed = Message("orders", b"plain"), Message("orders", b"delayed", delay_seconds=3_600)
        members = [Message("orders", b"one"), Message("orders", b"two", message_id="two")]
        in_transaction = Message("orders", b"half")
        with TransactionMQProducer("group", Listener(), **where, send_msg_timeout=60) as producer:
            sends: list[Callable[[], SendResult]] = [
                lambda: producer.send(plain),
                lambda: producer.send(members),
                lambda: producer.send(delayed),
                lambda: producer.send_message_in_transaction(in_transaction),
            ]
            for known in (producer.send, producer.send_message_in_transaction):
                known(Message("points", b"before"))
            broker.stop()
            producer.send_msg_timeout = 0.5
            for send in [*sends, *sends, *sends]:
                with pytest.raises((commitlake.FailedSendError, commitlake.UncertainSendError)):
                    send()
            broker.start()
            producer.send_msg_timeout = 60
            results = [send() for send in sends]
        sent = [codecs.decode_message(each.key, each.value, each.headers) for each in lake.kafka("messages")]
        attempts = [record.msg_id for record in sent if record.body == b"plain"]
        assert set(attempts) == {plain.message_id} == {results[0].msg_id}
        halves = [codecs.decode_half(each.key, each.value, each.headers) for each in lake.kafka("half")]
        halves = [half for half in halves if half.topic == "orders"]
        assert {half.msg_id for half in halves} == {in_transaction.message_id}
        assert len({half.transaction_id for half in halves}) == len(halves)
        recall = decode_handle(str(results[2].recall_handle))
        assert (recall.msg_id, recall.message) == (delayed.message_id, (results[2].queue_id, results[2].queue_offset))

        lake.run(spark)
        shown = sorted((row["body"], row["message_id"]) for row in lake.topic("orders"))
        assert shown == [(each.body, each.message_id) for each in (in_transaction, members[0], plain, members[1])]
        states = sorted(row["state"] for row in lake.rows("transactions") if row["topic"] == "orders")
        assert states == ["COMMITTED", *["ROLLED_BACK"] * (len(halves) - 1)]


# shutdown and forks


@pytest.mark.parametrize("fails", ["stop", "pause"])
@pytest.mark.parametrize("is_left", [False, True], ids=["shutdown", "with"])
def test_a_shutdown_in_an_outage_ends_in_time_and_leaves_no_thread(tmp_path: Path, fails: str, is_left: bool) -> None:
    before = set(threading.enumerate())
    with EmbeddedBroker(tmp_path) as broker:
        kafka = published(broker)
        producer = kafka.producer(Listener(check=COMMIT), send_msg_timeout=1)
        producer.start()
        connect(producer.send_message_in_transaction)
        connect(producer.send)
        transaction = producer.begin_transaction()
        transaction.send(Message("orders", b"before"))
        if fails == "stop":
            broker.stop()
        with paused(broker) if fails == "pause" else nullcontext():
            with pytest.raises(ProducerError):
                producer.send(Message("orders", b"meanwhile"))
            transaction.commit()  # its op waits in the client
            begun = time.monotonic()
            if is_left:
                producer.__exit__(None, None, None)
            else:
                producer.shutdown(timeout=5)
            assert time.monotonic() - begun < (40 if is_left else 9) * patience()
    wait_for(lambda: set(threading.enumerate()) <= before, 15 * patience(), lambda: set(threading.enumerate()) - before)


def test_a_forked_child_gets_a_clear_error(kafka: Namespace) -> None:
    with kafka.producer(Listener()) as producer:
        ours, theirs = multiprocessing.Pipe()

        def child() -> None:
            try:
                producer.send(Message("orders", b"from the child"))
            except ProducerError as error:
                theirs.send(str(error))

        forked = multiprocessing.get_context("fork").Process(target=child)
        forked.start()
        assert ours.poll(30)
        assert "make a producer in each process, after the fork" in ours.recv()
        forked.join()
        producer.send(Message("orders", b"from the parent"))
    assert [record.value for record in kafka.read("messages")] == [b"from the parent"]


# what reaches the client


def test_options_of_kafka_python_reach_the_clients(kafka: Namespace) -> None:
    with kafka.producer(Listener(), client_options={"compression_type": "gzip"}) as producer:
        producer.send(Message("orders", b"a" * 100_000))
        if kafka.engine == "kafka-python":
            assert producer._link._started()._engine._client.config["compression_type"] == "gzip"
    assert [record.value for record in kafka.read("messages")] == [b"a" * 100_000]
