"""Starts and shutdowns of the producer for asyncio, while calls are under way or cancelled; Kafka is in memory."""

from __future__ import annotations

import asyncio
import enum
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.memory_kafka import Kafka, producer

from commitlake import AsyncTransactionMQProducer, LocalTransactionState, Message
from commitlake.clients.producer.on_loop import ProducerOnLoop
from commitlake.errors import FailedSendError, ProducerError
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position

COMMIT = LocalTransactionState.COMMIT_MESSAGE


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    made = Kafka()
    yield made
    made.go_on.set()


class Key(enum.StrEnum):
    A = "a"


class Orders:
    """Commits, in the loop."""

    async def execute_local_transaction(self, message: Message, arg: object) -> Any:
        return COMMIT


def begun(*calls: Any) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(call) for call in calls]


async def hanging(sender: AsyncTransactionMQProducer, kafka: Kafka) -> asyncio.Task[Any]:
    """A send that holds the only thread."""
    (task,) = begun(sender.send(Message("orders", b"hang")))
    await asyncio.to_thread(kafka.hangs.wait, 30)
    return task


def test_a_send_that_still_waits_at_a_shutdown_has_failed_and_is_not_cancelled(kafka: Kafka) -> None:
    async def serve() -> list[Any]:
        sender = producer(kafka)
        await sender.start()
        first = await hanging(sender, kafka)
        others = begun(*(sender.send(Message("orders", body)) for body in "ab"))
        await asyncio.sleep(0)
        await sender.shutdown(0.2)
        found = await asyncio.gather(*others, return_exceptions=True)
        kafka.go_on.set()
        await asyncio.wait_for(first, 30)
        return found

    for error in asyncio.run(serve()):
        assert isinstance(error, FailedSendError)
        assert "the producer was shut down before" in str(error)
    assert kafka.sent("messages") == [b"hang"]


def test_sends_of_one_sharding_key_go_out_in_the_order_they_were_begun(kafka: Kafka) -> None:
    bodies = [str(n).encode() for n in range(200)]
    keys: list[Any] = ["a", b"a", bytearray(b"a"), Key.A]  # one for Kafka

    async def serve() -> None:
        sender = producer(kafka, Orders(), threads=8)
        await sender.start()
        sent = [Message("orders", body, sharding_key=keys[at % 4]) for at, body in enumerate(bodies)]
        await asyncio.gather(*map(sender.send, sent))
        half = [sender.send_message_in_transaction(Message("orders", body, sharding_key=b"a")) for body in bodies]
        await asyncio.gather(*half, sender.send([Message("orders", b"x", sharding_key="a")]))
        await sender.shutdown(0.1)

    append = kafka.append

    def slow_or_not(topic: str, queue: int, record: wire.Encoded) -> Position:
        time.sleep(0.002 if record.value in bodies[::3] else 0)
        return append(topic, queue, record)

    kafka.append = slow_or_not  # type: ignore[method-assign]
    asyncio.run(serve())
    assert kafka.sent("messages")[:200] == bodies
    assert kafka.sent("half") == bodies


def test_a_batch_that_a_generator_makes_waits_for_its_sharding_key(kafka: Kafka) -> None:
    async def serve() -> None:
        sender = producer(kafka, threads=2)
        await sender.start()
        before = begun(sender.send(Message("orders", b"hang", sharding_key="a")))
        await asyncio.to_thread(kafka.hangs.wait, 30)
        behind = begun(sender.send(Message("orders", body, sharding_key="a") for body in "bc"))  # type: ignore[arg-type]
        await asyncio.wait(behind, timeout=0.2)
        kafka.go_on.set()
        await asyncio.gather(*before, *behind)
        await sender.shutdown(0.1)

    asyncio.run(serve())
    assert kafka.records[0][1] == b"hang"


@pytest.mark.parametrize("has_one", [True, False])
def test_a_send_for_which_no_thread_can_start_is_sent_by_another_or_never(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, has_one: bool
) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("commitlake-send"):
            msg = "can't start new thread"  # what CPython raises
            raise RuntimeError(msg)
        start(thread)

    async def serve() -> Any:
        sender = producer(kafka, threads=2)
        await sender.start()
        hung = [await hanging(sender, kafka)] if has_one else []
        monkeypatch.setattr(threading.Thread, "start", refused)
        (call,) = begun(sender.send(Message("orders", b"a")))
        await asyncio.sleep(0.1)
        kafka.go_on.set()
        found = (await asyncio.gather(call, *hung, return_exceptions=True))[0]
        monkeypatch.setattr(threading.Thread, "start", start)
        await sender.send(Message("orders", b"b"))
        await sender.shutdown(0.1)
        return found

    found = asyncio.run(serve())
    assert isinstance(found, FailedSendError) is not has_one
    assert kafka.sent("messages") == ([b"hang", b"a", b"b"] if has_one else [b"b"])


