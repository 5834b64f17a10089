"""The Python producer against a real broker. The coordinator's part, settings and checks, is played by the test."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from tests.support.namespace import COMMIT, ROLLBACK, Listener, Namespace, NotUtf8, check, failed, published
from tests.support.polling import WAIT_S, wait_for

from commitlake.clients.producer import (
    EndTransactionContext,
    FailedSendError,
    LocalTransactionState,
    Message,
    MessageExt,
    ProducerError,
    RefusedSendError,
    UncertainSendError,
)
from commitlake.clients.producer.connection import SettingsReader
from commitlake.clients.producer.link import ENGINES, KafkaLink
from commitlake.errors import ConfigError
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.testing import codecs
from commitlake.tools.cli.app import app

pytestmark = pytest.mark.short


@pytest.fixture(params=[ENGINES[0], *(pytest.param(engine, marks=pytest.mark.long) for engine in ENGINES[1:])])
def kafka(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Namespace:
    """Empty topics with published settings, for both engines."""
    return published(broker, request.param)


def test_the_command_sends_a_message_or_refuses_it(kafka: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    where = [f"--set=kafka.bootstrap_servers={kafka.servers}", f"--set=kafka.topic_prefix={kafka.prefix}"]
    with pytest.raises(SystemExit) as ended:
        app(["send", "orders", "one tea", "--keys=order-1", "--tags=new", "--delay=10s", *where])
    assert ended.value.code == 0
    (record,) = kafka.read("messages")
    sent = codecs.decode_message(record.key, record.value, record.headers)
    assert (sent.topic, sent.body, sent.keys, sent.tags) == ("orders", b"one tea", "order-1", "new")
    assert capsys.readouterr().out == f"sent {sent.msg_id}; orders shows it when its delay has ended\n"
    with pytest.raises(ProducerError, match="delay_seconds"):
        app(["send", "orders", "one tea", "--delay=soon", *where])


def test_the_half_message_is_in_kafka_before_the_local_transaction(kafka: Namespace) -> None:
    seen: list[int] = []

    def look_into_kafka(_: Message) -> LocalTransactionState:
        seen.append(len(kafka.read("half")))
        return COMMIT

    listener = Listener(execute=look_into_kafka)
    with kafka.producer(listener) as producer:
        message = Message("orders", b"body", tags="TagA", keys="KEY1", properties={"color": "red"}, queue_id=1)
        result = producer.send_message_in_transaction(message, arg=17)
    assert seen == [1]
    (record,) = kafka.read("half")
    half = codecs.decode_half(record.key, record.value, record.headers)
    assert (half.topic, half.body, half.tags, half.keys) == ("orders", b"body", "TagA", "KEY1")
    assert (half.queue_id, half.properties, half.producer_group) == (1, {"color": "red"}, "group")
    assert (half.msg_id, half.transaction_id) == (result.msg_id, result.msg_id)
    assert listener.executed == [(message, 17)]
    assert message.transaction_id == result.transaction_id == result.msg_id
    assert (result.queue_id, result.queue_offset) == (record.partition, record.offset)
    assert result.local_transaction_state is COMMIT
    (op,) = kafka.read("op")
    assert op.partition == record.partition
    assert codecs.decode_op(op.value) == wire.OpRecord(
        transaction_id=result.transaction_id,
        producer_group="group",
        decision="COMMIT",
        half_messages=(Position(record.partition, record.offset),),
    )


@pytest.mark.parametrize(
    ("answer", "decision", "remark"),
    [
        (ROLLBACK, "ROLLBACK", None),
        (LocalTransactionState.UNKNOW, "UNKNOWN", None),
        (None, "UNKNOWN", "the listener returned None"),
        (lambda _: True, "UNKNOWN", "the listener returned True"),
        (lambda _: 1 / 0, "UNKNOWN", "ZeroDivisionError: division by zero"),
    ],
)
def test_no_answer_or_an_error_of_the_listener_is_unknown_with_a_remark(
    kafka: Namespace, caplog: pytest.LogCaptureFixture, answer: Any, decision: str, remark: str | None
) -> None:
    with kafka.producer(Listener(execute=answer)) as producer:
        result = producer.send_message_in_transaction(Message("orders", b""))
    (op,) = kafka.ops()
    assert isinstance(result.exception, ZeroDivisionError) == (remark is not None and "Zero" in remark)
    assert (op.decision, op.remark, op.from_check) == (decision, remark, False)
    assert ("the transaction listener" in caplog.text) == (remark is not None)


def test_sharding_keys_choose_a_queue_and_without_one_queues_take_turns(kafka: Namespace) -> None:
    with kafka.producer(Listener()) as producer:
        keyed = {producer.send(Message("orders", b"", sharding_key="customer-4")).queue_id for _ in range(4)}
        turns = [producer.send(Message("orders", b"")).queue_id for _ in range(4)]
    assert len(keyed) == 1
    assert turns in ([0, 1, 0, 1], [1, 0, 1, 0])


@pytest.mark.parametrize(
    ("changes", "message", "reason"),
    [
        ({"topics.allowed": ["points"]}, Message("orders", b""), "TOPIC_NOT_ALLOWED"),
        ({"topics.max": 1}, Message("orders", b""), "TOPIC_NOT_ALLOWED"),
        ({}, Message("orders", b"", queue_id=64), "BAD_QUEUE_ID"),
        ({"max_message_size": "1KiB"}, Message("orders", b"x" * 1_025), "BODY_TOO_LARGE"),
        ({}, Message("orders", b"", delay_seconds=41 * 86_400), "DELAY_TOO_LONG"),
        ({"transaction.reject": True}, Message("orders", b""), "TRANSACTIONS_REJECTED"),
    ],
)
def test_what_landing_would_reject_is_refused_before_it_is_sent(
    kafka: Namespace, changes: dict[str, object], message: Message, reason: str
) -> None:
    """Each message in each way of sending: tests/unit/test_message.py."""
    kafka.publish("known", **changes)
    listener = Listener()
    with kafka.producer(listener) as producer:
        with pytest.raises(RefusedSendError) as error:
            producer.send_message_in_transaction(message)
        assert error.value.reason == reason
    assert listener.executed == []
    assert kafka.read("half") == []


def test_new_settings_are_respected_while_the_producer_runs(kafka: Namespace) -> None:
    with kafka.producer(Listener()) as producer:
        producer.send_message_in_transaction(Message("orders", b""))
        kafka.publish(**{"transaction.reject": True})

        def refused() -> bool:
            try:
                producer.send_message_in_transaction(Message("orders", b""))
            except ProducerError as error:
                return error.reason == "TRANSACTIONS_REJECTED"
            return False

        wait_for(refused)
        assert producer.send(Message("orders", b"")).msg_id  # normal messages still go


def test_a_record_of_settings_that_no_client_can_read_is_passed_over(kafka: Namespace) -> None:
    client = KafkaProducer(bootstrap_servers=kafka.servers)
    client.send(f"{kafka.prefix}settings", b"{}", b"x", [(NotUtf8("x"), b"")], 0).get(60)
    client.close()
    kafka.publish(max_message_size="1KiB")
    with kafka.producer(Listener()) as producer, pytest.raises(RefusedSendError, match="max_message_size is 1024"):
        producer.send(Message("orders", b"x" * 1_025))


def test_a_send_with_a_very_long_time_out_harms_no_other(kafka: Namespace) -> None:
    with kafka.producer(Listener()) as producer:
        assert producer.send(Message("orders", b""), timeout="20d").msg_id
        assert producer.send(Message("orders", b""), timeout="10s").msg_id


def test_a_start_without_published_settings_asks_for_the_coordinator(broker: EmbeddedBroker) -> None:
    namespace = Namespace(broker)
    with pytest.raises(ProducerError, match="start the coordinator"):
        namespace.producer(Listener(), start_timeout=2).start()


def test_an_option_that_librdkafka_refuses_is_named_and_no_thread_is_left(broker: EmbeddedBroker) -> None:
    kafka = published(broker)
    before = threading.enumerate()
    with pytest.raises(ConfigError, match=r"retry\.backoff\.ms.*; change that one, or use engine='kafka-python'"):
        kafka.producer(engine="confluent", options={"retry.backoff.ms": "0"}).start()
    wait_for(lambda: set(threading.enumerate()) <= set(before))


def test_an_interrupted_start_leaves_no_thread(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = published(broker)
    before, start = threading.enumerate(), SettingsReader.start

    def interrupted(reader: SettingsReader, timeout_ms: int) -> None:
        start(reader, timeout_ms)
        raise KeyboardInterrupt

    monkeypatch.setattr(SettingsReader, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kafka.producer().start()
    wait_for(lambda: set(threading.enumerate()) <= set(before))


def test_a_connection_that_can_not_be_replaced_fails_the_send_and_not_the_next(broker: EmbeddedBroker) -> None:
    kafka = published(broker)
    with kafka.producer(engine="confluent") as producer:
        producer.send(Message("orders", b"a"), timeout="2000s")  # more than librdkafka takes for a request
        producer._link.connection._more = {"compression_type": "none such"}
        with pytest.raises(FailedSendError, match=r"compression.*change that one"):
            producer.send(Message("orders", b"b"), timeout="3000s")
        outcomes: list[BaseException | None] = []
        record = wire.encode_message(wire.MessageRecord(topic="orders", msg_id="c", body=b"c", producer_group="group"))
        producer._link.send_soon("messages", 0, record, 4_000_000, outcomes.append)
        assert isinstance(outcomes[0], FailedSendError)
        producer._link.connection._more = {}
        producer.send(Message("orders", b"d"))
    assert sorted(record.value for record in kafka.read("messages")) == [b"a", b"d"]


def test_a_producer_that_is_not_started_or_has_no_listener_refuses(kafka: Namespace) -> None:
    producer = kafka.producer()
    with pytest.raises(ProducerError, match="start"):
        producer.send(Message("orders", b""))
    with producer, pytest.raises(ProducerError, match="listener"):
        producer.send_message_in_transaction(Message("orders", b""))
    with pytest.raises(ProducerError, match="start"):
        producer.send(Message("orders", b""))
    with producer:  # and it can be started again
        producer.send(Message("orders", b""))


def test_the_answer_to_a_check_lists_the_half_messages_of_the_request(kafka: Namespace) -> None:
    listener = Listener(check=ROLLBACK)
    request = check(
        tags="TagA", keys="K", properties={"color": "red"}, queue_id=1, stored_timestamp=3, born_timestamp=2
    )
    kafka.ask(request)
    with kafka.producer(listener):
        (op,) = kafka.wait_for_ops(1)
        assert kafka.read("op")[0].partition == 1
    assert op == wire.OpRecord(
        transaction_id="m",
        producer_group="group",
        decision="ROLLBACK",
        half_messages=request.half_messages,
        from_check=True,
        check_id=request.check_id,
    )
    (seen,) = listener.checked
    assert (seen.topic, seen.body, seen.tags, seen.keys, seen.properties) == (
        "orders",
        b"body",
        "TagA",
        "K",
        {"color": "red"},
    )
    assert (seen.msg_id, seen.transaction_id, seen.queue_id, seen.half_queue, seen.half_offset) == ("m", "m", 1, 1, 5)
    assert (seen.born_timestamp, seen.store_timestamp, seen.check_times, seen.check_id) == (2, 3, 1, "1-5-0-1")


def test_checks_of_other_groups_are_skipped_and_committed(kafka: Namespace) -> None:
    kafka.ask(check("a"), check("b", group="other"), check("c"), check("d", group="group2"))
    listener = Listener()
    with kafka.producer(listener):
        wait_for(lambda: kafka.committed() == 4)
    assert sorted(message.msg_id or "" for message in listener.checked) == ["a", "c"]
    kafka.ask(check("e"))
    with kafka.producer(listener):
        wait_for(lambda: kafka.committed() == 5)
    assert [message.msg_id for message in listener.checked[2:]] == ["e"]


def test_the_same_question_again_is_answered_without_asking(kafka: Namespace) -> None:
    listener = Listener()
    with kafka.producer(listener):
        kafka.ask(check())
        wait_for(lambda: kafka.committed() == 1)
        kafka.ask(check(), check(check_id="1-5-1-1"))
        wait_for(lambda: kafka.committed() == 3)
    assert len(listener.checked) == 2
    assert [op.decision for op in kafka.answers()] == ["COMMIT"] * 3


def test_offsets_are_committed_up_to_the_first_unanswered_check(kafka: Namespace) -> None:
    go = threading.Event()
    listener = Listener(check=lambda message: COMMIT if message.msg_id != "slow" or go.wait(WAIT_S) else ROLLBACK)
    kafka.ask(check("before"), check("slow"), check("after"))
    with kafka.producer(listener):
        kafka.wait_for_ops(2)
        wait_for(lambda: kafka.committed() == 1)
        go.set()
        wait_for(lambda: kafka.committed() == 3)


class WatchedPool(ThreadPoolExecutor):
    """Keeps what it was given."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.given: list[Future[Any]] = []

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given.append(super().submit(*args, **kwargs))
        return self.given[-1]


