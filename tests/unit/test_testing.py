"""The coordinator in memory: what a user's unit test does with it, and each kind of end.

That it reads each vector of the contract: tests/unit/test_wire.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.killing import python

from commitlake import (
    CommitLakeError,
    ConfigError,
    FailedSendError,
    KafkaError,
    LocalTransactionState,
    Message,
    MessageExt,
    ProducerError,
    TransactionListener,
    TransactionNotFoundError,
    UncertainSendError,
)
from commitlake.protocol import wire
from commitlake.testing import Crash, Fault, InMemoryCoordinator, InMemoryProducer, Outcome
from commitlake.testing.codecs import encode_check

VECTORS = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parents[1] / "vectors").glob("*.json")}
COMMIT, ROLLBACK, UNKNOW = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOW,
)


class Shop(TransactionListener):
    """Puts orders into a dict that stands for a database, and looks them up there."""

    def __init__(self, database: dict[str, str], answer: LocalTransactionState = COMMIT) -> None:
        self.database, self.answer, self.asked = database, answer, 0

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        if self.answer is not ROLLBACK:
            self.database[str(message.keys)] = "paid"
        return self.answer

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.asked += 1
        return COMMIT if message.keys in self.database else ROLLBACK


class Careful(Shop):
    """Right: what is not there may still come."""

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return COMMIT if message.keys in self.database else UNKNOW


class Forgetful(Shop):
    """Wrong: what it did is in the memory of its process only."""

    def __init__(self, database: dict[str, str]) -> None:
        super().__init__(database)
        self.done: set[str | None] = set()

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        self.done.add(message.keys)
        return super().execute_local_transaction(message, arg)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return COMMIT if message.keys in self.done else ROLLBACK


def after_a_fault(kind: type[Shop], fault: Fault) -> tuple[list[str], list[str | None]]:
    """The orders in the database, and those that consumers see: sent, and started again after a fault."""
    database: dict[str, str] = {}
    lake = InMemoryCoordinator()
    with suppress(Crash, CommitLakeError), lake.producer("shop", kind(database), fault=fault) as producer:
        producer.send_message_in_transaction(Message("orders", "a book", keys="17"))
    with lake.producer("shop", kind(database)):
        lake.advance("10m")
    assert lake.pending == []
    return list(database), [message.keys for message in lake.messages("orders")]


@pytest.mark.parametrize("fault", Fault)
def test_a_right_listener_agrees_with_its_database_whatever_befalls_it(fault: Fault) -> None:
    paid, told = after_a_fault(Careful, fault)
    assert paid == told
    sent_nothing = {Fault.KAFKA_AWAY, Fault.LOST, Fault.UNACKNOWLEDGED, Fault.CRASH_AFTER_HALF}
    assert bool(paid) == (fault not in sent_nothing)


def test_a_listener_that_is_wrong_after_a_crash_is_found_in_milliseconds() -> None:
    begun = time.perf_counter()
    paid, told = after_a_fault(Forgetful, Fault.CRASH_BEFORE_DECISION)
    assert time.perf_counter() - begun < 0.5
    assert (paid, told) == (["17"], [])


def test_a_listener_that_rolls_back_what_still_runs_is_found() -> None:
    assert after_a_fault(Shop, Fault.CHECKED_WHILE_RUNNING) == (["17"], [])


def test_what_a_listener_raises_is_in_the_result(lake: InMemoryCoordinator, caplog: pytest.LogCaptureFixture) -> None:
    class Raises(Shop):
        def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
            raise arg  # type: ignore[misc]

    error = ValueError("no stock")
    found = lake.producer("shop", Raises({})).send_message_in_transaction(Message("orders", "x"), error)
    assert (found.local_transaction_state, found.exception) == (UNKNOW, error)
    found = lake.producer("shop", Shop({}, None)).send_message_in_transaction(Message("orders", "x"))  # type: ignore[arg-type]
    assert (found.local_transaction_state, found.exception) == (UNKNOW, None)
    assert "returned None, no LocalTransactionState" in caplog.text


RULE = {"table": "delta-log"}


@pytest.mark.parametrize(
    ("checks", "listener", "warnings"),
    [({}, None, 1), ({"shop": RULE}, None, 0), ({"other": RULE}, None, 1), ({}, Shop({}), 0)],
    ids=["nobody", "a rule", "a rule for others", "a listener"],
)
def test_a_group_that_nobody_answers_for_is_told_once_also_where_a_rule_is_promised(
    caplog: pytest.LogCaptureFixture, checks: dict[str, Any], listener: Shop | None, warnings: int
) -> None:
    with InMemoryCoordinator({"checks": checks}).producer("shop", listener) as producer:
        for is_answered in (True, False):
            producer.begin_transaction(is_answered=is_answered).rollback()
    told = "the group shop begins transactions without a listener, and there is no rule for it"
    assert caplog.text.count(told) == warnings


@pytest.fixture
def lake() -> InMemoryCoordinator:
    return InMemoryCoordinator()


@pytest.fixture
def producer(lake: InMemoryCoordinator) -> Iterator[InMemoryProducer]:
    with lake.producer("shop", Shop({})) as running:
        yield running


@pytest.mark.parametrize(("answer", "state"), [(COMMIT, "COMMITTED"), (ROLLBACK, "ROLLED_BACK")])
def test_a_decision_ends_a_transaction_at_once(
    lake: InMemoryCoordinator, answer: LocalTransactionState, state: str
) -> None:
    producer = lake.producer("shop", Shop({}, answer))
    sent = producer.send_message_in_transaction(Message("orders", "x", tags="new", properties={"a": "b"}))
    assert lake.outcome(str(sent.transaction_id)) == Outcome(state, "DIRECT", 0)
    found = lake.messages("orders")
    assert [(m.body, m.tags, m.properties, m.message_id) for m in found] == (
        [(b"x", "new", {"a": "b"}, sent.msg_id)] if answer is COMMIT else []
    )


def test_an_unknown_outcome_is_checked_after_the_timeout_and_not_before(lake: InMemoryCoordinator) -> None:
    shop = Shop({}, UNKNOW)
    sent = lake.producer("shop", shop).send_message_in_transaction(Message("orders", "x", keys="17"))
    lake.advance(6)
    assert (shop.asked, lake.pending) == (0, [sent.transaction_id])
    lake.advance(timedelta(milliseconds=1))
    assert shop.asked == 1
    assert lake.outcome(str(sent.transaction_id)) == Outcome("COMMITTED", "CHECK", 1)


def test_a_group_that_is_away_is_asked_again_and_loses_nothing(lake: InMemoryCoordinator) -> None:
    sent = lake.producer("shop", Shop({}, UNKNOW), fault=Fault.CRASH_BEFORE_DECISION)
    message = Message("orders", "x", keys="17")
    with pytest.raises(Crash):
        sent.send_message_in_transaction(message)
    lake.advance("1h")
    assert [check.check_times for check in lake.checks] == [1] * 4  # asked, and after 5, 15 and 35 minutes once more
    shop = Shop({"17": "paid"})
    lake.producer("shop", shop)
    assert lake.outcome(str(message.transaction_id)) == Outcome("COMMITTED", "CHECK", 1)
    assert [m.keys for m in lake.messages("orders")] == ["17"]


def test_what_nobody_knows_is_discarded(lake: InMemoryCoordinator) -> None:
    class Unsure(Shop):
        def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
            return UNKNOW

    sent = lake.producer("shop", Unsure({}, UNKNOW)).send_message_in_transaction(Message("orders", "x"))
    lake.advance("10m")
    assert lake.outcome(str(sent.transaction_id)) == Outcome("DISCARDED", "CHECK_MAX", 15)


def test_a_crash_in_a_check_lets_another_instance_answer(lake: InMemoryCoordinator) -> None:
    class Dies(Shop):
        def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
            dying.crash()

    dying = lake.producer("shop", Dies({}, UNKNOW))
    dying.send_message_in_transaction(Message("orders", "x", keys="17"))
    lake.advance(10)
    assert len(lake.pending) == 1
    lake.producer("shop", Shop({"17": "paid"}))
    assert [m.keys for m in lake.messages("orders")] == ["17"]
    with pytest.raises(Crash):
        dying.send(Message("orders", "x"))
    dying.shutdown()
    with pytest.raises(ProducerError, match="make another one"):
        dying.start()


def test_several_half_messages_end_together(lake: InMemoryCoordinator, producer: InMemoryProducer) -> None:
    with producer.begin_transaction() as transaction:
        transaction.send(Message("orders", "1"))
        transaction.send(Message("points", "2"))
        assert lake.messages("orders") == []
    assert [m.body for topic in ("orders", "points") for m in lake.messages(topic)] == [b"1", b"2"]
    with pytest.raises(UncertainSendError), producer.begin_transaction() as transaction:
        transaction.send(Message("orders", "3"))
        producer.fault = Fault.UNACKNOWLEDGED
        transaction.send(Message("points", "4"))
    assert len(lake.messages("orders")) == 1
    assert lake.pending == []


def test_a_commit_after_a_shutdown_says_that_it_was_not_sent(lake: InMemoryCoordinator) -> None:
    producer = lake.producer("shop", Shop({}))
    transactions = [producer.begin_transaction() for _ in range(3)]
    for transaction in transactions:
        transaction.send(Message("orders", b"x"))
    producer.shutdown()
    with pytest.raises(FailedSendError, match="did not send it: a check will ask"):
        transactions[0].commit()
    with pytest.raises(FailedSendError), transactions[1]:
        pass
    transactions[2].rollback()
    assert len(lake.pending) == 3
    with producer:
        transactions[0].commit()
    assert len(lake.pending) == 2


@pytest.mark.parametrize("at", ["constructor", "listener", "hook", "hook object"])
def test_a_coroutine_function_is_refused_where_nothing_would_await_it(lake: InMemoryCoordinator, at: str) -> None:
    class Awaited(Shop):
        async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:  # type: ignore[override]
            return COMMIT

        async def end_transaction(self, context: object) -> None: ...

    with pytest.raises(ProducerError, match="is a coroutine function; use AsyncTransactionMQProducer"):
        producer = lake.producer("orders", Awaited({}) if at == "constructor" else Shop({}))
        if at == "listener":
            producer.set_transaction_listener(Awaited({}))
        elif at == "hook":
            producer.register_end_transaction_hook(Awaited({}).end_transaction)
        else:
            producer.register_end_transaction_hook(Awaited({}))  # type: ignore[arg-type]


def test_delays_recalls_and_batches(lake: InMemoryCoordinator, producer: InMemoryProducer) -> None:
    producer.send(Message("orders", "later", delay_seconds=60))
    recalled = producer.send(Message("orders", "never", delay_seconds=60))
    producer.send([Message("orders", "one"), Message("orders", "two", keys="k")])
    producer.send_message_in_transaction(Message("orders", "half", delay_seconds=90))
    producer.recall(str(recalled.recall_handle))
    assert [m.body for m in lake.messages("orders")] == [b"one", b"two"]
    lake.advance(59.999)
    assert len(lake.messages("orders")) == 2
    lake.advance(0.001)
    assert [m.body for m in lake.messages("orders")][2:] == [b"later"]
    producer.recall(str(recalled.recall_handle))
    lake.advance("1m")
    assert [m.body for m in lake.messages("orders")][3:] == [b"half"]
    assert [None if m.due_at is None else m.due_at - m.stored_at for m in lake.messages("orders")] == [
        *(None, None, 60_000, 90_000),
    ]
    assert lake.rejected == []


def test_a_name_is_shown_once_where_the_configuration_says_so() -> None:
    lake = InMemoryCoordinator({"topics.dedup": {"orders": {"by": "message_id", "window": "1d"}}})
    producer, message = lake.producer("shop", fault=Fault.UNACKNOWLEDGED), Message("orders", "x")
    with pytest.raises(UncertainSendError):
        producer.send(message)
    producer.send(message)
    assert [m.message_id for m in lake.messages("orders")] == [message.message_id]
    assert [(each.reason, each.detail) for each in lake.rejected] == [("DUPLICATE_OF", "messages-0-0")]
    lake.advance("1d")
    producer.send(message)
    assert len(lake.messages("orders")) == 2


def test_the_configuration_is_the_coordinators() -> None:
    lake = InMemoryCoordinator({"transaction": {"timeout": "2s"}, "topics.allowed": ["orders"]})
    producer = lake.producer("shop", Shop({}, UNKNOW))
    with pytest.raises(ProducerError) as refused:
        producer.send(Message("points", "x"))
    assert refused.value.reason == "TOPIC_NOT_ALLOWED"
    producer.send_message_in_transaction(Message("orders", "x"))
    lake.advance(2.001)
    assert len(lake.checks) == 1
    with pytest.raises(ConfigError, match="unknown"):
        InMemoryCoordinator({"transaction.tiemout": "2s"})


@pytest.mark.parametrize("duration", [-1, "ten minutes", None, "1"])
def test_time_moves_by_a_duration_only_and_forwards(lake: InMemoryCoordinator, duration: Any) -> None:
    with pytest.raises(ConfigError, match="seconds from 0 up, or a timedelta"):
        lake.advance(duration)


def test_what_is_not_there_is_told(lake: InMemoryCoordinator) -> None:
    with pytest.raises(TransactionNotFoundError, match="17"):
        lake.outcome("17")
    with pytest.raises(KafkaError, match="orders"):
        lake.append("orders", 0, wire.Encoded(None, b"", []))


def put(lake: InMemoryCoordinator, name: str, queue: int) -> None:
    vector = VECTORS[name]
    headers = [(key, value.encode()) for key, value in vector["headers"].items()]
    lake.append(vector["topic"], queue, wire.Encoded(None, vector["value"].encode(), headers))


def test_the_check_of_the_vectors_is_the_one_that_is_asked() -> None:
    lake = InMemoryCoordinator({"kafka.queues": 4})
    lake.now = 1_767_225_600_003  # the vector's STORED_TIMESTAMP
    for queue, before in ((0, 12), (3, 4)):
        for _ in range(before):
            lake.append("half", queue, wire.Encoded(None, b"", []))
    put(lake, "half", 0)
    put(lake, "half_part", 3)
    lake.advance("2m")
    sent = encode_check(lake.checks[0])
    assert (sent.key or b"").decode() == VECTORS["check"]["key"]
    assert {name: value.decode() for name, value in sent.headers} == VECTORS["check"]["headers"]
    assert sent.value.decode() == VECTORS["check"]["value"]


def test_no_spark_no_java_and_no_connection_are_needed() -> None:
    code = (
        "import socket, sys\n"
        "def refuse(*_): raise AssertionError('a connection')\n"
        "socket.socket.connect = socket.socket.bind = refuse\n"
        "from commitlake.testing import InMemoryCoordinator\n"
        "from commitlake import Message\n"
        "lake = InMemoryCoordinator()\n"
        "with lake.producer('shop') as producer: producer.send(Message('orders', 'x'))\n"
        "assert len(lake.messages('orders')) == 1\n"
        "import threading; assert threading.active_count() == 1\n"
        "print(*{'pyspark', 'delta', 'py4j', 'pandas', 'pyarrow'} & set(sys.modules))"
    )
    run = python("-c", code)
    assert (run.stdout.strip(), run.stderr) == ("", "")


@pytest.mark.parametrize("conf", [{"topics.allowed": ["orders"]}, {"topics.max": 1}, {"max_message_size": "6B"}])
def test_half_of_a_transaction_is_not_shown_when_a_part_is_refused(conf: dict[str, object]) -> None:
    coordinator = InMemoryCoordinator(conf)
    coordinator.producer("shop", Shop({"order": "paid"}))
    about: dict[str, Any] = {"producer_group": "shop", "transaction_id": "t", "keys": "order"}
    first = wire.HalfRecord(topic="orders", msg_id="m1", body=b"order", **about)
    at = coordinator.append("half", 0, wire.encode_half(first))
    points = wire.HalfRecord(topic="points", msg_id="m2", body=b"+2 points", first_half=at, **about)
    part = coordinator.append("half", 1, wire.encode_half(points))
    op = wire.OpRecord(transaction_id="t", producer_group="shop", decision="COMMIT", half_messages=(at, part))
    coordinator.append("op", 0, wire.encode_op(op))
    coordinator.advance("20m")
    assert coordinator.outcome("t") == Outcome("DISCARDED", "REFUSED_PART", 0)
    assert coordinator.messages("orders") == []
    assert [each.source for each in coordinator.rejected] == ["half", "op"]
    assert coordinator.rejected[1].reason == "ALREADY_DISCARDED"
