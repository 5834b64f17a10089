"""Messages as an application sees them, and what a send returns."""

from __future__ import annotations

import copy
import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from commitlake.clients.producer.plain import PROOFS, data, free, id_of, named, shown
from commitlake.errors import ArgumentError, RecordError
from commitlake.protocol import headers, wire
from commitlake.protocol.durations import Duration
from commitlake.protocol.encoding import natural, plain_text

_POSITIONAL = 2
_KINDS: dict[str, tuple[type, ...]] = {
    "topic": (str,),
    "body": (bytes, str, bytearray, memoryview),
    "tags": (str, type(None)),
    "keys": (str, type(None)),
}
_Message = TypeVar("_Message")


class LocalTransactionState(enum.Enum):
    """The outcome of a local transaction; its value is the decision in the op message."""

    COMMIT_MESSAGE = "COMMIT"
    ROLLBACK_MESSAGE = "ROLLBACK"
    UNKNOW = "UNKNOWN"
    UNKNOWN = "UNKNOWN"


COMMIT = LocalTransactionState.COMMIT_MESSAGE
"""The decision that makes the messages visible."""
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
"""The decision that drops the messages."""
UNKNOWN = LocalTransactionState.UNKNOWN
"""No decision yet: a check asks later. RocketMQ spells it `UNKNOW`."""


def _shows_the_order(made: type[_Message]) -> type[_Message]:
    """Refuse RocketMQ's order (topic, tags, keys, body): a message would go out with its tags as its body."""
    initialise = made.__init__

    def __init__(self: _Message, *given: Any, **named: Any) -> None:
        if len(given) > _POSITIONAL:
            message = (
                f"Message() takes topic and body, then tags= and keys= by name, and got {len(given)} values in order; "
                "RocketMQ's Message(topic, tags, keys, body) is Message(topic, body, tags=..., keys=...) here"
            )
            raise ArgumentError(message)
        initialise(self, *given, **named)

    made.__init__ = functools.wraps(initialise)(__init__)  # type: ignore[method-assign,assignment]
    return made


class SendStatus(enum.Enum):
    """Outcome of a send. Any other outcome than an acknowledged write raises an exception."""

    SEND_OK = "SEND_OK"


