"""The consumer for asyncio: its messages are awaited, and a handler is a coroutine function."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from commitlake.clients.consumer.consume import Consumer
from commitlake.clients.consumer.message import ReceivedMessage
from commitlake.clients.consumer.runner import PAUSES, Handler
from commitlake.clients.daemon_pool import DaemonPool
from commitlake.clients.renamed import renamed
from commitlake.errors import ArgumentError
from commitlake.protocol.durations import Duration
from commitlake.spark.process import stopped_by_signals

T = TypeVar("T")
_THREADS = 100
"""More calls than wait at a time: a `next` or a `run`, and the calls that close."""


class AsyncConsumer:
    """A `Consumer` that never blocks the event loop: `async with AsyncConsumer(commitlake.consume(...)) as messages`.

    `done` and `retry` of its messages are called without `await`, since they wait for nothing. Cancelling an
    `async for` loses no message: the next loop gets it.

    Args:
        consumer: reads the messages; nobody else may use it.

    Raises:
        ArgumentError: `consumer` is not what `commitlake.consume` returns.
    """

    def __init__(self, consumer: Consumer) -> None:
        given: object = consumer
        if not isinstance(given, Consumer):
            msg = f"consumer: {given!r:.100} is not allowed; give what commitlake.consume returns"
            raise ArgumentError(msg)
        self._consumer, self._turn = consumer, asyncio.Lock()  # for tasks that share the consumer
        self._pool = DaemonPool(_THREADS, "commitlake-async-consumer")
        self._asked: asyncio.Future[ReceivedMessage | None] | None = None

    def stop(self) -> None:
        """End the iteration; may be called in any thread."""
        self._consumer.stop()

    async def close(self) -> None:
        """Write the receipts and leave the group.

        Raises:
            ConsumerError: receipts could not be written; their messages are redelivered.
        """
        self.stop()
        await asyncio.shield(self._in_thread(self._consumer.close))

    async def __aenter__(self) -> Self:
        self._consumer.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        await asyncio.shield(self._in_thread(self._consumer.__exit__, kind, error, trace))

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Loop over the next messages, as `Consumer.__iter__`."""
        with stopped_by_signals(self._consumer.told):
            while (message := await self._next()) is not None:
                yield message

    @renamed(most="max_attempts")
    async def run(
        self,
        handler: Handler,
        *,
        threads: int = 1,
        max_attempts: int = 16,
        ordered: bool = False,
        pauses: Sequence[Duration] = PAUSES,
    ) -> None:
        """Call a handler for each message: a coroutine function on this event loop, any other in threads.

        Cancelling this call waits for the running handlers. The arguments and the errors are those of `Consumer.run`.
        """
        loop, options = asyncio.get_running_loop(), (threads, max_attempts, pauses, ordered)
        with stopped_by_signals(self._consumer.told):
            running = self._in_thread(self._consumer.run_on, loop, handler, *options)
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                self.stop()
                await running
                raise

    async def _next(self) -> ReceivedMessage | None:
        """The next message, None at the end; also the one that a cancelled call has asked for."""
        async with self._turn:
            if self._asked is None:
                self._asked = self._in_thread(next, self._consumer, None)
            await asyncio.wait([self._asked])
            asked, self._asked = self._asked, None
            return asked.result()

    def _in_thread(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Call in a daemon thread; a thread of `asyncio.to_thread` would keep the process alive."""
        return asyncio.wrap_future(self._pool.submit(call, *args))
