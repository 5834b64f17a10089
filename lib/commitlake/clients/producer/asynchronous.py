"""The producer for asyncio: its sends are awaited, and a listener's methods may be coroutines."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import Any, Self, TypeVar

from commitlake.clients.asyncio_sql import awaited
from commitlake.clients.producer.database_transaction import DatabaseTransaction, sql_for
from commitlake.clients.producer.default import kafka_of, listed
from commitlake.clients.producer.listener import failed
from commitlake.clients.producer.message import LocalTransactionState, Message, SendResult, TransactionSendResult
from commitlake.clients.producer.on_loop import ProducerOnLoop
from commitlake.clients.producer.plain import milliseconds
from commitlake.clients.producer.record_maker import Proof
from commitlake.clients.producer.transaction import Ending, HalfMessage, Transaction
from commitlake.clients.producer.transactional import NO_LISTENER, log_lost, sent_result
from commitlake.config import Conf
from commitlake.errors import FailedSendError, ProducerError, RefusedSendError
from commitlake.protocol.durations import Duration

log = logging.getLogger(__name__)

T = TypeVar("T")


class AsyncTransactionMQProducer:
    """A `TransactionMQProducer` that never blocks the event loop.

    The methods of a listener, and hooks, may be coroutine functions, which run on the loop without a thread, or plain
    functions, which run in a thread. They may send with this same producer.

    Cancelling an awaited call gives up only its result: a waiting send is still sent, and a transaction continues to
    its decision. `shutdown` waits for cancelled calls, too.

    Calls with the same sharding key send one by one, in the order of the calls. All others send concurrently.

    Args:
        group: producer group.
        listener: an object with the methods of a `TransactionListener`. Its class need not be a subclass: a type
            checker rejects coroutine functions there.
        threads: sends that may run at a time.
        options: arguments of `TransactionMQProducer`, by name; `executor` runs the plain functions.
    """

    def __init__(self, group: str, listener: object | None = None, *, threads: int = 32, **options: Any) -> None:
        self._producer = ProducerOnLoop(group, listener, threads=threads, **options)
        self._is_running = False
        self._under_way: set[asyncio.Task[Any]] = set()
        self._switching: set[asyncio.Task[None]] = set()

    @classmethod
    def from_conf(cls, conf: Conf, group: str, listener: object | None = None, **more: Any) -> Self:
        """Return a producer for the Kafka of a configuration; see `DefaultMQProducer.from_conf`."""
        return cls(group, listener, **kafka_of(conf), **more)

    async def start(self) -> None:
        """Connect, and begin to answer checks if there is a listener; does nothing when it is running.

        A cancelled start continues, until `shutdown`.

        Raises:
            ProducerError: Kafka is out of reach, or no coordinator has ever run there.
        """
        await _awaited(self._switched(self._start))

    async def shutdown(self, timeout: Duration = 10) -> None:
        """Wait for running calls, also for cancelled ones, and disconnect, within `timeout`.

        A running start, also a cancelled one, ends first; `start_timeout` bounds it.
        """
        until = time.monotonic() + milliseconds("timeout", timeout) / 1_000
        await _awaited(self._switched(partial(self._shutdown, until)))

    def set_transaction_listener(self, listener: object) -> None:
        """Set the listener, also while running."""
        self._producer.set_transaction_listener(listener)  # type: ignore[arg-type]

    def register_end_transaction_hook(self, hook: Any) -> None:
        """Call `hook`, a callable or an object with `end_transaction`, before every decision that is sent."""
        self._producer.register_end_transaction_hook(hook)

    async def send(self, message: Message | Sequence[Message], timeout: Duration | None = None) -> SendResult:
        """Send one message, or several as one batch; see `DefaultMQProducer.send`."""
        message = message if isinstance(message, Message) else listed(message)
        return await self._kept(self._producer.sending, lambda: self._producer.send(message, timeout), message)

    async def send_message_in_transaction(self, message: Message, arg: object = None) -> TransactionSendResult:
        """Send a half message, run the local transaction, send its decision; see `TransactionMQProducer`."""
        return await self._kept(self._in_transaction, message, arg)

    async def recall(self, recall_handle: str) -> str:
        """Recall a delayed message; see `DefaultMQProducer.recall`."""
        return await self._kept(self._producer.sending, lambda: self._producer.recall(recall_handle))

    async def reschedule(self, recall_handle: str, message: Message, timeout: Duration | None = None) -> SendResult:
        """Send a message in place of a delayed one; see `DefaultMQProducer.reschedule`."""
        call = partial(self._producer.reschedule, recall_handle, message, timeout)
        return await self._kept(self._producer.sending, call, message)

    def begin_transaction(self, *, is_answered: bool = False, database: object = None) -> AsyncTransaction:
        """Begin a transaction of several half messages, for `async with`; see `TransactionMQProducer`.

        Args:
            is_answered: a rule of the coordinator answers the checks.
            database: an `AsyncSession` or `AsyncConnection` of SQLAlchemy, or a connection of asyncpg or psycopg 3 for
                asyncio, whose transaction ends with this one.

        Raises:
            ArgumentError: `database` is none of these, or is left out where the listener looks at rows only.
        """
        self._producer.warn_if_unanswered(is_answered, database)
        if database is None:
            return AsyncTransaction(self._producer, self._kept)
        return AsyncDatabaseTransaction(self._producer, self._to_the_end, database)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except asyncio.CancelledError:  # no `__aexit__` follows, and the start continues, so end it here
            self._switched(partial(self._shutdown, time.monotonic())).add_done_callback(_log_failed)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    def _switched(self, switch: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Begin a start or a shutdown, which runs after the earlier ones have ended."""
        return _begun(_after(_of_this_loop(self._switching), switch), self._switching)

    async def _start(self) -> None:
        if not self._is_running or not self._producer.is_on_this_loop:
            self._is_running = False
            if self._producer.is_connected:  # by a start on a loop that has ended, where checks would be answered
                await asyncio.to_thread(self._producer.shutdown, 0)
                self._producer.release()
            self._producer.prepare()
            await asyncio.to_thread(self._producer.start)
            self._is_running = True

    async def _shutdown(self, until: float) -> None:
        if under_way := _of_this_loop(self._under_way):
            await asyncio.wait(under_way, timeout=max(0.0, until - time.monotonic()))
        self._is_running = False
        # Also without a finished start on this loop: a cancelled start may have connected after its loop ended.
        await asyncio.to_thread(lambda: self._producer.shutdown(timedelta(seconds=max(0.0, until - time.monotonic()))))
        self._producer.release()

    async def _in_transaction(self, message: Message, arg: object) -> TransactionSendResult:
        producer = self._producer
        if producer.listener is None:
            raise RefusedSendError(NO_LISTENER)
        half = await producer.sending(lambda: producer.send_half(message), message)
        try:
            decision = await producer.executed(half, arg)
        except BaseException as error:  # such as CancelledError: passed on, but the decision is still open
            await producer.ended(Ending.of([half], *failed(error)[:2]), log_lost)
            raise
        await producer.ended(Ending.of([half], *decision[:2]), log_lost)
        return sent_result(half, decision)

    async def _kept(self, begin: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Await a call that continues when the awaiting task is cancelled."""
        if not self._is_running:
            msg = "the producer is not running; use it as `async with`, or await start()"
            raise FailedSendError(msg)
        return await _awaited(_begun(begin(*args), self._under_way))

    async def _to_the_end(self, begin: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Await a call to its end, also when the awaiting task is cancelled, or the producer was shut down.

        The call uses the connection of that task, which would else close it beside the call: a commit that comes after
        the rollback of the close commits nothing, without an error.
        """
        task, cancelled = _begun(begin(*args), self._under_way), None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is None:
            return task.result()
        _log_failed(task)
        raise cancelled


class AsyncTransaction:
    """Made by `AsyncTransactionMQProducer.begin_transaction`; see `Transaction`.

    Args:
        producer: sends the half messages and the decision.
        kept: awaits a call that continues when the awaiting task is cancelled.
    """

    def __init__(self, producer: ProducerOnLoop, kept: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._producer, self._kept = producer, kept
        self._inner = Transaction(producer.send_half, self._note)
        self._ending: Ending | None = None
        self._turn = asyncio.Lock()

    @property
    def transaction_id(self) -> str | None:
        """Id of the transaction, None before its first message."""
        return self._inner.transaction_id

    async def send(self, message: Message) -> SendResult:
        """Send one more half message; see `Transaction.send`."""
        result: SendResult = await self._kept(self._send, message)
        return result

    async def commit(self) -> None:
        """Make all messages visible; see `Transaction.commit`."""
        await self._kept(self._end, self._inner.commit)

    async def rollback(self) -> None:
        """Drop all messages; see `Transaction.rollback`."""
        await self._kept(self._end, self._inner.rollback)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._kept(self._end, lambda: self._inner.__exit__(kind, error, trace))

    async def _send(self, message: Message) -> SendResult:
        async with self._turn:
            return await self._producer.sending(lambda: self._inner.send(message), message)

    async def _end(self, end: Callable[[], None]) -> None:
        async with self._turn:
            try:
                await self._called(end)
            finally:
                ending, self._ending = self._ending, None
                if ending:
                    await self._producer.ended(ending, log_lost)

    async def _called(self, call: Callable[[], Any]) -> Any:
        return call()

    def _note(self, halves: Sequence[HalfMessage], state: LocalTransactionState) -> None:
        self._ending = self._producer.decided(halves, state)


class AsyncDatabaseTransaction(AsyncTransaction):
    """Made by `begin_transaction(database=...)` of asyncio's producer, for `async with`; see `DatabaseTransaction`.

    SQLAlchemy runs the code for plain connections in a greenlet, from which each statement, and each send, is awaited.

    Args:
        producer: as for `AsyncTransaction`; its listener looks at rows.
        kept: awaits a call to its end, whatever happens to the awaiting task.
        given: the session or connection.

    Raises:
        ArgumentError: it is none of these.
    """

    def __init__(self, producer: ProducerOnLoop, kept: Callable[..., Coroutine[Any, Any, Any]], given: Any) -> None:
        super().__init__(producer, kept)
        self._given = awaited(given)

    async def __aenter__(self) -> Self:
        """Begin, in the open or next transaction of the connection."""
        await self._kept(self._given.run_sync, self._begin)
        return self

    def _begin(self, connection: Any) -> None:
        sql = sql_for(connection, self._producer.listener)
        self._inner = DatabaseTransaction(self._send_half, self._note, sql)

    def _send_half(self, message: Message, first: HalfMessage | None, proof: Proof) -> HalfMessage:
        sending = self._producer.sending(lambda: self._producer.send_half(message, first, proof), message)
        half: HalfMessage = import_module("sqlalchemy.util").await_only(sending)
        return half

    async def _send(self, message: Message) -> SendResult:
        async with self._turn:
            result: SendResult = await self._called(lambda: self._inner.send(message))
            return result

    async def _called(self, call: Callable[[], Any]) -> Any:
        if not isinstance(self._inner, DatabaseTransaction):
            msg = "a transaction of a database begins with its block; use it as `async with`"
            raise ProducerError(msg)
        return await self._given.run_sync(lambda _: call())


def _begun(call: Coroutine[Any, Any, T], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
    """Start a task, and keep it in `tasks` until its end: the event loop refers to tasks only weakly."""
    task = asyncio.create_task(call)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def _of_this_loop(tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """The tasks that can be waited for: those of the running loop.

    A task of another loop wakes nobody here, and a task of a closed loop never ends.
    """
    return {task for task in tasks if task.get_loop() is asyncio.get_running_loop()}


async def _awaited(task: asyncio.Task[T]) -> T:
    """The result of a task that continues when the awaiting task is cancelled."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_log_failed)
        raise


async def _after(others: set[asyncio.Task[Any]], call: Callable[[], Coroutine[Any, Any, None]]) -> None:
    if others:
        await asyncio.wait(others)
    await call()


def _log_failed(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.warning("a call of a producer, whose result nobody awaits any more, failed: %s", error)
