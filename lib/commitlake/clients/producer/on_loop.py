"""What an asyncio producer does on its event loop: the calls of the application, in coroutines and not in threads."""

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
from commitlake.clients.producer.check_progress import Calls
from commitlake.clients.producer.ending import Ending
from commitlake.clients.producer.link import Done
from commitlake.clients.producer.listener import Verdict, failed, hook_call, judged
from commitlake.clients.producer.message import Message, MessageExt
from commitlake.clients.producer.transaction import HalfMessage
from commitlake.clients.producer.transactional import TransactionMQProducer
from commitlake.errors import FailedSend, MQClientException, RecordError
from commitlake.protocol import wire

log = logging.getLogger(__name__)

T = TypeVar("T")
CHECKS = 5
"""Checks that may be asked at a time, as many as the threads of a `TransactionMQProducer` ask."""
_SHUT = "the producer was shut down before the turn of this call came, so nothing was sent; it may be sent again"
_NO_THREAD = "there is no thread for this call, so nothing was sent; it may be sent again"
_NOT_CALLED = "the producer was shut down before this was called"


class LoopExecutor(Executor):
    """Awaits coroutine functions on an event loop, so many at a time; no thread waits for them.

    Args:
        loop: where they run.
        most: how many may be under way.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop, self._free = loop, asyncio.Semaphore(most)

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Await a call; cancelling the future keeps one that has not begun from beginning.

        Raises:
            RuntimeError: the loop is closed.
        """
        future: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._begin, future, partial(call, *args, **named))
        return future

    def _begin(self, future: Future[Any], call: Callable[[], Any]) -> None:
        task = self._loop.create_task(self._run(future, call))
        future.add_done_callback(lambda _: task)  # the loop itself holds tasks weakly

    async def _run(self, future: Future[Any], call: Callable[[], Any]) -> None:
        async with self._free:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(await call())
            except BaseException as error:  # whatever the application raises is told to who waits
                future.set_exception(error)


class SendLanes:
    """What sends of one sharding key wait for on an event loop: the end of those that came before."""

    def __init__(self) -> None:
        self._locks = WeakValueDictionary[bytes, asyncio.Lock]()  # which let in who waits in the order they came

    def of(self, message: object) -> AbstractAsyncContextManager[None]:
        """The turn of a message, or of a batch by its first one."""
        first = message[0] if isinstance(message, Sequence) and message else message
        key = None
        with suppress(RecordError):  # which the send raises
            key = plain.sharding_key_of(first) if isinstance(first, Message) else None
        return nullcontext() if key is None else self._locks.setdefault(key, asyncio.Lock())


class ProducerOnLoop(TransactionMQProducer):
    """A producer whose listener and hooks are called on an event loop.

    Sends block threads of their own, each for a send's time-out at most, and wait for nothing of the application. So
    the application may send from a listener, from all of them at once, and no send waits for another's listener.

    Args:
        group: producer group.
        listener: its methods are coroutine functions, or plain ones, which run in threads.
        threads: sends, and calls of plain methods, that may be under way at a time.
        executor: runs plain methods, in place of a pool of so many threads.
        options: of `TransactionMQProducer`, by name.
    """

    def __init__(
        self, group: str, listener: Any, *, threads: int, executor: Executor | None = None, **options: Any
    ) -> None:
        super().__init__(group, listener, **options)
        if plain.whole(threads) is None or threads < 1:
            msg = f"threads: {plain.shown(threads)} is not allowed; allowed is a whole number from 1"
            raise MQClientException(msg)
        self._threads, self._given = threads, executor
        self._loop: asyncio.AbstractEventLoop
        self._lanes = SendLanes()
        self._make_pools()

    @property
    def is_connected(self) -> bool:
        """Whether a start has connected, and no shutdown has disconnected since."""
        return self._running

    @property
    def is_on_this_loop(self) -> bool:
        """Whether the loop that runs is the one for which it was prepared."""
        return self._loop is asyncio.get_running_loop()

    def prepare(self) -> None:
        """To be called on the event loop, before `start` in a thread."""
        self._loop = asyncio.get_running_loop()
        self._executor = LoopExecutor(self._loop, CHECKS)
        self._lanes = SendLanes()
        self._make_pools()

    def _make_pools(self) -> None:
        self._senders = DaemonPool(self._threads, "commitlake-send")
        self._callers: Executor = self._given or DaemonPool(self._threads, "commitlake-call")

    def release(self) -> None:
        """After `shutdown`; a call that hangs keeps its thread, and that keeps no process alive."""
        self._senders.refuse(partial(FailedSend, _SHUT))
        if isinstance(self._callers, DaemonPool):
            self._callers.refuse(partial(MQClientException, _NOT_CALLED))

    async def sending(self, call: Callable[[], T], message: Message | Sequence[Message] | None = None) -> T:
        """Runs a call that sends, in a thread.

        Args:
            call: sends.
            message: what it sends, which goes out after those with the same sharding key that came before it.

        Raises:
            FailedSend: the producer was shut down before its turn came, or has no thread.
        """
        async with self._lanes.of(message):
            return await asyncio.wrap_future(self._queued(call))

    def _queued(self, call: Callable[[], T]) -> Future[T]:
        try:
            return self._senders.submit(copy_context().run, call)  # the span that is current here is so there
        except RuntimeError as error:
            raise FailedSend(_SHUT if self._senders.is_shut else f"{_NO_THREAD}: {error}") from error

    async def executed(self, half: HalfMessage, arg: object) -> Verdict:
        """Runs the local transaction."""
        assert self._listener is not None
        span = tracing.executing(half.record)
        return await self._decided_by(span, self._listener.execute_local_transaction, half.message, arg)

    async def ended(self, ending: Ending, done: Done) -> None:
        """Calls the hooks, and sends a decision."""
        context = ending.context(self.group, self._link.kafka.bootstrap_servers)
        for hook in self._hooks:
            try:
                await self._called(hook_call(hook), context)
            except Exception:
                log.warning("the end-transaction hook %r failed", hook, exc_info=True)
        try:
            op = self._queued(partial(self._send_op, ending, done))
        except FailedSend as error:  # after a shutdown; a check asks again
            done(error)
            return
        op.add_done_callback(partial(_tell_unsent, done))
        with suppress(FailedSend):
            await asyncio.wrap_future(op)

    def _check_plain(self, given: object, *names: str) -> None:
        """They are awaited here."""

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
                except BaseException as error:  # CancelledError, SystemExit: of this check only
                    found = failed(error)
        await self.ended(self._answered(check, message, *found[:2]), done)

    def _end_with(self, ending: Ending, done: Done) -> None:
        """From a thread."""
        asyncio.run_coroutine_threadsafe(self.ended(ending, done), self._loop)


def _tell_unsent(done: Done, op: Future[None]) -> None:
    """Of an op that did not come to its turn; one that did tells its outcome itself."""
    if op.cancelled() or isinstance(op.exception(), FailedSend):
        done(FailedSend(_SHUT))
