"""Makes records of messages, and refuses what landing would reject.

The reasons and their order are landing's, so a refusal comes before the local transaction runs.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from numbers import Integral
from typing import Any

from commitlake.clients.producer.message import Message, id_problem
from commitlake.clients.tracing import TRACEPARENT
from commitlake.errors import MQClientException, RecordError
from commitlake.protocol import delay, headers, message_batch, topic_names, wire
from commitlake.protocol.clock import now_ms
from commitlake.protocol.durations import duration_ms
from commitlake.protocol.encoding import MAX_ID_LENGTH, Position, to_headers, utf8

_MOST_IMMUNITY_S = 2**31 - 1
"""What the column holds; landing counts a number of more than 18 digits as absent."""


def new_id() -> str:
    """A new, unique message id."""
    return uuid.uuid4().hex.upper()


def identify(message: Message) -> str:
    """Return the id of a message; the one it gets here it keeps."""
    if message.message_id is None:
        message.message_id = new_id()
    return message.message_id


def check_group(group: str) -> str:
    """Return `group`.

    Raises:
        MQClientException: `MISSING_PRODUCER_GROUP`, it is not the name of a producer group.
    """
    if not isinstance(group, str) or not 1 <= len(group) <= MAX_ID_LENGTH:
        msg = f"the producer group is {group!r}; it must be a string of 1 to {MAX_ID_LENGTH} characters"
        raise MQClientException(msg, "MISSING_PRODUCER_GROUP")
    if any("\ud800" <= letter <= "\udfff" for letter in group):
        msg = f"the producer group {group!r} has a lone surrogate, which UTF-8 can't write; remove the character"
        raise MQClientException(msg, "MISSING_PRODUCER_GROUP")
    return group


@dataclass(frozen=True)
class RecordMaker:
    """Makes the records of one producer group under one version of the settings.

    Every method gives each message that has no id a new one, which it keeps, and raises `RecordError` with landing's
    reason when the message would be rejected.

    Attributes:
        group: producer group.
        settings: what the coordinator publishes.
        trace: user properties that each message gets which has no trace of its own.
    """

    group: str
    settings: wire.Settings
    trace: Mapping[str, str] = field(default_factory=dict)

    def message(self, message: Message) -> wire.MessageRecord:
        """The record of a normal or delayed message."""
        return wire.MessageRecord(**self._fields(message))

    def half(
        self, message: Message, first: wire.HalfRecord | None = None, first_half: Position | None = None
    ) -> wire.HalfRecord:
        """The record of a half message.

        Args:
            message: what the application sends.
            first: the first half message of its transaction; None when it is this one.
            first_half: the position of `first` in `half`.
        """
        chosen, is_new = message.chosen_transaction_id, message.message_id is None
        if chosen is not None and len(chosen) > MAX_ID_LENGTH:
            msg = f"the transaction id has {len(chosen)} characters; it must have 1 to {MAX_ID_LENGTH}"
            raise RecordError(msg, "MISSING_UNIQ_KEY")
        fields = self._fields(message)
        if self.settings.reject_transactions:
            msg = "the coordinator rejects transactions at present (transaction.reject is on); try again later"
            raise RecordError(msg, "TRANSACTIONS_REJECTED")
        return wire.HalfRecord(
            **fields,
            # One message may be sent in several transactions, also by another process: only a new id stands for one.
            transaction_id=first.transaction_id if first else chosen or (fields["msg_id"] if is_new else new_id()),
            first_half=first_half,
            check_immunity_s=_immunity_s(message.check_immunity_seconds),
        )

    def batch(self, messages: Sequence[Message]) -> tuple[wire.MessageRecord, list[str]]:
        """The record of a batch, and the ids of its members."""
        if not messages:
            msg = "the batch is empty; it needs at least one message"
            raise RecordError(msg, "BAD_BATCH")
        if self.settings.batch_head and len(messages) > message_batch.MOST_MEMBERS:
            msg = f"the batch has {len(messages)} messages; {message_batch.MOST_MEMBERS} are allowed; send several"
            raise RecordError(msg, "BAD_BATCH")
        first, own_id = messages[0], new_id()
        for message in messages:
            _check_id(message)
            _check_body(message.body)
            _check_member(message, first)
        ids = _member_ids(messages, own_id)
        value, head = self._packed([self._member(*pair) for pair in zip(messages, ids, strict=True)], own_id)
        self._check(first, value)
        for message, message_id in zip(messages, ids, strict=True):
            message.message_id = message_id
        common = _common(first, self.group)
        return wire.MessageRecord(**common, msg_id=own_id, body=value, batch=len(ids), batch_head=head), ids

    def split(self, messages: Sequence[Message]) -> Iterator[list[Message]]:
        """Cut `messages` into lists, each of which fits into one batch."""
        is_joined, most = self.settings.batch_head, self.settings.max_message_size
        longest = message_batch.member_id(new_id(), len(messages))
        times = Counter(map(id, messages))

        def member(message: Message) -> message_batch.Member:
            """One that is sent twice keeps the id of its first place, so it names it in the joined form, too."""
            is_implied = is_joined and times[id(message)] == 1
            return self._member(message, message.message_id or (None if is_implied else longest))

        return message_batch.split(messages, member, most, is_joined=is_joined)

    def _packed(self, members: Sequence[message_batch.Member], batch_id: str) -> tuple[bytes, int | None]:
        """The value of a batch, in a form that the coordinator reads, and its head's size."""
        return (
            message_batch.join(members, batch_id) if self.settings.batch_head else (message_batch.pack(members), None)
        )

    def is_delayed(self, record: wire.MessageRecord) -> bool:
        """Whether the record has a delay, so that it can be recalled."""
        return self._delay(record.delays) is not None

    def _delay(self, given: Mapping[str, str]) -> delay.Delay | None:
        levels = [delay.level_ms(level) for level in self.settings.delay_levels]
        return delay.parse(given, levels, self.settings.delay_max_ms, now_ms())

    def _fields(self, message: Message) -> dict[str, Any]:
        self._check(message, message.body)
        delays = _delays(message)
        self._delay(delays)
        return {
            **_common(message, self.group),
            "msg_id": identify(message),
            "body": _bytes(message.body),
            "tags": message.tags,
            "keys": message.keys,
            "properties": self._properties(message),
            "delays": delays,
        }

    def _member(self, message: Message, message_id: str | None) -> message_batch.Member:
        own = {headers.UNIQ_KEY: message_id, headers.TAGS: message.tags, headers.KEYS: message.keys}
        present = {name: value for name, value in own.items() if value is not None}
        given = {**self._properties(message), **present}
        to_headers({}, given)  # JSON would take what a single message may not have, and Java makes `?` of it
        return message_batch.Member(_bytes(message.body), given)

    def _properties(self, message: Message) -> dict[str, str]:
        trace = {} if TRACEPARENT in message.properties else self.trace
        return {**trace, **message.properties}

    def _check(self, message: Message, body: bytes | str) -> None:
        """Apply landing's rules, in landing's order, for the destination and the size of the record's value."""
        rules = self.settings
        _check_id(message)
        topic_names.check_name(message.topic)
        topic_names.check_admitted(message.topic, rules.topics_allowed, rules.topics, rules.topics_max)
        if message.queue_id is not None and not 0 <= message.queue_id < rules.max_queues:
            msg = f"the queue id is {message.queue_id}; it must be 0 to {rules.max_queues - 1} (topics.max_queues)"
            raise RecordError(msg, "BAD_QUEUE_ID")
        _check_body(message.body)
        if len(_bytes(body)) > rules.max_message_size:
            msg = f"the record's value has {len(_bytes(body))} bytes; max_message_size is {rules.max_message_size}"
            raise RecordError(msg, "BODY_TOO_LARGE")


