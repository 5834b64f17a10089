"""The effect of a message in a database, once: a row that commits with the effect says that it is there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from commitlake.clients.asyncio_sql import awaited
from commitlake.clients.proof_rows import ProofRows
from commitlake.clients.sql import is_wait_over, sql_of
from commitlake.errors import ConsumerError
from commitlake.protocol.database_row import HANDLED, HANDLING, TABLE

STILL_OPEN = (
    "another block for this message is open for more than a second, in this process or another; let the error end the "
    "handler, or call message.retry(): the message comes again"
)


def row_id(*names: str) -> str:
    """The id of a row, by what names a message for ever, as 64 characters: names may be as long as Kafka's."""
    return hashlib.sha256("\0".join(names).encode(errors="surrogatepass")).hexdigest()


class Once:
    """The transaction of a block, which commits with the row `name`; `with` gives False when the row is there already.

    What a block does then is rolled back, as after an error in it. `with` takes what `sql_of` takes, `async with` what
    `awaited` takes: SQLAlchemy runs the code for plain connections in a greenlet. A cancelled task needs no care: its
    message comes again, and the row says whether the commit was done.

    Args:
        database: the connection or session.
        name: the id of the row.
        create: make the table where it is missing.
    """

    def __init__(self, database: Any, name: str, create: bool) -> None:
        self._database, self._name, self._create = database, name, create

    def __enter__(self) -> bool:
        """Begin; False when the row is there already. Raises the errors of `ReceivedMessage.once`."""
        return self._begin(self._database)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, trace)

    async def __aenter__(self) -> bool:
        """Begin; False when the row is there already. Raises the errors of `ReceivedMessage.once`."""
        self._awaited = awaited(self._database)
        is_new: bool = await self._awaited.run_sync(self._begin)
        return is_new

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._awaited.run_sync(lambda _: self._block.__exit__(kind, error, trace))

    def _begin(self, connection: Any) -> bool:
        self._block = _block(connection, self._name, self._create)
        return self._block.__enter__()


@contextmanager
def _block(database: Any, name: str, create: bool) -> Iterator[bool]:
    """The block on a plain connection, or in a greenlet.

    Raises:
        ProducerError: `database` can't be used, or has no table for the row.
        ConsumerError: the connection is in a transaction, or the block has committed or rolled back in its middle, or
            another block for the message is still open.
    """
    rows = ProofRows(sql := sql_of(database))
    if sql.was_open:
        msg = "the connection is in a transaction, which would commit with the message; commit or roll it back before"
        raise ConsumerError(msg)
    try:
        is_new = _is_new(rows, name, create)
        if not is_new:
            sql.begin()  # Django would commit each statement of the block
        yield is_new
        if is_new:
            _end(rows, name)
    finally:
        with suppress(Exception):  # the driver's: the error of the block counts
            sql.rollback()  # after a commit there is nothing to roll back


def _is_new(rows: ProofRows, name: str, create: bool) -> bool:
    try:
        return _inserted(rows, name)
    except ConsumerError:
        raise
    except Exception as error:  # the driver's
        with suppress(Exception):
            rows.sql.rollback()
        if is_wait_over(error):
            raise ConsumerError(STILL_OPEN) from error
        if create:  # asked before whether the table is there: another instance may make it just now
            rows.create()
            return _inserted(rows, name)
        if not rows.sql.has(TABLE):
            rows.database()  # says how to make the table
        raise


def _inserted(rows: ProofRows, name: str) -> bool:
    """Insert the row; False when it was there. Another transaction that has it is waited for, for a second."""
    rows.sql.begin()
    try:
        with rows.short_wait():
            rows.insert(name, HANDLING)
    except rows.sql.duplicate:
        rows.sql.rollback()
        state = rows.state(name)
        if state is None:  # it was tidied meanwhile, or this is the error of another constraint
            raise
        rows.sql.rollback()
        if state != HANDLED:
            msg = (
                "a block for this message has committed in its middle, and still runs or did not come to its end; if "
                f"it has ended, look what it has done, and set the state of the row {name} from {state} to {HANDLED}, "
                "or delete the row"
            )
            raise ConsumerError(msg) from None
        return False
    return True


def _end(rows: ProofRows, name: str) -> None:
    if not rows.update(name, HANDLING, HANDLED):
        msg = "the block has rolled back the transaction of the message; leave commit and rollback to `once`"
        raise ConsumerError(msg)
    rows.sql.commit()