def test_a_shutdown_completes_running_checks_and_drops_waiting_ones(kafka: Namespace) -> None:
    def until_others_are_dropped(_: MessageExt) -> LocalTransactionState:
        wait_for(lambda: pool.given[1:] and all(waiting.cancelled() for waiting in pool.given[1:]))
        return COMMIT

    kafka.ask(check("a"), check("b"), check("c"))
    with WatchedPool(1) as pool, kafka.producer(Listener(check=until_others_are_dropped), executor=pool):
        wait_for(lambda: len(pool.given) == 3)
    assert [op.transaction_id for op in kafka.ops()] == ["a"]
    assert kafka.committed() == 1
    with kafka.producer(Listener()):
        wait_for(lambda: {op.transaction_id for op in kafka.ops()} == {"a", "b", "c"})


def test_a_full_pool_pauses_polling_and_loses_no_check(kafka: Namespace) -> None:
    go = threading.Event()
    kafka.ask(*(check(f"m{at}") for at in range(3_000)))
    with WatchedPool(5) as pool, kafka.producer(Listener(check=lambda _: go.wait(WAIT_S) and COMMIT), executor=pool):
        wait_for(lambda: len(pool.given) >= 1_900)
        time.sleep(1)  # polling goes on
        assert len(pool.given) <= 2_000
        go.set()
        wait_for(lambda: kafka.committed() == 3_000)
    assert len({op.transaction_id for op in kafka.ops()}) == 3_000


