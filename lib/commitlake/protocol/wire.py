"""The Kafka records of the protocol, and the bytes of each.

Pure: no Kafka client, no Spark. This file has the encoders of all records that Python writes, and the decoders of those
that producers read. In the JVM, coordination builds check requests (`coordination.check_requests`), and landing reads
all other records (`landing.parse`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, NamedTuple

from commitlake.errors import RecordError
from commitlake.protocol import encoding, headers

SETTINGS_KEY = b"limits"
MAX_HALF_MESSAGES = 1_000
"""Half messages that an op, a check or a transaction of the Python producer may list."""


class Encoded(NamedTuple):
    """A Kafka record as its bytes.

    Attributes:
        key: None where the record has no key.
        value: the value.
        headers: names and values, in order.
    """

    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


@dataclass(frozen=True, kw_only=True)
class MessageRecord:
    """A record of `messages`: a normal or delayed message, or a batch.

    Attributes:
        topic: destination, 1 to 127 characters.
        msg_id: message id, 1 to 255 characters; of a batch its own.
        body: the value, any bytes; of a batch its packed members.
        producer_group: 1 to 255 characters.
        queue_id: destination queue from 0; None: the Kafka partition.
        tags: what consumers filter by.
        keys: business keys.
        properties: user properties by name.
        sharding_key: key of the Kafka record.
        delays: delay headers by name, as they are on the wire.
        born_timestamp: when the producer made it, ms since epoch, UTC.
        batch: number of members; None: no batch.
        batch_head: bytes of the value before the bodies of a batch's joined form; None: another form, or no batch.
    """

    topic: str
    msg_id: str
    body: bytes
    producer_group: str | None = None
    queue_id: int | None = None
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    sharding_key: bytes | None = None
    delays: Mapping[str, str] = field(default_factory=dict)
    born_timestamp: int | None = None
    batch: int | None = None
    batch_head: int | None = None


@dataclass(frozen=True, kw_only=True)
class HalfRecord(MessageRecord):
    """A record of `half`.

    Attributes:
        transaction_id: 1 to 255 characters, the same on all half messages of a transaction.
        first_half: on a part, the position of the transaction's first half message.
        check_immunity_s: age in s before which the half message is not checked.
    """

    transaction_id: str
    first_half: encoding.Position | None = None
    check_immunity_s: int | None = None


@dataclass(frozen=True, kw_only=True)
class OpRecord:
    """A record of `op` or `admin` that decides a transaction.

    Attributes:
        transaction_id: id of the transaction.
        producer_group: its group; None in `admin` only.
        decision: COMMIT, ROLLBACK or UNKNOWN; in `admin` also RESUME.
        half_messages: 1 to `MAX_HALF_MESSAGES` positions in `half`, the first half message first.
        from_check: whether it answers a check.
        check_id: id of the check that it answers.
        remark: any text.
    """

    transaction_id: str
    producer_group: str | None
    decision: str
    half_messages: tuple[encoding.Position, ...]
    from_check: bool = False
    check_id: str | None = None
    remark: str | None = None


@dataclass(frozen=True, kw_only=True)
class RecallRecord:
    """A record of `op` that recalls one delayed message.

    Attributes:
        msg_id: id of the delayed message.
        topic: its destination.
        message: its position in `messages`.
    """

    msg_id: str
    topic: str
    message: encoding.Position


@dataclass(frozen=True, kw_only=True)
class CheckRecord:
    """A check request: the coordinator asks the producer group for the outcome of a transaction.

    Attributes:
        transaction_id: id of the transaction.
        producer_group: the group that is asked.
        msg_id: id of the first half message; `topic`, `body`, `queue_id`, `tags`, `keys` and `properties` are its own.
        half: its position in `half`.
        half_messages: positions of all half messages that have landed, the first one first, at most
            `MAX_HALF_MESSAGES`.
        check_times: number of this check, 1 for the first.
        check_id: `<queue>-<offset>-<round>-<check_times>`.
        born_timestamp: when the producer made the first half message, ms since epoch, UTC.
        stored_timestamp: when Kafka appended it, ms since epoch, UTC.
    """

    transaction_id: str
    producer_group: str
    msg_id: str
    topic: str
    body: bytes
    half: encoding.Position
    half_messages: tuple[encoding.Position, ...]
    check_times: int
    check_id: str
    queue_id: int | None = None
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    born_timestamp: int | None = None
    stored_timestamp: int | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The limits that producers must respect, as the coordinator publishes them in `settings`.

    Attributes:
        max_message_size: the largest value of a record, in bytes.
        delay_levels: delays of the levels 1, 2, ..., each a number with a unit such as `30s`.
        delay_max_ms: the longest delay, in ms.
        reject_transactions: whether half messages are rejected.
        queues: partitions of half, op and messages.
        max_queues: queues that a destination topic may have.
        topics_allowed: shell patterns of destination topics.
        topics_max: how many destination topics there may be.
        topics: those that exist.
        check_topics: producer groups with a check topic of their own; a coordinator of version 0.2 publishes none.
        ruled_groups: producer groups whose checks a rule of the coordinator answers; one of version 0.2 publishes none.
        batch_head: whether landing reads the joined form of batches; a coordinator of version 0.2 publishes nothing.
    """

    max_message_size: int
    delay_levels: tuple[str, ...]
    delay_max_ms: int
    reject_transactions: bool
    queues: int
    max_queues: int
    topics_allowed: tuple[str, ...]
    topics_max: int
    topics: tuple[str, ...]
    check_topics: tuple[str, ...] = ()
    batch_head: bool = False
    ruled_groups: tuple[str, ...] | None = None


