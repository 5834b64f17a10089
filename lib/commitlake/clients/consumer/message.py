"""Committed messages as a consumer gets them, single ones and batches, and how their outcomes are noted."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Generic, NoReturn, TypeVar, overload

import pyarrow as pa

from commitlake.clients.consumer.arguments import seconds, whole
from commitlake.clients.consumer.group_member import GroupMember
from commitlake.clients.consumer.lanes import InFlight
from commitlake.clients.consumer.once import Once, row_id
from commitlake.clients.consumer.receipts import Attempt
from commitlake.clients.consumer.rows import position_of
from commitlake.clients.renamed import renamed
from commitlake.config.terminal import printable
from commitlake.errors import ConsumerError
from commitlake.protocol.clock import now_ms
from commitlake.protocol.durations import Duration
from commitlake.reading.forks import SPAWN

log = logging.getLogger(__name__)

T = TypeVar("T")

FORKED = (
    "this consumer has begun in another process, from which this one was forked; its messages come, and are finished, "
    f"only there; {SPAWN}, and make a consumer in each"
)
UNPICKLED = (
    "a received message is not pickled or copied, since it is finished in the process that got it; send what the work "
    "needs, such as message.body and message.position, and call done() or retry() here"
)


class Outcomes:
    """Notes the outcomes of messages. Messages refer to it; once nothing does any more, the member leaves its group."""

    def __init__(self, group: str, topic: str, member: GroupMember) -> None:
        self.group, self.topic, self.member, self._pid = group, topic, member, os.getpid()
        weakref.finalize(self, member.abandon).atexit = False

    def finish(
        self, handed: Sequence[InFlight], state: str, due_ms: int | None = None, remark: str | None = None
    ) -> None:
        """Note the outcome of messages: `DONE`, `DEAD`, or `RETRY`, due at `due_ms` (ms since epoch, UTC).

        `remark` is any text, for the receipt.

        Raises:
            ConsumerError: this process was forked from the one that owns the messages.
        """
        if self._pid != os.getpid():
            raise ConsumerError(FORKED)
        if remark is not None:
            # `remark` may be any object, such as an exception; and an Arrow table takes no lone surrogate.
            remark = str(remark).encode(errors="replace").decode()
        if self.member.closed.is_set():
            log.warning("a message of %s was finished after its consumer was closed, and comes again", self.topic)
            return
        for part in handed:
            outcome = Attempt(state, part.attempt, part.round, due_ms, remark, now_ms())
            if state == "DEAD" and part.is_open:
                self._tell_dead(part, remark)
            self.member.lanes.finish(part, outcome)

    def _tell_dead(self, part: InFlight, remark: str | None) -> None:
        position, others = position_of(part.place()), len(part.chosen.indexes) - 1
        log.warning(
            "message %s of %s, keys %s%s, is a dead letter after attempt %d: %s",
            *(position, self.topic, printable(str(part.value("keys")))),
            *(f", and {others} more" if others else "", part.attempt, printable(remark or "without a remark")),
        )


class HandedOver:
    """One message, or several that were handed over together."""

    __slots__ = ("_handed", "_outcomes", "topic")

    def __init__(self, outcomes: Outcomes, handed: Sequence[InFlight]) -> None:
        self._outcomes, self._handed, self.topic = outcomes, handed, outcomes.topic

    @property
    def attempt(self) -> int:
        """Number of this delivery to the group: 1 for the first."""
        return self._handed[0].attempt

    def done(self, remark: str | None = None) -> None:
        """Note that the group has finished its work.

        Args:
            remark: any text, for the receipt.
        """
        self._outcomes.finish(self._handed, "DONE", remark=remark)

    @renamed(most="max_attempts")
    def retry(self, after: Duration = "10s", max_attempts: int = 16, remark: str | None = None) -> None:
        """Have the work done again later; other messages do not wait for it.

        Args:
            after: the least time until then, such as `5m`, a number of seconds, or a `timedelta`.
            max_attempts: attempts altogether; after the last one the message is a dead letter of the group.
            remark: the reason, for the receipt.

        Raises:
            ArgumentError: `after` is no duration, or `max_attempts` no whole number from 1.
        """
        due = now_ms() + int(seconds("after", after) * 1_000)
        if self.attempt >= whole("max_attempts", max_attempts):
            self._outcomes.finish(self._handed, "DEAD", remark=remark)
        else:
            self._outcomes.finish(self._handed, "RETRY", due, remark)

    def __reduce__(self) -> NoReturn:
        """Refuse pickle and copies: only this process can finish the work.

        Raises:
            ConsumerError: always.
        """
        raise ConsumerError(UNPICKLED)


class _Column(Generic[T]):
    """A value of the message's row; None where the table is of an older version, which had no such column."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, message: None, owner: type) -> _Column[T]: ...
    @overload
    def __get__(self, message: ReceivedMessage, owner: type) -> T: ...
    def __get__(self, message: ReceivedMessage | None, owner: type) -> Any:
        return self if message is None else message.handed.value(self._name)