@_shows_the_order
@dataclass(eq=False)
class Message:
    """A message for `topic`; the delays and the immunity may be set until it is sent.

    An object is one message. Sent again, after an error or not, it keeps its id, and a topic of `topics.dedup` by
    `message_id` shows it once. For another message make another object, or set `message_id` to None. A copy, by `copy`,
    `pickle` or `dataclasses.replace`, is another message; it keeps only an id that the application has set.

    Attributes:
        topic: 1 to 127 of letters, digits, `%`, `_`, `-`.
        body: bytes; a bytearray or memoryview is copied, and a string is sent as UTF-8.
        tags: the tag that consumers filter by; without `||`, and without blanks at its ends.
        keys: business keys, several separated by spaces.
        properties: user properties, see `put_user_property`.
        queue_id: destination queue; by default the Kafka partition.
        sharding_key: messages with the same key go to one queue, in the order of sending.
        delay_time_level: 1 to 18 by default (1s 5s 10s 30s 1m ... 2h); takes precedence over the three below.
        delay_seconds: delay in s, as text (`3h`) or `timedelta`, from the append time or from the op that commits.
        delay_milliseconds: the same delay, but a number counts ms.
        deliver_at: absolute time, ms since epoch (UTC) or an aware datetime, at most a year ago.
        check_immunity_seconds: age before which a half message is not checked, in s, as text (`60s`) or `timedelta`;
            rounded up to whole seconds.
        transaction_id: a transactional send sets it, a new one for each attempt, unless the application has set it.
        message_id: 1 to 255 characters; without one the first send makes it.
    """

    topic: str
    body: bytes | str
    tags: str | None = field(default=None, kw_only=True)
    keys: str | None = field(default=None, kw_only=True)
    properties: dict[str, str] = field(default_factory=dict, kw_only=True)
    queue_id: int | None = field(default=None, kw_only=True)
    sharding_key: str | bytes | None = field(default=None, kw_only=True)
    delay_time_level: int | None = field(default=None, kw_only=True)
    delay_seconds: Duration | None = field(default=None, kw_only=True)
    delay_milliseconds: int | str | timedelta | None = field(default=None, kw_only=True)
    deliver_at: int | datetime | None = field(default=None, kw_only=True)
    check_immunity_seconds: Duration | None = field(default=None, kw_only=True)
    transaction_id: str | None = field(default=None, kw_only=True)
    message_id: str | None = field(default=None, kw_only=True)
    _made_transaction_id: str | None = field(default=None, kw_only=True, repr=False)
    _made_id: str | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds):
                allowed = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
                message = (
                    f"Message.{name} is {shown(value)}, allowed is {allowed}; the order is Message(topic, body, *, "
                    "tags=, keys=), where RocketMQ's is (topic, tags, keys, body)"
                )
                raise ArgumentError(message)
        self.message_id, self._made_id = self._chosen_id, None
        try:
            self.body = self.body if isinstance(self.body, str) else data("Message.body", self.body)
            id_of("Message.message_id", self.message_id)
        except RecordError as error:
            raise ArgumentError(str(error), error.reason) from error
        given: object = self.properties
        self.properties = {}
        if not isinstance(given, Mapping):
            message = f"Message.properties is {shown(given)}, allowed is a map of strings to strings"
            raise ArgumentError(message)
        for name, value in given.items():
            self.put_user_property(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """The state that `copy` and `pickle` copy: a copy is another message, as with `dataclasses.replace`."""
        new = {"message_id": self._chosen_id, "_made_id": None, "properties": copy.copy(self.properties)}
        return self.__dict__ | new

    @property
    def msg_id(self) -> str | None:
        """The message id, by RocketMQ's name."""
        return self.message_id

    @property
    def chosen_transaction_id(self) -> str | None:
        """The transaction id that the application has set; None for one that a producer set while sending."""
        return None if self.transaction_id == self._made_transaction_id else self.transaction_id

    @property
    def _chosen_id(self) -> str | None:
        """The message id that the application has set; None for one that a producer has made."""
        return None if self._made_id is not None and self.message_id == self._made_id else self.message_id

    def take_id(self, message_id: str) -> str:
        """Set an id that a producer has made, unless the message has one; return the message's id."""
        if self.message_id is None:
            self.message_id = self._made_id = message_id
        return plain_text(self.message_id)

    def take_part_in(self, transaction_id: str) -> None:
        """Set the transaction id of one attempt; the next attempt gets another one."""
        if transaction_id != self.chosen_transaction_id:
            self.transaction_id = self._made_transaction_id = transaction_id

    def put_user_property(self, name: str, value: str) -> None:
        """Set a user property; `CHECK_IMMUNITY_TIME_IN_SECONDS` sets the immunity, as in RocketMQ.

        `postgresql.transaction` and `commitlake.database` are ignored: they would name another message's transaction.

        Raises:
            ArgumentError: the name belongs to the protocol, or name or value is empty or no string.
        """
        try:
            name, value = named(name, value)
            if name == headers.CHECK_IMMUNITY:
                self.check_immunity_seconds = natural(value)
            elif name not in PROOFS:  # copied from a received message, it would make that one's transaction answer
                self.properties[free(name)] = value
        except RecordError as error:
            raise ArgumentError(str(error)) from error

    def get_user_property(self, name: str) -> str | None:
        """Value of a user property; None when it is missing."""
        return self.properties.get(name)

    def set_delay_time_level(self, level: int) -> None:
        """Deliver after the delay of `level`, counted from 1. Higher levels mean the last one, 0 means at once."""
        self.delay_time_level = level


@dataclass(eq=False, kw_only=True)
class MessageExt(Message):
    """The first half message of a transaction, as a check shows it to the listener. Times are ms since epoch, UTC.

    Attributes:
        half_queue: its partition in `half`.
        half_offset: its offset there.
        born_timestamp: when the producer made it.
        store_timestamp: when Kafka appended it.
        check_times: number of this check, 1 for the first.
        check_id: id of this check; a check may come twice under one id.
    """

    half_queue: int
    half_offset: int
    born_timestamp: int | None
    store_timestamp: int | None
    check_times: int
    check_id: str

    def __post_init__(self) -> None:
        """Refuse nothing: a message that does not reach the listener would be checked for ever."""

    @classmethod
    def from_check(cls, check: wire.CheckRecord) -> MessageExt:
        """The first half message of the checked transaction."""
        return cls(
            topic=check.topic,
            body=check.body,
            tags=check.tags,
            keys=check.keys,
            properties=dict(check.properties),
            queue_id=check.queue_id,
            transaction_id=check.transaction_id,
            message_id=check.msg_id,
            _made_transaction_id=check.transaction_id if check.transaction_id == check.msg_id else None,
            half_queue=check.half.queue,
            half_offset=check.half.offset,
            born_timestamp=check.born_timestamp,
            store_timestamp=check.stored_timestamp,
            check_times=check.check_times,
            check_id=check.check_id,
        )


@dataclass(frozen=True, kw_only=True)
class SendResult:
    """The acknowledgement of a send.

    Attributes:
        send_status: always `SEND_OK`.
        msg_id: the message's id; of a batch, the ids of its members joined by commas.
        queue_id: the record's Kafka partition.
        queue_offset: its offset there.
        transaction_id: the transaction of a half message, else None.
        recall_handle: the handle by which `recall` takes back a delayed message, else None.
    """

    send_status: SendStatus = SendStatus.SEND_OK
    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None


@dataclass(frozen=True, kw_only=True)
class TransactionSendResult(SendResult):
    """The result of a transactional send: Kafka has the half message, and the local transaction has returned.

    Attributes:
        local_transaction_state: the decision that was sent; after UNKNOW a check asks later.
        exception: the listener's exception, which made the state UNKNOW; else None.
    """

    local_transaction_state: LocalTransactionState
    exception: BaseException | None = None
