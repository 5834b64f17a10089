"""The producer in an asyncio service: a small web server whose handlers send in transactions."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.support.namespace import COMMIT, ROLLBACK, Namespace, check

from commitlake import AsyncTransactionMQProducer, Message
from commitlake.errors import MQClientException


@pytest.fixture
def kafka(broker: Any) -> Namespace:
    namespace = Namespace(broker)
    namespace.publish()
    return namespace


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


def producer(kafka: Namespace, listener: object | None) -> AsyncTransactionMQProducer:
    return AsyncTransactionMQProducer("group", listener, bootstrap_servers=kafka.servers, topic_prefix=kafka.prefix)


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


def test_a_coroutine_answers_checks_and_one_that_fails_is_unknown(kafka: Namespace) -> None:
    async def serve() -> None:
        async with producer(kafka, Orders()) as sender:
            result = await sender.send_message_in_transaction(Message("orders", b"", keys="/broken"))
            assert result.local_transaction_state.value == "UNKNOWN"
            kafka.ask(check())
            while not (await asyncio.to_thread(kafka.answers)):
                await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(serve(), 60))
    assert [op.decision for op in kafka.answers()] == ["ROLLBACK"]
    (direct,) = [op for op in kafka.ops() if not op.from_check]
    assert (direct.decision, direct.remark) == ("UNKNOWN", "RuntimeError: no such table")


def test_a_cancelled_send_is_decided_all_the_same(kafka: Namespace) -> None:
    async def serve() -> None:
        async with producer(kafka, Orders()) as sender:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(sender.send_message_in_transaction(Message("orders", b""), "paid"), 0.2)

    asyncio.run(serve())
    assert [op.decision for op in kafka.wait_for_ops(1)] == ["COMMIT"]


def test_other_sends_are_awaited_too_and_need_a_running_producer(kafka: Namespace) -> None:
    async def serve() -> None:
        sender = producer(kafka, None)
        with pytest.raises(MQClientException, match="the producer is not running"):
            await sender.send(Message("orders", b""))
        async with sender:
            sent = await sender.send(Message("orders", b"", delay_seconds=60))
            assert sent.recall_handle is not None
            assert await sender.recall(sent.recall_handle) == sent.msg_id
            assert (await sender.send([Message("orders", b"a"), Message("orders", b"b")])).msg_id.count(",") == 1
            with pytest.raises(MQClientException) as error:
                await sender.send(Message("", b""))
            assert error.value.reason == "MISSING_REAL_TOPIC"

    asyncio.run(serve())