class ReceivedMessage(HandedOver):
    """A message that was handed over: call `done` or `retry`, in any thread, when the work on it has ended.

    The attributes are the columns of a topic table (docs/contract.md, chapter 3), and:

    Attributes:
        topic: the topic.
        position: `<source>-<source_queue>-<source_offset>-<source_index>`, which identifies the message for ever.
    """

    __slots__ = ("handed",)

    queue_id = _Column[int]()
    message_id = _Column[str]()
    transaction_id = _Column["str | None"]()
    producer_group = _Column["str | None"]()
    tags = _Column["str | None"]()
    keys = _Column["str | None"]()
    sharding_key = _Column["bytes | None"]()
    source = _Column[str]()
    source_queue = _Column[int]()
    source_offset = _Column[int]()
    source_index = _Column[int]()
    born_at = _Column["datetime | None"]()
    stored_at = _Column[datetime]()
    due_at = _Column["datetime | None"]()
    visible_at = _Column[datetime]()
    batch_id = _Column["int | None"]()

    def __init__(self, outcomes: Outcomes, handed: InFlight) -> None:
        super().__init__(outcomes, (handed,))
        self.handed = handed

    @property
    def round(self) -> int:
        """Grows each time an administrator sends the message again, or rewinds the group."""
        return self.handed.round

    @property
    def finished(self) -> bool:
        """Whether `done` or `retry` was called."""
        return self.handed.finished

    @property
    def body(self) -> bytes:
        """The body; empty of a message that `commitlake erase` has erased, whose one property is `erased_at`."""
        return self.handed.value("body") or b""

    @property
    def value(self) -> dict[str, Any] | None:
        """The body's columns, in a topic of `topics.schemas`; None where the body does not fit (`value_error`).

        Raises:
            ConsumerError: the topic has no schema.
        """
        found: dict[str, Any] | None = self._typed("value")
        return found

    @property
    def value_error(self) -> str | None:
        """Why the message has no `value`: `EMPTY`, `NO_OBJECT`, `UNFIT` or `UNKNOWN_SCHEMA`. Errors as of `value`."""
        found: str | None = self._typed("value_error")
        return found

    def _typed(self, column: str) -> Any:
        if column not in self.handed.chosen.rows.table.column_names:
            msg = (
                f"the topic {self.topic} has no column {column}; give it a schema in topics.schemas, or parse the body"
            )
            raise ConsumerError(msg)
        return self.handed.value(column)

    @property
    def properties(self) -> dict[str, str]:
        """User properties."""
        return dict(self.handed.value("properties") or ())

    @property
    def position(self) -> str:
        """`<source>-<source_queue>-<source_offset>-<source_index>`, see the class."""
        return position_of(self.handed.place())

    def once(self, database: Any, *, create: bool = False) -> Once:
        """A local transaction that the group commits once for this message: `with message.once(database) as is_new:`.

        With asyncio's connections and sessions it is `async with`.

        The block commits with a row that names the message. When the message comes again, `is_new` is False, and what
        the block does is rolled back. Call `done` after the block.

        Args:
            database: a connection of sqlite3, psycopg 3 or Django, or a connection or session of SQLAlchemy, in no
                transaction; for `async with` one of asyncio: of SQLAlchemy, psycopg 3 or asyncpg.
            create: make the table `commitlake_transactions` where it is missing; else a migration does.

        Raises:
            ProducerError: `database` can't be used, or has no such table.
            ConsumerError: the connection is in a transaction, or the block has ended it itself, or another block for
                this message is still open: the message comes again.
        """
        return Once(database, row_id(self._outcomes.group, self.topic, self.position, self.message_id), create)

    def release(self) -> bool:
        """Give up the message if its queue goes to another instance, which gets it; False if the queue stays here."""
        return self._outcomes.member.lanes.release(self.handed)

    def is_late(self) -> bool:
        """Whether another instance may have the message: this one has shown no sign of life for a lease."""
        return self._outcomes.member.is_late()

    def __repr__(self) -> str:
        """Show the position, and no content."""
        return f"<ReceivedMessage {self.topic} {self.position} attempt={self.attempt}>"


class MessageBatch(HandedOver):
    """Messages that were handed over together: call `done` or `retry` when the work on all of them has ended.

    Attributes:
        topic: the topic.
        table: the rows in the order of the topic, with the columns of a topic table (docs/contract.md, chapter 3).
    """

    __slots__ = ("table",)

    def __init__(self, outcomes: Outcomes, handed: Sequence[InFlight], table: pa.Table) -> None:
        super().__init__(outcomes, handed)
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        """Show the number of messages, and no content."""
        return f"<MessageBatch {self.topic} messages={len(self)} attempt={self.attempt}>"
