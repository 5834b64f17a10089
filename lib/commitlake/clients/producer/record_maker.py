"""Makes records of messages, and refuses messages that landing would reject.

The rules and their order are landing's. So a refusal comes before the local transaction runs.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from commitlake.clients.producer import plain
from commitlake.clients.producer.message import Message
from commitlake.clients.tracing import TRACEPARENT
from commitlake.errors import ArgumentError, RecordError
from commitlake.protocol import delay, headers, message_batch, topic_names, wire
from commitlake.protocol.clock import now_ms
from commitlake.protocol.durations import DAY_MS
from commitlake.protocol.encoding import MAX_ID_LENGTH, Position, plain_text, to_headers

Proof = Mapping[str, str]
NO_PROOF: Proof = MappingProxyType({})
_LONG_AGO_MS = 365 * DAY_MS
_WHOLE, _OF_MS = "a whole number", "ms from 0 up, a text such as '15s', or a timedelta"


def new_id() -> str:
    """A new, unique message id."""
    return uuid.uuid4().hex.upper()


def check_group(group: str) -> str:
    """The name of a producer group as a plain string.

    Raises:
        ArgumentError: `MISSING_PRODUCER_GROUP`, the name is no string of 1 to 255 characters, or not valid UTF-8.
    """
    if not isinstance(group, str) or not 1 <= len(group) <= MAX_ID_LENGTH:
        msg = f"the producer group is {plain.shown(group)}; it must be a string of 1 to {MAX_ID_LENGTH} characters"
        raise ArgumentError(msg, "MISSING_PRODUCER_GROUP")
    if any("\ud800" <= letter <= "\udfff" for letter in group):
        msg = f"the producer group {group!r} has a lone surrogate, which UTF-8 can't write; remove the character"
        raise ArgumentError(msg, "MISSING_PRODUCER_GROUP")
    return plain_text(group)


class _Place(NamedTuple):
    """The destination of a record, which all members of a batch share."""

    topic: str
    queue_id: int | None
    sharding_key: bytes | None


@dataclass(frozen=True)
class RecordMaker:
    """Makes the records of one producer group under one version of the settings.

    Every method that makes a record gives each message without an id a new id, which the message keeps. All of them
    raise `RecordError`, with landing's reason, if landing would reject the message.

    Attributes:
        group: producer group.
        settings: the limits that the coordinator publishes.
        trace: user properties for each message that has no trace of its own.
    """

    group: str
    settings: wire.Settings
    trace: Mapping[str, str] = field(default_factory=dict)

    def message(self, message: Message) -> wire.MessageRecord:
        """The record of a normal or delayed message."""
        return wire.MessageRecord(**self._fields(message))

    def half(
        self,
        message: Message,
        first: wire.HalfRecord | None = None,
        first_half: Position | None = None,
        proof: Proof = NO_PROOF,
    ) -> wire.HalfRecord:
        """The record of a half message.

        `first` is the first half message of its transaction, at `first_half`; both are None for the first one itself.
        `proof` is the property that names what answers the checks. The message does not keep it, since the message may
        be sent in several transactions at once.
        """
        chosen, is_new = message.chosen_transaction_id, message.message_id is None
        transaction_id = plain.id_of("Message.transaction_id", None if chosen == "" else chosen)
        fields = self._fields(message)
        fields["properties"] |= proof
        if self.settings.reject_transactions:
            msg = "the coordinator rejects transactions at present (transaction.reject is on); try again later"
            raise RecordError(msg, "TRANSACTIONS_REJECTED")
        return wire.HalfRecord(
            **fields,
            # A message may be sent in several transactions, also by another process, so only a new message id can
            # serve as the transaction id.
            transaction_id=first.transaction_id
            if first
            else transaction_id or (fields["msg_id"] if is_new else new_id()),
            first_half=first_half,
            check_immunity_s=plain.immunity_s(message.check_immunity_seconds),
        )

    def batch(self, messages: Sequence[Message]) -> tuple[wire.MessageRecord, list[str]]:
        """The record of a batch, and the ids of its members."""
        if not messages:
            msg = "the batch is empty; it needs at least one message"
            raise RecordError(msg, "BAD_BATCH")
        own_id, place = new_id(), _place(messages[0])
        bodies = [_member_body(message, place) for message in messages]
        ids = _member_ids(messages, own_id)
        members = [self._member(*each) for each in zip(messages, bodies, ids, strict=True)]
        joined = message_batch.join(members, own_id) if self.settings.batch_head else None
        value, head = joined or (message_batch.pack(members), None)  # the form that older coordinators read
        self._check_place(place)
        self._check_size(value)
        self._check_number(len(ids), place.sharding_key)
        for message, message_id in zip(messages, ids, strict=True):
            message.take_id(message_id)
        common = self._common(place)
        return wire.MessageRecord(**common, msg_id=own_id, body=value, batch=len(ids), batch_head=head), ids

    def split(self, messages: Sequence[Message]) -> Iterator[list[Message]]:
        """Cut `messages` into lists, each of which fits into one batch."""
        is_joined, most = self.settings.batch_head, self.settings.max_message_size
        longest = message_batch.member_id(new_id(), len(messages))
        times = Counter(map(id, messages))

        def member(message: Message) -> message_batch.Member:
            """A message that occurs twice keeps the id of its first place, so even the joined form states its id."""
            is_implied = is_joined and times[id(message)] == 1
            return self._member(message, _body(message), _id(message) or (None if is_implied else longest))

        key = max((sharding_key_of(message) or b"" for message in messages), key=len, default=b"")
        return message_batch.split(messages, member, most, is_joined=is_joined, sharding_key=key)

    def is_delayed(self, record: wire.MessageRecord) -> bool:
        """Whether the record has a delay, so that it can be recalled."""
        return self._delay(record.delays) is not None

    def _delay(self, given: Mapping[str, str]) -> delay.Delay | None:
        if not given:
            return None
        levels = [delay.level_ms(level) for level in self.settings.delay_levels]
        return delay.parse(given, levels, self.settings.delay_max_ms, now_ms())

    def _fields(self, message: Message) -> dict[str, Any]:
        _id(message)
        place = _place(message)
        self._check_place(place)
        body = _body(message)
        self._check_size(body)
        delays = _delays(message)
        self._delay(delays)
        return {
            **self._common(place),
            "body": body,
            "tags": _tags(message),
            "keys": _keys(message),
            "properties": self._properties(message),
            "delays": delays,
            "msg_id": message.take_id(new_id()),
        }

    def _member(self, message: Message, body: bytes, message_id: str | None) -> message_batch.Member:
        own = {
            headers.UNIQ_KEY: message_id,
            headers.TAGS: _tags(message),
            headers.KEYS: _keys(message),
        }
        present = {name: value for name, value in own.items() if value is not None}
        given = {**self._properties(message), **present}
        to_headers({}, given)  # refuses what a single message may not have: JSON would take it, and Java make `?` of it
        return message_batch.Member(body, given)

    def _properties(self, message: Message) -> dict[str, str]:
        """The user properties of a message; with the trace, unless it has one of its own.

        Raises:
            RecordError: `Message.properties` is no dict, which `delta_transaction` needs to add its own; or one of them
                is no user property.
        """
        given: object = message.properties
        if not isinstance(given, dict):
            msg = f"Message.properties is {plain.shown(given)}; it must be a dict of strings to strings"
            raise RecordError(msg)
        found = dict(plain.named(*each) for each in given.items())
        for name in headers.RESERVED_HEADERS.intersection(found):
            plain.free(name)
        for name in plain.PROOFS:  # copied from a received message, it would make that one's transaction answer
            found.pop(name, None)
        return found if TRACEPARENT in found else {**self.trace, **found}

    def _common(self, place: _Place) -> dict[str, Any]:
        return {**place._asdict(), "producer_group": self.group, "born_timestamp": now_ms()}

    def _check_place(self, place: _Place) -> None:
        """Apply landing's rules for the destination, in landing's order."""
        rules = self.settings
        topic_names.check_name(place.topic)
        topic_names.check_admitted(place.topic, rules.topics_allowed, rules.topics, rules.topics_max)
        if place.queue_id is not None and not 0 <= place.queue_id < rules.max_queues:
            msg = f"the queue id is {place.queue_id}; it must be 0 to {rules.max_queues - 1} (topics.max_queues)"
            raise RecordError(msg, "BAD_QUEUE_ID")

    def _check_size(self, value: bytes) -> None:
        most = self.settings.max_message_size
        if len(value) > most:
            msg = f"the record's value has {len(value)} bytes; max_message_size is {most}"
            raise RecordError(msg, "BODY_TOO_LARGE")

    def _check_number(self, members: int, key: bytes | None) -> None:
        most = message_batch.most_members(key, is_joined=self.settings.batch_head)
        if members > most:
            keyed = f" with a sharding key of {len(key)} bytes" if key else ""
            msg = f"the batch has {members} messages{keyed}; {most} such are allowed; send several batches (`split`)"
            raise RecordError(msg, "BAD_BATCH")


def topic_of(message: object) -> str:
    """The topic of a message; empty if it is no string, which is refused later.

    Raises:
        ArgumentError: `message` is no Message.
    """
    if not isinstance(message, Message):
        msg = f"{plain.shown(message)} ({type(message).__name__}) is no message, allowed is a Message; nothing was sent"
        raise ArgumentError(msg)
    return plain_text(message.topic) if isinstance(message.topic, str) else ""


def _id(message: Message) -> str | None:
    return plain.id_of("Message.message_id", message.message_id)


def _body(message: Message) -> bytes:
    return plain.data("the body", message.body, "NULL_BODY")


def _place(message: Message) -> _Place:
    topic = plain.text("the topic", message.topic, "MISSING_REAL_TOPIC")
    queue_id = None if message.queue_id is None else plain.whole(message.queue_id)
    if message.queue_id is not None and queue_id is None:
        msg = f"the queue id is {plain.shown(message.queue_id)}; it must be a whole number"
        raise RecordError(msg, "BAD_QUEUE_ID")
    return _Place(topic, queue_id, sharding_key_of(message))


def _member_ids(messages: Sequence[Message], batch_id: str) -> list[str]:
    """Ids of the members; an object that occurs twice is one message."""
    known: dict[int, str] = {}
    for at, message in enumerate(messages):
        known.setdefault(id(message), _id(message) or message_batch.member_id(batch_id, at))
    return [known[id(message)] for message in messages]


def _member_body(message: Message, first: _Place) -> bytes:
    """The body of a member. Values that the record holds once must be equal in all members, or absent."""
    place, body = _place(message), _body(message)
    if place != first:
        msg = f"a batch has one topic, queue id and sharding key; {tuple(place)} are not those of its first message"
        raise RecordError(msg, "BAD_BATCH")
    delays = (message.delay_time_level, message.delay_seconds, message.delay_milliseconds, message.deliver_at)
    if any(each is not None for each in (*delays, message.check_immunity_seconds)):
        msg = "a message of a batch can have neither a delay nor a check immunity; send it alone"
        raise RecordError(msg, "BAD_BATCH")
    if place.topic.startswith(topic_names.RETRY_PREFIX):
        msg = f"topic {place.topic!r} is a retry topic, which takes no batches; send the messages one by one"
        raise RecordError(msg, "BAD_BATCH")
    return body


def _tags(message: Message) -> str | None:
    """The tag of a message; None for an empty one.

    Raises:
        RecordError: no filter can select the tag: it has `||`, or blanks at its ends.
    """
    tags = None if message.tags is None else plain.text("Message.tags", message.tags) or None
    if tags and (tags != tags.strip() or "||" in tags):
        msg = f"the tag is {tags!r:.100}, which no filter can select; it must have no || and no blanks at its ends"
        raise RecordError(msg, "ILLEGAL_MESSAGE_TAG")
    return tags


def _keys(message: Message) -> str | None:
    """The business keys of a message; None for an empty text."""
    return None if message.keys is None else plain.text("Message.keys", message.keys) or None


def sharding_key_of(message: Message) -> bytes | None:
    """The sharding key of a message as bytes; None without one."""
    return None if message.sharding_key is None else plain.data("Message.sharding_key", message.sharding_key)


def _delays(message: Message) -> dict[str, str]:
    """The delay headers of a message.

    Raises:
        RecordError: `BAD_DELAY`, landing would reject one, or the time to deliver was more than a year ago.
    """
    level, delayed, ms = message.delay_time_level, message.delay_seconds, message.delay_milliseconds
    found = {
        headers.DELAY: None if level is None else _needed("delay_time_level", level, plain.whole(level), _WHOLE),
        headers.TIMER_DELAY_SEC: plain.whole(delayed),
        headers.TIMER_DELAY_MS: None if ms is None else _needed("delay_milliseconds", ms, _delay_ms(ms), _OF_MS),
        headers.TIMER_DELIVER_MS: None if message.deliver_at is None else _deliver_ms(message.deliver_at),
    }
    if delayed is not None and found[headers.TIMER_DELAY_SEC] is None:  # seconds precede ms, so they replace the ms
        allowed = "seconds from 0 up, a text such as '3h', or a timedelta"
        found[headers.TIMER_DELAY_MS] = _needed("delay_seconds", delayed, plain.ms_of(delayed), allowed)
    return {name: str(value) for name, value in found.items() if value is not None}


def _delay_ms(given: object) -> int | None:
    """Length in ms; negative whole numbers are allowed, since RocketMQ counts them as absent."""
    number = plain.whole(given)
    return number if number is not None else plain.ms_of(given, 1_000)


def _needed(name: str, given: object, found: int | None, allowed: str) -> int:
    if found is None:
        msg = f"{name} is {plain.shown(given)}; give {allowed}"
        raise RecordError(msg, "BAD_DELAY")
    return min(found, plain.MOST)


def _deliver_ms(given: object) -> int:
    """The time of delivery, ms since epoch, UTC."""
    if isinstance(given, datetime):
        if given.tzinfo is None or given.utcoffset() is None:
            msg = f"deliver_at is {given.isoformat()} without a time zone; set an aware datetime or ms since epoch"
            raise RecordError(msg, "BAD_DELAY")
        at = round(given.timestamp() * 1_000)
    else:
        at = _needed("deliver_at", given, plain.whole(given), "an aware datetime, or whole ms since epoch (13 digits)")
    if at < now_ms() - _LONG_AGO_MS:
        msg = (
            f"deliver_at is {given}, which is more than a year ago; give ms since epoch (13 digits, where seconds have "
            "10) or an aware datetime, or leave it out to deliver at once"
        )
        raise RecordError(msg, "BAD_DELAY")
    return at