def test_another_instance_of_the_group_takes_over_where_one_leaves(kafka: Namespace) -> None:
    left, right = Listener(), Listener()
    with kafka.producer(right):
        with kafka.producer(left):
            wait_for(lambda: bool(ask_both(kafka) and left.checked and right.checked))
        ask_both(kafka, "later")
        wait_for(lambda: {"later 0", "later 1"} <= {message.msg_id for message in right.checked})


def ask_both(kafka: Namespace, name: str = "m") -> bool:
    """One check in each partition."""
    for partition in (0, 1):
        kafka.ask(check(f"{name} {partition}"), partition=partition)
    return True


def test_an_uncertain_send_is_rolled_back_by_its_check_without_listener(kafka: Namespace) -> None:
    """A second try of the same message under the same transaction id is not."""
    listener = Listener()
    message = Message("orders", b"", transaction_id="order-17")
    with kafka.producer(listener, send_msg_timeout="1ms") as producer:
        attempts, is_lost = 0, False
        while not is_lost:  # 1 ms is rarely enough for an acknowledgement
            attempts += 1
            try:
                producer.send_message_in_transaction(message)
                listener.executed.clear()
            except FailedSendError:
                attempts -= 1
            except UncertainSendError as error:
                is_lost = True
                assert "may or may not be there" in str(error)
                assert "send the same Message object again" in str(error)
        assert listener.executed == []
        producer.send_msg_timeout = 10
        producer.send_message_in_transaction(message)
        wait_for(lambda: len(kafka.read("half")) == attempts + 1)
        halves = [codecs.decode_half(record.key, record.value, record.headers) for record in kafka.read("half")]
        assert {half.msg_id for half in halves} == {message.message_id}
        *_, lost, second = sorted(half.born_timestamp or 0 for half in halves)
        for number, born in enumerate((lost, second)):
            named: dict[str, Any] = {
                "transaction_id": "order-17",
                "born_timestamp": born,
                "check_id": f"1-{number}-0-1",
            }
            kafka.ask(check(str(message.message_id), **named))
        wait_for(lambda: len(kafka.answers()) == 2)
        ops = {op.decision: op for op in kafka.answers()}
    assert ops["ROLLBACK"].remark
    assert ops["COMMIT"].remark is None
    assert [message.born_timestamp for message in listener.checked] == [second]


