"""A producer that calls the application's listener and hooks on an event loop instead of in threads."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from commitlake.clients import tracing
from commitlake.clients.daemon_pool import DaemonPool
from commitlake.clients.producer import plain
from commitlake.clients.producer.check_reader import Calls
from commitlake.clients.producer.link import Done
from commitlake.clients.producer.listener import Verdict, failed, hook_call, judged
from commitlake.clients.producer.message import Message, MessageExt
from commitlake.clients.producer.record_maker import sharding_key_of
from commitlake.clients.producer.transaction import Ending, HalfMessage
from commitlake.clients.producer.transactional import TransactionMQProducer, unanswered
from commitlake.errors import ArgumentError, FailedSendError, ProducerError, RecordError, UndecidedError
from commitlake.protocol import wire

log = logging.getLogger(__name__)

T = TypeVar("T")
CHECKS = 5
"""Checks that are answered at a time, as many as the threads of a `TransactionMQProducer`."""
_SHUT = "the producer was shut down before the turn of this call, and sent nothing; you may send it again"
_NO_THREAD = "no thread could be started for this call, so nothing was sent; you may send it again"
_NOT_CALLED = "the producer was shut down before it made this call"


class LoopExecutor(Executor):
    """Awaits coroutine functions on an event loop, at most `most` at a time; no thread waits for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop, self._free = loop, asyncio.Semaphore(most)

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Await a call. Cancelling the future prevents a call that has not begun.

        Raises:
            RuntimeError: the loop is closed.
        """
        future: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._begin, future, partial(call, *args, **named))
        return future

    def _begin(self, future: Future[Any], call: Callable[[], Any]) -> None:
        task = self._loop.create_task(self._run(future, call))
        future.add_done_callback(lambda _: task)  # keeps the task alive: the loop refers to tasks only weakly

    async def _run(self, future: Future[Any], call: Callable[[], Any]) -> None:
        async with self._free:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(await call())
            except BaseException as error:  # the waiting caller gets whatever the application raises
                future.set_exception(error)


class SendLanes:
    """Makes sends of one sharding key on an event loop wait for the earlier ones."""

    def __init__(self) -> None:
        self._locks = WeakValueDictionary[bytes, asyncio.Lock]()  # an asyncio.Lock admits waiters in order

    def of(self, message: object) -> AbstractAsyncContextManager[None]:
        """A context that waits for the turn of a message; for a batch the first message's key counts."""
        first = message[0] if isinstance(message, Sequence) and message else message
        key = None
        with suppress(RecordError):  # the send raises it
            key = sharding_key_of(first) if isinstance(first, Message) else None
        return nullcontext() if key is None else self._locks.setdefault(key, asyncio.Lock())


