"""The producer for asyncio: its sends are awaited, and a listener's methods may be coroutines."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Self, TypeVar

from commitlake.errors import MQClientException
from commitlake.producer.listener import TransactionListener
from commitlake.producer.message import Message, MessageExt, SendResult, TransactionSendResult
from commitlake.producer.transactional import TransactionMQProducer

T = TypeVar("T")


class AsyncTransactionMQProducer:
    """A `TransactionMQProducer` that never blocks the event loop: its calls run in threads.

    A listener's methods may be coroutines, which run on the loop, or plain methods, which run in a thread. Whoever
    cancels an awaited send gives up the result only: the send and its transaction go on, and their outcome is decided.

    Args:
        group: producer group.
        listener: runs and looks up local transactions.
        threads: sends that may be under way at a time.
        options: of `TransactionMQProducer`, by name.
    """

    def __init__(self, group: str, listener: object | None = None, *, threads: int = 32, **options: Any) -> None:
        self._listener = None if listener is None else _OnLoop(listener)
        self._producer = TransactionMQProducer(group, self._listener, **options)
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: set[Future[Any]] = set()

    async def start(self) -> None:
        """Connect, and begin to answer checks if there is a listener.

        Raises:
            MQClientException: Kafka is out of reach, or no coordinator has ever run there.
        """
        if self._listener is not None:
            self._listener.loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(self._threads, "commitlake-async")
        await self._call(self._producer.start)

    async def shutdown(self, timeout: int = 10_000) -> None:
        """Wait for the sends under way, also for cancelled ones, and disconnect, within `timeout` ms."""
        if self._pool is not None:
            until = time.monotonic() + timeout / 1_000
            await asyncio.to_thread(wait, set(self._under_way), timeout / 1_000)
            await self._call(lambda: self._producer.shutdown(max(0, round((until - time.monotonic()) * 1_000))))
            self._pool.shutdown(wait=False)
            self._pool = None

    async def send(self, message: Message | Sequence[Message], timeout: int | None = None) -> SendResult:
        """Send one message, or several as one batch; see `DefaultMQProducer.send`."""
        return await self._call(lambda: self._producer.send(message, timeout))

    async def send_message_in_transaction(self, message: Message, arg: object = None) -> TransactionSendResult:
        """Send a half message, run the local transaction, send its decision; see `TransactionMQProducer`."""
        return await self._call(lambda: self._producer.send_message_in_transaction(message, arg))

    async def recall(self, recall_handle: str) -> str:
        """Recall a delayed message; see `DefaultMQProducer.recall`."""
        return await self._call(lambda: self._producer.recall(recall_handle))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def _call(self, call: Callable[[], T]) -> T:
        if self._pool is None:
            msg = "the producer is not running; use it as `async with`, or await start()"
            raise MQClientException(msg)
        future = self._pool.submit(call)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return await asyncio.wrap_future(future)


class _OnLoop(TransactionListener):
    """Runs the coroutines of a listener on the event loop, for a producer that calls it in its own threads."""

    def __init__(self, listener: object) -> None:
        self._listener: Any = listener
        self.loop: asyncio.AbstractEventLoop | None = None

    def execute_local_transaction(self, message: Message, arg: object) -> Any:
        return self._result(self._listener.execute_local_transaction(message, arg))

    def check_local_transaction(self, message: MessageExt) -> Any:
        return self._result(self._listener.check_local_transaction(message))

    def _result(self, found: Any) -> Any:
        if not inspect.iscoroutine(found):
            return found
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(found, self.loop).result()
