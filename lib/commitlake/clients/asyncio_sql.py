"""Statements on connections of asyncio: of SQLAlchemy, and of psycopg 3 and asyncpg in a greenlet of SQLAlchemy."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, TypeVar

from commitlake.clients.sql import Awaited, Psycopg, Sql, homes, not_allowed
from commitlake.errors import ArgumentError

T = TypeVar("T")

_ALLOWED = (
    "`async with` takes an AsyncSession or an AsyncConnection of SQLAlchemy, or a connection of psycopg 3 or asyncpg"
)
_APART = (
    "a listener takes an ordinary engine of SQLAlchemy, or a function that opens a connection of psycopg 3 or asyncpg"
)
_OPEN = (
    "database= is in a transaction that a block `async with connection.transaction()`, or BEGIN, has begun and ends "
    "itself; open such a block within that of begin_transaction or once, or leave it out"
)


def awaited(given: Any) -> Any:
    """What runs code for plain connections by its `run_sync`: SQLAlchemy's object, or an `Awaited` of a driver's.

    Raises:
        ArgumentError: `given` is none of these.
    """
    where = homes(given)
    if "psycopg" in where and isinstance(given, import_module("psycopg").AsyncConnection):
        return Awaited(given, _AsyncPsycopg)
    if any(each.startswith("asyncpg.") for each in where) and hasattr(given, "is_in_transaction"):  # also out of a pool
        return Awaited(given, _Asyncpg)
    if not (any(each.startswith("sqlalchemy.ext.asyncio") for each in where) and hasattr(given, "run_sync")):
        raise not_allowed(given, _ALLOWED)
    return given


def run_on_own_loop(opened: Awaitable[Any], call: Callable[[Sql], T]) -> T:
    """Open a connection, call a function with its statements, and close it, in an event loop of a thread of its own.

    Raises:
        ArgumentError: the connection is SQLAlchemy's or a pool's, which would give it to other loops.
    """
    if type(opened).__module__ == "asyncpg.pool":
        raise not_allowed(opened, _APART)

    async def run() -> T:
        given = await opened
        try:
            found = awaited(given)
            if not isinstance(found, Awaited):
                raise not_allowed(given, _APART)
            result: T = await found.run_sync(lambda _: call(found.sql(given)))
            return result
        finally:
            await given.close()

    with ThreadPoolExecutor(1) as thread:  # a loop may run in the caller's thread
        return thread.submit(asyncio.run, run()).result()


class _AsyncPsycopg(Psycopg):
    def __init__(self, given: Any) -> None:
        self._plain = given
        super().__init__(_Waiting(given))

    def _cursor(self) -> Any:
        return _Waiting(self._psycopg.AsyncCursor(self._plain, row_factory=self._psycopg.rows.tuple_row))


class _Asyncpg(Sql):
    """Begins by asyncpg's own `transaction()`, so that each `transaction()` of the block is a savepoint."""

    dialect = ("postgresql", "asyncpg")
    _TABLE = Psycopg._TABLE

    def __init__(self, given: Any) -> None:
        self.duplicate = import_module("asyncpg").IntegrityConstraintViolationError
        self._begun: Any = None
        super().__init__(given)
        if self.was_open:
            raise ArgumentError(_OPEN)

    def begin(self) -> None:
        if self._begun is None:
            transaction = self.given.transaction()
            try:
                _wait(transaction.start())
            except asyncio.CancelledError:  # nobody knows whether it has begun
                self.given.terminate()
                raise
            self._begun = transaction

    def commit(self) -> None:
        self._end("commit")

    def rollback(self) -> None:
        self._end("rollback")

    def rows(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        written, names = _numbered(sql)
        return [tuple(row) for row in _wait(self.given.fetch(written, *(values[name] for name in names)))]

    def change(self, sql: str, **values: object) -> int:
        self.begin()  # as other drivers do
        written, names = _numbered(sql)
        count = _wait(self.given.execute(written, *(values[name] for name in names))).split()[-1]  # of UPDATE 1
        return int(count) if count.isdigit() else -1

    def change_all(self, sql: str, values: Sequence[Mapping[str, object]]) -> None:
        self.begin()
        written, names = _numbered(sql)
        _wait(self.given.executemany(written, [[each[name] for name in names] for each in values]))

    def _end(self, how: str) -> None:
        transaction, self._begun = self._begun, None
        if transaction:
            _wait(getattr(transaction, how)())

    def _is_open(self) -> bool:
        return bool(self.given.is_in_transaction())

    def _commits_by_itself(self) -> bool:
        return False  # from `begin` on


class _Waiting:
    """A driver's object for code that awaits nothing: a call of a coroutine method returns its result."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._given, name)
        return (lambda *given: _wait(found(*given))) if inspect.iscoroutinefunction(found) else found


def _wait(call: Coroutine[Any, Any, Any]) -> Any:
    return import_module("sqlalchemy.util").await_only(call)


def _numbered(sql: str) -> tuple[str, list[str]]:
    """The statement with `$1` for its first name and so on, and the names in that order."""
    names = list(dict.fromkeys(re.findall(r":(\w+)", sql)))
    return re.sub(r":(\w+)", lambda found: f"${names.index(found[1]) + 1}", sql), names