def encode_message(record: MessageRecord) -> Encoded:
    """Bytes of a record of `messages`."""
    return Encoded(record.sharding_key, record.body, encoding.to_headers(_message_headers(record), record.properties))


def encode_half(record: HalfRecord) -> Encoded:
    """Bytes of a record of `half`."""
    own = _message_headers(record) | {
        headers.TRANSACTION_ID: record.transaction_id,
        headers.FIRST_HALF: record.first_half,
        headers.CHECK_IMMUNITY: record.check_immunity_s,
    }
    return Encoded(record.sharding_key, record.body, encoding.to_headers(own, record.properties))


def encode_op(op: OpRecord) -> Encoded:
    """Bytes of a record of `op` or `admin`; the transaction id is the key."""
    content = {
        "transaction_id": op.transaction_id,
        "producer_group": op.producer_group,
        "decision": op.decision,
        "half_messages": encoding.positions(op.half_messages),
        "from_check": op.from_check,
        **({} if op.check_id is None else {"check_id": op.check_id}),
        "remark": op.remark,
    }
    return Encoded(encoding.utf8(op.transaction_id), encoding.to_json(content), [])


def encode_recall(recall: RecallRecord) -> Encoded:
    """Bytes of a recall; it goes to the partition of `op` that its message has in `messages`."""
    content = {
        "decision": "RECALL",
        "message_id": recall.msg_id,
        "topic": recall.topic,
        "messages": encoding.positions([recall.message]),
    }
    return Encoded(encoding.utf8(recall.msg_id), encoding.to_json(content), [])


def encode_settings(settings: Settings) -> Encoded:
    """Bytes of the record of `settings`."""
    return Encoded(SETTINGS_KEY, encoding.to_json(vars(settings)), [])


def decode_check(value: bytes | None, given: encoding.Headers) -> CheckRecord:
    """Read a check request.

    Raises:
        RecordError: a header that the coordinator always writes is missing or malformed.
    """
    found = encoding.texts(given)
    try:
        return CheckRecord(
            transaction_id=_short(found[headers.TRANSACTION_ID]),
            producer_group=found[headers.PGROUP],
            msg_id=_short(found[headers.UNIQ_KEY]),
            topic=_short(found[headers.REAL_TOPIC]),
            body=value or b"",
            half=encoding.Position.parse(f"{found[headers.HALF_QUEUE]}-{found[headers.HALF_OFFSET]}"),
            # As landing checks those of an op: a foreign record in `check` must not break an answer.
            half_messages=encoding.read_positions(
                encoding.from_json(found[headers.HALF_MESSAGES].encode(), None), MAX_HALF_MESSAGES, None
            ),
            check_times=int(_short(found[headers.CHECK_TIMES])),
            check_id=_short(found[headers.CHECK_ID]),
            queue_id=encoding.natural(found.get(headers.REAL_QID)),
            tags=found.get(headers.TAGS),
            keys=found.get(headers.KEYS),
            properties={name: text for name, text in found.items() if name not in headers.RESERVED_HEADERS},
            born_timestamp=encoding.natural(found.get(headers.BORN_TIMESTAMP)),
            stored_timestamp=encoding.natural(found.get(headers.STORED_TIMESTAMP)),
        )
    except (KeyError, TypeError, ValueError, RecordError) as error:
        msg = f"not a check request: {type(error).__name__} {error!s:.200}; its headers are {sorted(found)!s:.300}"
        raise RecordError(msg) from error


def decode_settings(value: bytes | None) -> Settings:
    """Read the record of `settings`; keys that this version does not know are ignored.

    Raises:
        RecordError: the value is not JSON, lacks a key that this version needs, or has one of another type.
    """
    content = encoding.from_json(value, None)
    names = {name for name, field in Settings.__dataclass_fields__.items() if field.default is MISSING}
    missing = sorted(names - set(content) if isinstance(content, dict) else names)
    if missing:
        msg = f"the settings record lacks {missing}; run a coordinator of the producer's version, or a newer one"
        raise RecordError(msg)
    fields = Settings.__dataclass_fields__
    found = {name: _frozen(content[name]) for name in fields if name in content}
    wrong = [name for name, value in found.items() if not _is_a(fields[name].type, value)]
    if wrong:
        name, kind = wrong[0], fields[wrong[0]].type
        msg = f"the settings record's {name} is {found[name]!r:.100}, not {kind}; only a coordinator may write there"
        raise RecordError(msg)
    return Settings(**found)


def _is_a(kind: object, value: object) -> bool:
    if value is None:
        return str(kind).endswith(" | None")
    if str(kind).startswith("tuple[str, ...]"):
        return isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    return type(value).__name__ == kind


def _message_headers(record: MessageRecord) -> dict[str, object]:
    return {
        headers.REAL_TOPIC: record.topic,
        headers.UNIQ_KEY: record.msg_id,
        headers.PGROUP: record.producer_group,
        headers.REAL_QID: record.queue_id,
        headers.TAGS: record.tags,
        headers.KEYS: record.keys,
        **record.delays,
        headers.BORN_TIMESTAMP: record.born_timestamp,
        headers.BATCH: record.batch,
        headers.BATCH_HEAD: record.batch_head,
    }


def _short(text: str) -> str:
    """An id, if landing allows its length: an answer that repeats a longer one could be too large for Kafka."""
    if 1 <= len(text) <= encoding.MAX_ID_LENGTH:
        return text
    msg = f"{text[:50]!r} has {len(text)} characters, allowed are 1 to {encoding.MAX_ID_LENGTH}"
    raise RecordError(msg)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