def test_hooks_get_direct_decisions_and_answers_to_checks(kafka: Namespace) -> None:
    contexts: list[EndTransactionContext] = []

    class Hook:
        def end_transaction(self, context: EndTransactionContext) -> None:
            contexts.append(context)

    with kafka.producer(Listener(check=ROLLBACK)) as producer:
        producer.register_end_transaction_hook(Hook())
        producer.register_end_transaction_hook(lambda _: 1 / 0)
        producer.register_end_transaction_hook(contexts.append)
        message = Message("orders", b"", keys="order-1")
        result = producer.send_message_in_transaction(message)
        with producer.begin_transaction() as transaction:
            transaction.send(Message("orders", b"first", keys="order-2"))
            transaction.send(Message("orders", b"second"))
        kafka.ask(check(keys="order-3"))
        kafka.wait_for_ops(3)
    direct, _, answer = contexts[::2]
    assert contexts[1::2] == contexts[::2]
    assert [context.message.keys for context in contexts[::2]] == ["order-1", "order-2", "order-3"]
    assert direct.message is message
    assert (direct.producer_group, direct.msg_id, direct.topic) == ("group", result.msg_id, "orders")
    assert (direct.state, direct.from_check, direct.broker_address) == (COMMIT, False, kafka.servers)
    assert (answer.msg_id, answer.state, answer.from_check) == ("m", ROLLBACK, True)


