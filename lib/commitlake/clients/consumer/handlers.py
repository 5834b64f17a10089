"""Handlers of messages: plain functions, or coroutine functions, whose calls are awaited on an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from commitlake.clients.consumer.message import ReceivedMessage
from commitlake.errors import ConsumerError

Handler = Callable[[ReceivedMessage], object]


@contextmanager
def awaiting(handler: Handler, loop: asyncio.AbstractEventLoop | None) -> Iterator[Handler]:
    """The handler as threads call it: a call returns when the work, awaited or not, has ended.

    Args:
        handler: a function, or a coroutine function.
        loop: the event loop that awaits coroutines; None for an own loop, which starts with the first coroutine.

    Raises:
        ConsumerError: `handler` is not callable, or a generator function.
    """
    if not callable(handler) or inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise not_called(handler)
    own = _OwnLoop()

    def call(message: ReceivedMessage) -> object:
        found = handler(message)
        if isinstance(found, Future):  # the handler gave the work to a pool of its own
            return found.result()
        if not inspect.isawaitable(found):
            return found
        return asyncio.run_coroutine_threadsafe(_awaited(found), loop or own.get()).result()

    try:
        yield call
    finally:
        own.end()


def not_called(given: object) -> ConsumerError:
    """The error for a handler whose call does nothing, so that messages would count as done without any work."""
    return ConsumerError(f"handler: {given!r:.200} would handle nothing; give a function or a coroutine function")


async def _awaited(found: Awaitable[object]) -> object:
    return await found


class _OwnLoop:
    """An event loop in a thread of its own, from the first `get` to `end`, which cancels the tasks that are left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._begun is None:
                self._begun = Future()
                threading.Thread(target=asyncio.run, args=[self._serve()], name="commitlake-loop", daemon=True).start()
        return self._begun.result()[0]

    async def _serve(self) -> None:
        is_over = asyncio.Event()
        assert self._begun is not None
        self._begun.set_result((asyncio.get_running_loop(), is_over))
        await is_over.wait()

    def end(self) -> None:
        if self._begun is not None:
            loop, is_over = self._begun.result()
            loop.call_soon_threadsafe(is_over.set)
