"""A committed message as a consumer gets it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, NoReturn, TypeVar, overload

from commitlake.clients.consumer.lanes import InFlight
from commitlake.clients.consumer.outcomes import UNPICKLED, Outcomes
from commitlake.errors import ConsumerError
from commitlake.protocol.durations import Duration

T = TypeVar("T")


class _Column(Generic[T]):
    """A value of the message's row."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, message: None, owner: type) -> _Column[T]: ...
    @overload
    def __get__(self, message: ReceivedMessage, owner: type) -> T: ...
    def __get__(self, message: ReceivedMessage | None, owner: type) -> Any:
        return self if message is None else message.handed.value(self._name)


class ReceivedMessage:
    """A message that was handed over: call `done` or `retry`, in any thread, when the work on it has ended.

    The attributes are the columns of a topic table (docs/contract.md, chapter 3), and:

    Attributes:
        topic: the topic.
        position: `<source>-<source_queue>-<source_offset>-<source_index>`, which identifies the message for ever. Store
            it under a unique key, in the transaction that holds the effect, for an effect exactly once.
    """

    __slots__ = ("_outcomes", "handed", "topic")

    queue_id = _Column[int]()
    message_id = _Column[str]()
    transaction_id = _Column["str | None"]()
    producer_group = _Column["str | None"]()
    tags = _Column["str | None"]()
    keys = _Column["str | None"]()
    sharding_key = _Column["bytes | None"]()
    body = _Column[bytes]()
    source = _Column[str]()
    source_queue = _Column[int]()
    source_offset = _Column[int]()
    source_index = _Column[int]()
    born_at = _Column["datetime | None"]()
    stored_at = _Column[datetime]()
    visible_at = _Column[datetime]()
    batch_id = _Column["int | None"]()

    def __init__(self, outcomes: Outcomes, handed: InFlight) -> None:
        self._outcomes, self.handed, self.topic = outcomes, handed, outcomes.topic

    @property
    def attempt(self) -> int:
        """Number of this delivery to the group: 1 for the first."""
        return self.handed.attempt

    @property
    def round(self) -> int:
        """Grows each time an administrator sends the message again, or rewinds the group."""
        return self.handed.round

    @property
    def finished(self) -> bool:
        """Whether `done` or `retry` was called."""
        return self.handed.finished

    @property
    def properties(self) -> dict[str, str]:
        """User properties."""
        return dict(self.handed.value("properties") or ())

    @property
    def position(self) -> str:
        """`<source>-<source_queue>-<source_offset>-<source_index>`, see the class."""
        return f"{self.source}-{self.source_queue}-{self.source_offset}-{self.source_index}"

    def done(self, remark: str | None = None) -> None:
        """Note that the group has finished its work on the message.

        Args:
            remark: any text, for the receipt.
        """
        self._outcomes.finish([self.handed], "DONE", remark=remark)

    def retry(self, after: Duration = "10s", most: int = 16, remark: str | None = None) -> None:
        """Have the message redelivered later; other messages do not wait for it.

        Args:
            after: the least time until then, such as `5m`, a number of seconds, or a `timedelta`.
            most: attempts altogether; after the last one the message is a dead letter of the group.
            remark: the reason, for the receipt.

        Raises:
            ConsumerError: `after` is no duration, or `most` no whole number from 1.
        """
        self._outcomes.retry([self.handed], after, most, remark)

    def release(self) -> bool:
        """Give up the message if its queue goes to another instance, which gets it; False if the queue stays here."""
        return self._outcomes.release(self.handed)

    def is_late(self) -> bool:
        """Whether another instance may have the message: this one has shown no sign of life for a lease."""
        return self._outcomes.is_late()

    def __reduce__(self) -> NoReturn:
        """Refuse pickle and copies: only this process can finish the message.

        Raises:
            ConsumerError: always.
        """
        raise ConsumerError(UNPICKLED)

    def __repr__(self) -> str:
        """Show the position, and no content."""
        return f"<ReceivedMessage {self.topic} {self.position} attempt={self.attempt}>"