def test_one_op_lists_all_half_messages_of_a_transaction(kafka: Namespace) -> None:
    with kafka.producer() as producer, producer.begin_transaction() as transaction:
        first = transaction.send(Message("orders", b"1"))
        second = transaction.send(Message("points", b"2", delay_seconds=5))
        assert transaction.transaction_id == first.transaction_id == second.transaction_id == first.msg_id
    halves = {r.value: codecs.decode_half(r.key, r.value, r.headers) for r in kafka.read("half")}
    assert halves[b"1"].first_half is None
    assert halves[b"2"].first_half == Position(first.queue_id, first.queue_offset)
    assert halves[b"2"].transaction_id == first.msg_id
    assert halves[b"2"].delays == {"TIMER_DELAY_SEC": "5"}
    (op,) = kafka.ops()
    places = [(result.queue_id, result.queue_offset) for result in (first, second)]
    assert (op.decision, list(op.half_messages)) == ("COMMIT", places)
    assert kafka.read("op")[0].partition == first.queue_id


def test_a_transaction_rolls_back_on_an_exception_and_ends_once(kafka: Namespace) -> None:
    with kafka.producer() as producer:
        with pytest.raises(ZeroDivisionError), producer.begin_transaction() as transaction:
            transaction.send(Message("orders", b"1"))
            raise ZeroDivisionError
        transaction.rollback()
        for late in (transaction.commit, lambda: transaction.send(Message("orders", b"2"))):
            with pytest.raises(ProducerError, match="ended"):
                late()
        with producer.begin_transaction() as early:
            early.send(Message("orders", b"3"))
            early.commit()
            early.commit()
        with producer.begin_transaction():
            pass  # nothing sent, nothing to end
    assert sorted(op.decision for op in kafka.ops()) == ["COMMIT", "ROLLBACK"]


