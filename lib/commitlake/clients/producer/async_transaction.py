"""Transactions of several half messages for asyncio, also with a transaction of a database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from commitlake.clients.asyncio_sql import awaited
from commitlake.clients.producer.database_transaction import DatabaseTransaction, row_of
from commitlake.clients.producer.message import LocalTransactionState, Message, SendResult
from commitlake.clients.producer.on_loop import ProducerOnLoop
from commitlake.clients.producer.record_maker import Proof
from commitlake.clients.producer.transaction import Ending, HalfMessage, Transaction
from commitlake.clients.producer.transactional import log_lost
from commitlake.errors import ProducerError


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
        self._is_begun = False

    async def __aenter__(self) -> Self:
        """Begin, in the open or next transaction of the connection."""
        await self._kept(self._given.run_sync, self._begin)
        return self

    def _begin(self, connection: Any) -> None:
        row = row_of(connection, self._producer.listener)
        self._inner = DatabaseTransaction(self._send_half, self._note, row)
        self._is_begun = True

    def _send_half(self, message: Message, first: HalfMessage | None, proof: Proof) -> HalfMessage:
        sending = self._producer.sending(lambda: self._producer.send_half(message, first, proof), message)
        half: HalfMessage = import_module("sqlalchemy.util").await_only(sending)
        return half

    async def _send(self, message: Message) -> SendResult:
        async with self._turn:
            result: SendResult = await self._called(lambda: self._inner.send(message))
            return result

    async def _called(self, call: Callable[[], Any]) -> Any:
        if not self._is_begun:
            msg = "a transaction of a database begins with its block; use it as `async with`"
            raise ProducerError(msg)
        return await self._given.run_sync(lambda _: call())
