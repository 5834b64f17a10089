"""The producer in an asyncio service: a small web server whose handlers send in transactions."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.support.namespace import COMMIT, ROLLBACK, Namespace, check
from tests.support.polling import awaited, patience

from commitlake import AsyncTransactionMQProducer, Message
from commitlake.errors import FailedSendError, ProducerError, UncertainSendError


class Orders:
    """A local transaction that waits as a database driver for asyncio does."""

    def __init__(self) -> None:
        self.loops: set[asyncio.AbstractEventLoop] = set()

    async def execute_local_transaction(self, message: Message, arg: object) -> Any:
        self.loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0.5)
        if message.keys == "/broken":
            raise RuntimeError("no such table")
        return COMMIT if arg == "paid" else ROLLBACK

    async def check_local_transaction(self, message: Message) -> Any:
        await asyncio.sleep(0)
        return ROLLBACK


def producer(kafka: Namespace, listener: object | None, **more: Any) -> AsyncTransactionMQProducer:
    where: dict[str, Any] = {"bootstrap_servers": kafka.servers, "topic_prefix": kafka.prefix}
    return AsyncTransactionMQProducer("group", listener, **where, **more)


async def request(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST {path} HTTP/1.0\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode().split("\r\n\r\n")[1]


async def longest_pause(stop: asyncio.Event) -> float:
    """The longest time for which the loop did nothing."""
    longest, last = 0.0, time.monotonic()
    while not stop.is_set():
        await asyncio.sleep(0.005)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    return longest


def test_a_web_handler_sends_in_transactions_and_the_loop_goes_on(kafka: Namespace) -> None:
    async def serve() -> tuple[list[str], float, float]:
        async with producer(kafka, orders) as sender:

            async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                path = (await reader.readline()).decode().split()[1]
                message = Message("orders", path, keys=path)
                result = await sender.send_message_in_transaction(message, "paid" if path < "/5" else "open")
                writer.write(f"HTTP/1.0 200 OK\r\n\r\n{result.local_transaction_state.name}".encode())
                writer.close()

            async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
                port, stop = server.sockets[0].getsockname()[1], asyncio.Event()
                watch = asyncio.create_task(longest_pause(stop))
                begun = time.monotonic()
                answers = await asyncio.gather(*(request(port, f"/{number}") for number in range(10)))
                took = time.monotonic() - begun
                stop.set()
                return answers, took, await watch

    orders = Orders()
    answers, took, pause = asyncio.run(serve())
    assert answers == ["COMMIT_MESSAGE"] * 5 + ["ROLLBACK_MESSAGE"] * 5
    assert took < 3, "ten requests of half a second each, one after the other, take five"
    assert pause < 0.4, "a send in the loop itself waits for the local transaction"
    assert len(orders.loops) == 1
    assert sorted(op.decision for op in kafka.ops()) == ["COMMIT"] * 5 + ["ROLLBACK"] * 5


@awaited
async def test_a_coroutine_answers_checks_and_one_that_fails_is_unknown(kafka: Namespace) -> None:
    async with producer(kafka, Orders()) as sender:
        result = await sender.send_message_in_transaction(Message("orders", b"", keys="/broken"))
        assert result.local_transaction_state.value == "UNKNOWN"
        kafka.ask(check())
        while not (await asyncio.to_thread(kafka.answers)):
            await asyncio.sleep(0.1)
    assert [op.decision for op in kafka.answers()] == ["ROLLBACK"]
    (direct,) = [op for op in kafka.ops() if not op.from_check]
    assert (direct.decision, direct.remark) == ("UNKNOWN", "RuntimeError: no such table")


@awaited
async def test_a_cancelled_send_is_decided_all_the_same(kafka: Namespace) -> None:
    async with producer(kafka, Orders()) as sender:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(sender.send_message_in_transaction(Message("orders", b""), "paid"), 0.2)
    assert [op.decision for op in kafka.wait_for_ops(1)] == ["COMMIT"]


@awaited
async def test_other_sends_are_awaited_too_and_need_a_running_producer(kafka: Namespace) -> None:
    sender = producer(kafka, None)
    with pytest.raises(ProducerError, match="the producer is not running"):
        await sender.send(Message("orders", b""))
    async with sender:
        sent = await sender.send(Message("orders", b"", delay_seconds=60))
        assert sent.recall_handle is not None
        later = await sender.reschedule(sent.recall_handle, Message("orders", b"new", delay_seconds=90))
        assert await sender.recall(str(later.recall_handle)) == later.msg_id
        assert (await sender.send([Message("orders", b"a"), Message("orders", b"b")])).msg_id.count(",") == 1
        with pytest.raises(ProducerError) as error:
            await sender.send(Message("", b""))
        assert error.value.reason == "MISSING_REAL_TOPIC"


class Chain:
    """A local transaction that sends by the same producer, as a coroutine or as a plain method in a thread."""

    def __init__(self, is_plain: bool = False) -> None:
        self.sender: Any = None
        self.loop: Any = None
        if is_plain:
            self.execute_local_transaction = self.plainly  # type: ignore[method-assign]

    async def execute_local_transaction(self, message: Message, arg: object) -> Any:
        await self.sender.send(Message("audit", message.body))
        return COMMIT

    def plainly(self, message: Message, arg: object) -> Any:
        asyncio.run_coroutine_threadsafe(self.sender.send(Message("audit", message.body)), self.loop).result(60)
        return COMMIT

    async def check_local_transaction(self, message: Message) -> Any:
        await self.sender.send(Message("audit", message.body))
        return COMMIT


@pytest.mark.parametrize("is_plain", [False, True], ids=["coroutine", "plain"])
@awaited
async def test_listeners_that_send_by_the_same_producer_never_hang(kafka: Namespace, is_plain: bool) -> None:
    chain = Chain(is_plain)
    chain.loop = asyncio.get_running_loop()
    async with producer(kafka, chain, threads=4, send_msg_timeout=20) as chain.sender:
        sends = [chain.sender.send_message_in_transaction(Message("orders", f"{at}")) for at in range(40)]
        await asyncio.gather(*sends)
    assert len(kafka.read("messages")) == 40
    assert [op.decision for op in kafka.ops()] == ["COMMIT"] * 40


@awaited
async def test_checks_that_send_by_the_same_producer_never_hang(kafka: Namespace) -> None:
    chain = Chain()
    kafka.ask(*(check(f"m{at}", check_id=f"0-{at}-0-1") for at in range(40)))
    async with producer(kafka, chain, threads=2, send_msg_timeout=20) as chain.sender:
        while len({op.transaction_id for op in await asyncio.to_thread(kafka.answers)}) < 40:
            await asyncio.sleep(0.1)


def test_no_thread_waits_while_listeners_await(kafka: Namespace) -> None:
    async def serve() -> tuple[float, float]:
        async with producer(kafka, Orders(), threads=2, send_msg_timeout=20) as sender:
            await sender.send(Message("orders", b"warm"))
            begun = time.monotonic()
            slow = [sender.send_message_in_transaction(Message("orders", b"", keys="/"), "paid") for _ in range(40)]
            waiting = asyncio.gather(*slow)
            await asyncio.sleep(0.1)
            plain = time.monotonic()
            await sender.send(Message("orders", b"beside"))
            plain = time.monotonic() - plain
            await waiting
            return time.monotonic() - begun, plain

    whole, plain = asyncio.run(serve())
    assert whole < 5 * patience(), "40 of half a second each, two at a time, take ten"
    assert plain < 2 * patience()


@awaited
async def test_a_send_that_waits_for_its_turn_is_sent_though_it_is_cancelled(kafka: Namespace) -> None:
    async with producer(kafka, Orders(), threads=1, send_msg_timeout=20) as sender:
        plain = [asyncio.create_task(sender.send(Message("orders", f"{at}"))) for at in range(20)]
        paid = asyncio.create_task(sender.send_message_in_transaction(Message("orders", b"20"), "paid"))
        await asyncio.sleep(0)
        for each in [*plain, paid]:
            each.cancel()
        await asyncio.gather(*plain, paid, return_exceptions=True)
        assert all(each.cancelled() for each in [*plain, paid])
    assert sorted(int(record.value) for record in kafka.read("messages")) == list(range(20))
    assert [op.decision for op in kafka.ops()] == ["COMMIT"]


@awaited
async def test_a_transaction_of_several_messages_is_awaited(kafka: Namespace) -> None:
    seen: list[Any] = []

    async def awaited_hook(context: Any) -> None:
        await asyncio.sleep(0)
        seen.append(context.state)

    async with producer(kafka, Orders()) as sender:
        sender.register_end_transaction_hook(awaited_hook)
        sender.register_end_transaction_hook(lambda context: seen.append(context.state))
        async with sender.begin_transaction() as transaction:
            first = await transaction.send(Message("orders", b"1"))
            await transaction.send(Message("points", b"2"))
            assert transaction.transaction_id == first.transaction_id
        with pytest.raises(ZeroDivisionError):
            async with sender.begin_transaction() as transaction:
                await transaction.send(Message("orders", b"3"))
                raise ZeroDivisionError
        with pytest.raises(ProducerError, match="ended"):
            await transaction.commit()
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.3), sender.begin_transaction() as transaction:
                await transaction.send(Message("orders", b"4"))
                await asyncio.sleep(10)
    assert sorted((op.decision, len(op.half_messages)) for op in kafka.ops()) == [
        ("COMMIT", 2),
        ("ROLLBACK", 1),
        ("ROLLBACK", 1),
    ]
    assert seen == [COMMIT] * 2 + [ROLLBACK] * 4


def test_a_shutdown_gives_up_a_listener_that_hangs_and_may_be_followed_by_a_start(kafka: Namespace) -> None:
    class Hung(Orders):
        async def check_local_transaction(self, message: Message) -> Any:
            await asyncio.sleep(1_000)

    async def serve() -> float:
        kafka.ask(check())
        sender = producer(kafka, Hung())
        await sender.start()
        await asyncio.sleep(2)
        begun = time.monotonic()
        await sender.shutdown(2)
        took = time.monotonic() - begun
        async with sender:
            await sender.send(Message("orders", b"again"))
        return took

    assert asyncio.run(asyncio.wait_for(serve(), 90)) < 6 * patience()
    assert [record.value for record in kafka.read("messages")] == [b"again"]


def test_a_send_that_a_shutdown_overtakes_fails_as_one_that_may_be_sent_again(kafka: Namespace) -> None:
    async def serve() -> list[Any]:
        sender = producer(kafka, None)
        await sender.start()
        sends = [asyncio.create_task(sender.send(Message("orders", b"body"))) for _ in range(3_000)]
        await asyncio.sleep(0.2)
        await sender.shutdown(0.3)
        return await asyncio.gather(*sends, return_exceptions=True)

    for _ in range(3):
        failed = [each for each in asyncio.run(serve()) if isinstance(each, BaseException)]
        assert failed
        assert {type(error) for error in failed} <= {FailedSendError, UncertainSendError}