def test_a_refused_message_leaves_its_transaction_open(kafka: Namespace) -> None:
    with kafka.producer() as producer, producer.begin_transaction() as transaction:
        transaction.send(Message("orders", b"1"))
        with pytest.raises(ProducerError):
            transaction.send(Message("no good", b""))
    assert [op.decision for op in kafka.ops()] == ["COMMIT"]


def test_a_transaction_with_an_uncertain_message_can_only_roll_back(kafka: Namespace) -> None:
    with kafka.producer() as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("orders", b"1"))
        producer.send_msg_timeout = "1ms"
        with pytest.raises(UncertainSendError, match="may or may not"):
            while True:
                with suppress(FailedSendError):
                    transaction.send(Message("orders", b"2"))
        producer.send_msg_timeout = 60
        with pytest.raises(ProducerError, match="only roll back"):
            transaction.send(Message("orders", b"3"))
        with pytest.raises(ProducerError, match="rolled back"):
            transaction.commit()
        transaction.rollback()
    assert [op.decision for op in kafka.ops()] == ["ROLLBACK"]


def test_only_a_delayed_message_has_a_recall_handle(kafka: Namespace) -> None:
    with kafka.producer() as producer:
        assert producer.send(Message("orders", b"")).recall_handle is None
        assert producer.send(Message("orders", b"", delay_time_level=0)).recall_handle is None
        message = Message("orders", b"")
        message.set_delay_time_level(3)
        sent = producer.send(message)
        assert producer.recall(sent.recall_handle) == sent.msg_id
        with pytest.raises(ProducerError, match="handle"):
            producer.recall("nonsense")
    (op,) = kafka.read("op")
    assert op.partition == sent.queue_id
    assert codecs.decode_op(op.value) == wire.RecallRecord(
        msg_id=sent.msg_id, topic="orders", message=Position(sent.queue_id, sent.queue_offset)
    )


def test_wait_returns_at_shutdown(kafka: Namespace) -> None:
    producer = kafka.producer(Listener())
    producer.start()
    threading.Timer(0.5, producer.shutdown).start()
    producer.wait()
    with pytest.raises(ProducerError):
        producer.send(Message("orders", b""))


@pytest.mark.parametrize("step", ["start", "stop", "flush"])
def test_a_signal_handler_may_shut_down_while_the_producer_starts_or_shuts_down(
    kafka: Namespace, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A handler runs in the thread that it interrupts, so it would wait for itself."""
    producer, before = kafka.producer(Listener()), getattr(KafkaLink, step)
    raised: list[BaseException] = []

    def interrupted(link: KafkaLink, *given: Any) -> None:
        monkeypatch.setattr(KafkaLink, step, before)  # a handler runs once
        if step != "start":
            producer.shutdown()
        before(link, *given)
        producer.shutdown()

    def run() -> None:
        try:
            with producer:
                pass
        except ProducerError as error:
            raised.append(error)

    monkeypatch.setattr(KafkaLink, step, interrupted)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    producer.wait()
    assert ["while it started" in str(error) for error in raised] == ([True] if step == "start" else [])
    monkeypatch.undo()
    with producer:  # it can be used again
        producer.send(Message("orders", b"body"))


def test_a_broker_that_stops_costs_no_more_than_the_sends_meanwhile(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        kafka = published(broker)
        listener = Listener()
        with kafka.producer(listener, send_msg_timeout=1) as producer:
            wait_for(lambda: not failed(producer.send_message_in_transaction, Message("orders", b"before")))
            broker.stop()
            with pytest.raises((FailedSendError, UncertainSendError)):
                producer.send_message_in_transaction(Message("orders", b"meanwhile"))
            broker.start()
            wait_for(lambda: not failed(producer.send_message_in_transaction, Message("orders", b"after")))
            kafka.ask(check())
            wait_for(lambda: any(op.from_check for op in kafka.ops()))
    assert [message.body for message, _ in listener.executed] == [b"before", b"after"]