def _common(message: Message, group: str) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "producer_group": group,
        "queue_id": message.queue_id,
        "sharding_key": None if message.sharding_key is None else _bytes(message.sharding_key),
        "born_timestamp": now_ms(),
    }


def _delays(message: Message) -> dict[str, str]:
    at, delayed = message.deliver_at, message.delay_seconds
    is_whole = delayed is None or isinstance(delayed, int)
    values = {
        headers.DELAY: message.delay_time_level,
        headers.TIMER_DELAY_SEC: delayed if is_whole else None,
        headers.TIMER_DELAY_MS: _delay_ms(message.delay_milliseconds) if is_whole else _ms(delayed),
        headers.TIMER_DELIVER_MS: _epoch_ms(at) if isinstance(at, datetime) else at,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def _ms(delayed: object) -> int:
    ms = duration_ms(delayed)
    if ms is None:
        msg = f"delay_seconds is {delayed!r:.100}; give seconds from 0 up, a text such as '3h', or a timedelta"
        raise RecordError(msg, "BAD_DELAY")
    return ms


def _delay_ms(given: object) -> object:
    if given is None or isinstance(given, Integral):  # as RocketMQ has it; landing's rules say what is wrong with it
        return given
    ms = duration_ms(given / 1_000 if isinstance(given, float) else given)
    if ms is None:
        msg = f"delay_milliseconds is {given!r:.100}; give ms from 0 up, a text such as '15s', or a timedelta"
        raise RecordError(msg, "BAD_DELAY")
    return ms


def _immunity_s(given: object) -> int | None:
    """Whole seconds, as the protocol has them, and none too few: landing counts anything else as no immunity.

    None, and -1 as in RocketMQ, for what has none of its own.
    """
    if given is None or given == -1:
        return None
    is_whole = isinstance(given, Integral) and not isinstance(given, bool)
    ms = duration_ms(int(given) if is_whole else given)  # type: ignore[call-overload]
    if ms is None:
        msg = f"check_immunity_seconds is {given!r:.100}; give seconds from 0 up, a text such as '60s', or a timedelta"
        raise RecordError(msg)
    return min(-(-ms // 1_000), _MOST_IMMUNITY_S)


def _epoch_ms(at: datetime) -> int:
    if at.tzinfo is None:
        msg = f"deliver_at is {at.isoformat()} without a time zone; set an aware datetime or ms since epoch"
        raise RecordError(msg, "BAD_DELAY")
    return round(at.timestamp() * 1_000)


def _member_ids(messages: Sequence[Message], batch_id: str) -> list[str]:
    """Ids of the members; an object that is there twice is one message."""
    known: dict[int, str] = {}
    for at, message in enumerate(messages):
        known.setdefault(id(message), message.message_id or message_batch.member_id(batch_id, at))
    return [known[id(message)] for message in messages]


def _check_member(message: Message, first: Message) -> None:
    """What a record holds only once must be the same for all members, or absent."""
    place = (message.topic, message.queue_id, message.sharding_key)
    if place != (first.topic, first.queue_id, first.sharding_key):
        msg = f"a batch has one topic, queue id and sharding key; {place} are not those of its first message"
        raise RecordError(msg, "BAD_BATCH")
    if _delays(message) or message.check_immunity_seconds is not None:
        msg = "a message of a batch can have neither a delay nor a check immunity; send it alone"
        raise RecordError(msg, "BAD_BATCH")
    if message.topic.startswith(topic_names.RETRY_PREFIX):
        msg = f"topic {message.topic!r} is a retry topic, which takes no batches; send the messages one by one"
        raise RecordError(msg, "BAD_BATCH")


def _check_id(message: Message) -> None:
    if message.message_id is not None and (problem := id_problem(message.message_id)):
        raise RecordError(problem, "MISSING_UNIQ_KEY")


def _check_body(body: object) -> None:
    if not isinstance(body, bytes | str):
        msg = f"the body is {type(body).__name__}; it must be bytes, which may be empty, or a string"
        raise RecordError(msg, "NULL_BODY")


def _bytes(text: bytes | str) -> bytes:
    return utf8(text) if isinstance(text, str) else text