class ProducerOnLoop(TransactionMQProducer):
    """A producer whose listener and hooks are called on an event loop; plain functions among them run in `executor`.

    Up to `threads` sends block threads of their own, each for a send's time-out at most, and never wait for the
    application. So the application may send from all its listener calls at once, and no send waits for another's
    listener. Without `executor` a pool of as many threads calls the plain functions. `options` are those of
    `TransactionMQProducer`.
    """

    def __init__(
        self, group: str, listener: Any, *, threads: int, executor: Executor | None = None, **options: Any
    ) -> None:
        super().__init__(group, listener, **options)
        if plain.whole(threads) is None or threads < 1:
            msg = f"threads: {plain.shown(threads)} is not allowed; allowed is a whole number from 1"
            raise ArgumentError(msg)
        self._threads, self._given = threads, executor
        self._loop: asyncio.AbstractEventLoop
        self._lanes = SendLanes()
        self._make_pools()

    @property
    def is_connected(self) -> bool:
        """Whether the producer is connected."""
        return self._running

    @property
    def is_on_this_loop(self) -> bool:
        """Whether the running loop is the one of `prepare`."""
        return self._loop is asyncio.get_running_loop()

    def prepare(self) -> None:
        """Bind the producer to the running event loop; to be called there, before `start` in a thread."""
        self._loop = asyncio.get_running_loop()
        self._executor = LoopExecutor(self._loop, CHECKS)
        self._lanes = SendLanes()
        self._make_pools()

    def _make_pools(self) -> None:
        self._senders = DaemonPool(self._threads, "commitlake-send")
        self._callers: Executor = self._given or DaemonPool(self._threads, "commitlake-call")

    def release(self) -> None:
        """Fail all waiting calls, after `shutdown`. A hanging call keeps its thread, which keeps no process alive."""
        self._senders.refuse(partial(FailedSendError, _SHUT))
        if isinstance(self._callers, DaemonPool):
            self._callers.refuse(partial(ProducerError, _NOT_CALLED))

    async def sending(self, call: Callable[[], T], message: Message | Sequence[Message] | None = None) -> T:
        """Run a call that sends `message` in a thread, after earlier ones with the same sharding key.

        Raises:
            FailedSendError: the producer was shut down before the call's turn, or no thread can be started.
        """
        async with self._lanes.of(message):
            return await asyncio.wrap_future(self._queued(call))

    def _queued(self, call: Callable[[], T]) -> Future[T]:
        try:
            return self._senders.submit(copy_context().run, call)  # the context carries the current span
        except RuntimeError as error:
            raise FailedSendError(_SHUT if self._senders.is_shut else f"{_NO_THREAD}: {error}") from error

    async def executed(self, half: HalfMessage, arg: object) -> Verdict:
        """Run the local transaction of a half message, and return the listener's verdict."""
        assert self._listener is not None
        span = tracing.executing(half.record)
        return await self._decided_by(span, self._listener.execute_local_transaction, half.message, arg)

    async def ended(self, ending: Ending, done: Done) -> None:
        """Call the hooks, send a decision, and wait until it is handed to Kafka's client; `done` gets the outcome."""
        context = ending.context(self.group, self._link.kafka.bootstrap_servers)
        for hook in self._hooks:
            try:
                await self._called(hook_call(hook), context)
            except Exception:
                log.warning("the end-transaction hook %r failed", hook, exc_info=True)
        try:
            op = self._queued(partial(self._send_op, ending, done))
        except FailedSendError as error:  # after a shutdown; a check asks again
            done(error)
            return
        op.add_done_callback(partial(_tell_unsent, done))
        with suppress(FailedSendError):
            await asyncio.wrap_future(op)

    def _check_plain(self, given: object, *names: str) -> None:
        """Allow coroutine functions, which are awaited here."""

    async def _called(self, function: Callable[..., Any], *args: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        found = await asyncio.wrap_future(self._callers.submit(copy_context().run, function, *args))
        return await found if inspect.isawaitable(found) else found

    async def _decided_by(
        self, span: AbstractContextManager[tracing.Traced], function: Callable[..., Any], *args: Any
    ) -> Verdict:
        try:
            with span as traced:
                return judged(await self._called(function, *args), traced)
        except UndecidedError:
            raise
        except Exception as error:
            return failed(error)

    async def _answer(self, check: wire.CheckRecord, calls: Calls, done: Done) -> None:  # type: ignore[override]
        message = MessageExt.from_check(check)
        found = self._known(check)
        if found is None:
            assert self._listener is not None
            with calls.one():
                try:
                    span, listener = tracing.checking(check), self._listener
                    found = await self._decided_by(span, listener.check_local_transaction, message)
                except UndecidedError as error:
                    unanswered(message, error, done)
                    return
                except BaseException as error:  # such as SystemExit: it concerns this check only
                    found = failed(error)
        await self.ended(self._answered(check, message, *found[:2]), done)

    def _end_with(self, ending: Ending, done: Done) -> None:
        """Call `ended` on the event loop; called in other threads."""
        asyncio.run_coroutine_threadsafe(self.ended(ending, done), self._loop)


def _tell_unsent(done: Done, op: Future[None]) -> None:
    """Report an op whose turn never came; any other reports its outcome itself."""
    if op.cancelled() or isinstance(op.exception(), FailedSendError):
        done(FailedSendError(_SHUT))