def test_a_send_that_comes_to_its_turn_after_a_shutdown_has_failed(kafka: Kafka) -> None:
    async def serve() -> list[Any]:
        sender = producer(kafka, Orders())
        await sender.start()
        transaction = sender.begin_transaction()
        calls = begun(transaction.send(Message("orders", b"hang")), transaction.send(Message("orders", b"late")))
        await asyncio.to_thread(kafka.hangs.wait, 30)
        await sender.shutdown(0.1)
        kafka.go_on.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    _, error = asyncio.run(serve())
    assert isinstance(error, FailedSendError)
    assert kafka.sent("half") == [b"hang"]


def test_a_decision_that_still_waits_at_a_shutdown_is_logged_as_lost(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    class Late(Orders):
        async def execute_local_transaction(self, message: Message, arg: Any) -> Any:
            arg.append(await hanging(self.sender, kafka))
            return COMMIT

        sender: AsyncTransactionMQProducer

    async def serve() -> LocalTransactionState:
        listener, hung = Late(), list[asyncio.Task[Any]]()
        listener.sender = sender = producer(kafka, listener)
        await sender.start()
        (call,) = begun(sender.send_message_in_transaction(Message("orders", b"half"), hung))
        await asyncio.to_thread(kafka.hangs.wait, 30)
        await asyncio.sleep(0.1)
        await sender.shutdown(0.1)
        result = await call
        kafka.go_on.set()
        await asyncio.wait_for(hung[0], 30)
        state: LocalTransactionState = result.local_transaction_state
        return state

    assert asyncio.run(serve()) is COMMIT
    assert kafka.sent("op") == []
    assert [text for text in caplog.messages if "did not acknowledge a decision" in text]


def test_a_decision_of_a_loop_that_ends_is_logged_as_lost(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    async def serve() -> None:
        sender = producer(kafka, Orders())
        await sender.start()
        transaction = sender.begin_transaction()
        await transaction.send(Message("orders", b"half"))
        await hanging(sender, kafka)
        begun(transaction.commit())
        await asyncio.sleep(0.1)

    asyncio.run(serve())
    assert kafka.sent("op") == []
    assert [text for text in caplog.messages if "did not acknowledge a decision" in text]


def test_what_a_listener_raises_is_in_the_result(kafka: Kafka) -> None:
    class Raises:
        async def execute_local_transaction(self, message: Message, arg: object) -> Any:
            raise ValueError("no stock")

    async def serve() -> Any:
        async with producer(kafka, Raises()) as sender:
            return await sender.send_message_in_transaction(Message("orders", "x"))

    found = asyncio.run(serve())
    assert (found.local_transaction_state.name, str(found.exception)) == ("UNKNOW", "no stock")


def test_a_plain_listener_that_still_waits_at_a_shutdown_has_said_nothing(kafka: Kafka) -> None:
    called, go_on = threading.Event(), threading.Event()

    class Plain:
        def execute_local_transaction(self, message: Message, arg: object) -> Any:
            called.set()
            go_on.wait(30)
            return COMMIT

    async def serve() -> list[Any]:
        sender = producer(kafka, Plain())
        await sender.start()
        calls = begun(*(sender.send_message_in_transaction(Message("orders", body)) for body in "ab"))
        await asyncio.to_thread(called.wait, 30)
        while len(kafka.sent("half")) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await sender.shutdown(0.1)
        go_on.set()
        return [result.local_transaction_state.name for result in await asyncio.gather(*calls)]

    assert asyncio.run(serve()) == ["COMMIT_MESSAGE", "UNKNOW"]


class Slow:
    """Kafka takes its time: what becomes of the producer within, in order.

    Attributes:
        fails: whether Kafka is away.
        may_start: until then a start takes its time.
        may_end: until then a shutdown does.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.fails = False
        self.may_start, self.may_end = threading.Event(), threading.Event()
        for name, note in (("prepare", self._prepare), ("start", self._start), ("shutdown", self._shutdown)):
            monkeypatch.setattr(ProducerOnLoop, name, self._noted(note, getattr(ProducerOnLoop, name)))

    def _noted(self, note: Any, call: Any) -> Any:
        return lambda producer, *args: note(producer, call, *args)

    def _prepare(self, producer: ProducerOnLoop, prepare: Any) -> None:
        self.calls.append("prepared")
        prepare(producer)

    def _start(self, producer: ProducerOnLoop, start: Any) -> None:
        self.may_start.wait(30)
        if self.fails:
            raise ProducerError("Kafka is away")
        start(producer)
        self.calls.append("started")

    def _shutdown(self, producer: ProducerOnLoop, shutdown: Any, *timeout: Any) -> None:
        self.may_end.wait(30)
        shutdown(producer, *timeout)
        self.calls.append("ended")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow(monkeypatch)
    made.may_end.set()
    yield made
    made.may_start.set()
    made.may_end.set()


async def cancelled(call: Any) -> None:
    """Begin a call, and give it up."""
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(call, 0.1)


def test_a_start_that_was_cancelled_is_ended_by_a_shutdown(kafka: Kafka, slow: Slow) -> None:
    async def serve() -> None:
        sender = producer(kafka)
        await cancelled(sender.start())
        asyncio.get_running_loop().call_later(0.2, slow.may_start.set)
        await sender.shutdown()

    asyncio.run(serve())
    assert slow.calls == ["prepared", "started", "ended"]


def test_a_block_that_was_cancelled_at_its_start_leaves_nothing_running(kafka: Kafka, slow: Slow) -> None:
    async def serve() -> None:
        sender = producer(kafka)
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.1), sender:
                pass
        slow.may_start.set()
        while "ended" not in slow.calls:
            await asyncio.sleep(0.01)

    asyncio.run(serve())
    assert slow.calls == ["prepared", "started", "ended"]


def test_a_shutdown_without_a_start_does_nothing(kafka: Kafka) -> None:
    sender = producer(kafka)
    asyncio.run(sender.shutdown())
    asyncio.run(sender.shutdown())


def test_two_starts_at_a_time_are_one(kafka: Kafka, slow: Slow) -> None:
    async def serve() -> None:
        sender = producer(kafka)
        starts = begun(sender.start(), sender.start())
        await asyncio.sleep(0.1)
        slow.may_start.set()
        await asyncio.gather(*starts)
        await sender.shutdown()

    asyncio.run(serve())
    assert slow.calls == ["prepared", "started", "ended"]


def test_a_cancelled_shutdown_goes_on_and_a_start_waits_for_it(kafka: Kafka, slow: Slow) -> None:
    async def serve() -> None:
        sender = producer(kafka)
        await sender.start()
        slow.may_end.clear()
        await cancelled(sender.shutdown())
        (again,) = begun(sender.start())
        await asyncio.sleep(0.1)
        slow.may_end.set()
        await again
        await sender.send(Message("orders", b"again"))
        await sender.shutdown()

    slow.may_start.set()
    asyncio.run(serve())
    assert slow.calls == ["prepared", "started", "ended"] * 2
    assert kafka.sent("messages") == [b"again"]


def test_a_start_that_fails_may_be_tried_again(kafka: Kafka, slow: Slow) -> None:
    async def serve() -> None:
        sender = producer(kafka)
        slow.fails = True
        with pytest.raises(ProducerError, match="Kafka is away"):
            await sender.start()
        with pytest.raises(FailedSendError, match="the producer is not running"):
            await sender.send(Message("orders", b""))
        slow.fails = False
        async with sender:
            await sender.send(Message("orders", b"again"))

    slow.may_start.set()
    asyncio.run(serve())
    assert kafka.sent("messages") == [b"again"]


def test_a_cancelled_start_that_fails_is_logged(kafka: Kafka, slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    async def serve() -> None:
        sender = producer(kafka)
        slow.fails = True
        await cancelled(sender.start())
        slow.may_start.set()
        await sender.shutdown()

    asyncio.run(serve())
    assert [text for text in caplog.messages if "Kafka is away" in text]


def test_a_producer_that_outlives_its_loop_is_ended_in_the_next_one(kafka: Kafka, slow: Slow) -> None:
    async def serve() -> None:
        await cancelled(sender.start())

    sender = producer(kafka)
    threading.Timer(0.3, slow.may_start.set).start()
    asyncio.run(serve())
    asyncio.run(sender.shutdown())
    assert slow.calls == ["prepared", "started", "ended"]


def test_a_task_of_a_closed_loop_holds_up_no_other(kafka: Kafka, slow: Slow) -> None:
    sender = producer(kafka)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(cancelled(sender.start()))
    loop.close()  # nobody has ended what was left in it
    slow.may_start.set()
    asyncio.run(asyncio.wait_for(sender.shutdown(), 10))


def test_what_a_start_left_in_a_closed_loop_is_ended_by_the_next_one(kafka: Kafka, slow: Slow) -> None:
    async def serve() -> None:
        async with sender:
            assert await sender.send(Message("orders", b"x"))

    sender = producer(kafka)
    slow.may_start.set()
    sender._producer.start()  # as the thread of a start does whose loop has ended
    asyncio.run(serve())
    assert slow.calls == ["started", "ended", "prepared", "started", "ended"]


def test_a_producer_that_runs_moves_to_the_loop_in_which_it_is_started_again(kafka: Kafka, slow: Slow) -> None:
    async def serve() -> None:
        async with sender:
            await sender.send(Message("orders", b"x"))

    sender = producer(kafka)
    slow.may_start.set()
    asyncio.run(sender.start())
    asyncio.run(serve())
    assert slow.calls == ["prepared", "started", "ended"] * 2
    assert kafka.sent("messages") == [b"x"]


def test_a_call_of_a_closed_loop_holds_up_no_shutdown(kafka: Kafka) -> None:
    sender = producer(kafka)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(sender.start())
    loop.run_until_complete(cancelled(sender.send(Message("orders", b"hang"))))
    loop.close()
    kafka.go_on.set()
    asyncio.run(asyncio.wait_for(sender.shutdown(60), 10))
