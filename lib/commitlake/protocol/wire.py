"""The Kafka records of the protocol: header names, record types, and how each becomes bytes and comes back.

Pure: no Kafka client, no Spark. A decoder raises `RecordError` with the reason that landing would give. It looks at one
record only; limits (topics, sizes, delays) are judged by `topics`, `delay` and `batch`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from commitlake.errors import RecordError
from commitlake.protocol.encoding import (
    MAX_ID_LENGTH,
    MAX_INT64,
    Headers,
    Position,
    from_json,
    natural,
    positions,
    read_name,
    read_positions,
    refuse_op,
    required,
    texts,
    to_headers,
    to_json,
    utf8,
    whole,
)

REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
UNIQ_KEY = "UNIQ_KEY"
PGROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
FIRST_HALF = "FIRST_HALF"
TAGS = "TAGS"
KEYS = "KEYS"
CHECK_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
DELAY = "DELAY"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
BATCH = "BATCH"
STORED_TIMESTAMP = "STORED_TIMESTAMP"
HALF_QUEUE = "HALF_QUEUE"
HALF_OFFSET = "HALF_OFFSET"
HALF_MESSAGES = "HALF_MESSAGES"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CHECK_ID = "CHECK_ID"
TRAN_MSG = "TRAN_MSG"
PREPARED_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"

DELAY_HEADERS = (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""Highest precedence first."""
MESSAGE_HEADERS = frozenset({REAL_TOPIC, REAL_QID, UNIQ_KEY, PGROUP, TAGS, KEYS, BORN_TIMESTAMP, BATCH, *DELAY_HEADERS})
TRANSACTION_HEADERS = frozenset({TRANSACTION_ID, FIRST_HALF, CHECK_IMMUNITY})
COORDINATOR_HEADERS = frozenset(
    {CHECK_TIMES, TRAN_MSG, PREPARED_OFFSET, CHECK_ID, HALF_QUEUE, HALF_OFFSET, HALF_MESSAGES}
)
"""Owned by the coordinator: a producer's are dropped at landing."""
PROTOCOL_HEADERS = MESSAGE_HEADERS | TRANSACTION_HEADERS | COORDINATOR_HEADERS
"""Every other header of a message is a user property."""
RESERVED_HEADERS = PROTOCOL_HEADERS | {STORED_TIMESTAMP}
"""Names that a producer lets no user property have, for a check could not carry it."""

SYSTEM_TOPIC_PREFIX = "RMQ_SYS_"
SYSTEM_TOPICS = frozenset(
    {"SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC", "TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}
    | {"_delta_log"}  # no table can have the name of its own log
)
SETTINGS_KEY = b"limits"
MAX_HALF_MESSAGES = 1_000


class Encoded(NamedTuple):
    """A Kafka record as its bytes."""

    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


@dataclass(frozen=True, kw_only=True)
class MessageRecord:
    """A record of `messages`: a normal or delayed message, or a batch when `batch` is the number of its members.

    `delays` holds the delay headers as they stand on the wire. Times are ms since epoch, UTC.
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


@dataclass(frozen=True, kw_only=True)
class HalfRecord(MessageRecord):
    """A record of `half`; `first_half` stands on every further half message of a transaction."""

    transaction_id: str
    first_half: Position | None = None
    check_immunity_s: int | None = None


@dataclass(frozen=True, kw_only=True)
class OpRecord:
    """A record of `op` or `admin` that decides on a transaction; the first half message is listed first."""

    transaction_id: str
    producer_group: str | None
    decision: str
    half_messages: tuple[Position, ...]
    from_check: bool = False
    remark: str | None = None


@dataclass(frozen=True, kw_only=True)
class RecallRecord:
    """A record of `op` that recalls one delayed message, named by its place in `messages`."""

    msg_id: str
    topic: str
    message: Position


@dataclass(frozen=True, kw_only=True)
class CheckRecord:
    """A check request: the coordinator asks the producer group what became of a transaction."""

    transaction_id: str
    producer_group: str
    msg_id: str
    topic: str
    body: bytes
    half: Position
    half_messages: tuple[Position, ...]
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
    """What producers must respect, as the coordinator publishes it in `settings`. Sizes in bytes, durations in ms."""

    max_message_size: int
    delay_levels: tuple[str, ...]
    delay_max_ms: int
    reject_transactions: bool
    queues: int
    max_queues: int
    topics_allowed: tuple[str, ...]
    topics_max: int
    topics: tuple[str, ...]


def encode_message(record: MessageRecord) -> Encoded:
    """Bytes of a record of `messages`."""
    return Encoded(record.sharding_key, record.body, to_headers(_message_headers(record), record.properties))


def encode_half(record: HalfRecord) -> Encoded:
    """Bytes of a record of `half`."""
    own = _message_headers(record) | {
        TRANSACTION_ID: record.transaction_id,
        FIRST_HALF: record.first_half,
        CHECK_IMMUNITY: record.check_immunity_s,
    }
    return Encoded(record.sharding_key, record.body, to_headers(own, record.properties))


def encode_op(op: OpRecord) -> Encoded:
    """Bytes of a record of `op` or `admin`; the transaction id is the key."""
    content = {
        "transaction_id": op.transaction_id,
        "producer_group": op.producer_group,
        "decision": op.decision,
        "half_messages": positions(op.half_messages),
        "from_check": op.from_check,
        "remark": op.remark,
    }
    return Encoded(utf8(op.transaction_id), to_json(content), [])


def encode_recall(recall: RecallRecord) -> Encoded:
    """Bytes of a recall; it goes to the partition of `op` that its message has in `messages`."""
    content = {
        "decision": "RECALL",
        "message_id": recall.msg_id,
        "topic": recall.topic,
        "messages": positions([recall.message]),
    }
    return Encoded(utf8(recall.msg_id), to_json(content), [])


def encode_check(check: CheckRecord) -> Encoded:
    """Bytes of a check request; the transaction id is the key."""
    own = {
        PGROUP: check.producer_group,
        UNIQ_KEY: check.msg_id,
        TRANSACTION_ID: check.transaction_id,
        REAL_TOPIC: check.topic,
        REAL_QID: check.queue_id,
        TAGS: check.tags,
        KEYS: check.keys,
        BORN_TIMESTAMP: check.born_timestamp,
        STORED_TIMESTAMP: check.stored_timestamp,
        HALF_QUEUE: check.half.queue,
        HALF_OFFSET: check.half.offset,
        HALF_MESSAGES: to_json(positions(check.half_messages)).decode(),
        CHECK_TIMES: check.check_times,
        CHECK_ID: check.check_id,
    }
    return Encoded(utf8(check.transaction_id), check.body, to_headers(own, check.properties))


def encode_settings(settings: Settings) -> Encoded:
    """Bytes of the record of `settings`."""
    return Encoded(SETTINGS_KEY, to_json(vars(settings)), [])


def decode_message(key: bytes | None, value: bytes | None, headers: Headers) -> MessageRecord:
    """Read a record of `messages`."""
    return MessageRecord(**_message_fields(key, value, texts(headers)))


def decode_half(key: bytes | None, value: bytes | None, headers: Headers) -> HalfRecord:
    """Read a record of `half`."""
    found = texts(headers)
    fields = _message_fields(key, value, found, group_required=True)
    if fields["batch"] is not None:
        msg = f"{BATCH} stands on a half message; a batch can't be transactional"
        raise RecordError(msg, "BAD_BATCH")
    if found.get(TRANSACTION_ID):
        required(found, TRANSACTION_ID, "MISSING_UNIQ_KEY", MAX_ID_LENGTH)
    first = found.get(FIRST_HALF)
    return HalfRecord(
        **fields,
        transaction_id=found.get(TRANSACTION_ID) or fields["msg_id"],
        first_half=Position.parse(first) if first else None,
        check_immunity_s=natural(found.get(CHECK_IMMUNITY)),
    )


def decode_op(value: bytes | None, *, admin: bool = False) -> OpRecord | RecallRecord:
    """Read a record of `op`, or of `admin`, where the group may be absent and `RESUME` is a decision; else `BAD_OP`."""
    content = from_json(value, "BAD_OP")
    if not isinstance(content, dict):
        refuse_op("value", content, "one JSON object")
    decision = content.get("decision")
    if decision == "RECALL" and not admin:
        return _recall(content)
    if decision not in ("COMMIT", "ROLLBACK", "UNKNOWN", *(["RESUME"] if admin else [])):
        refuse_op("decision", decision, "COMMIT, ROLLBACK, UNKNOWN (RECALL in op, RESUME in admin)")
    group, from_check, remark = content.get("producer_group"), content.get("from_check"), content.get("remark")
    if not (from_check is None or isinstance(from_check, bool)) or not (remark is None or isinstance(remark, str)):
        refuse_op("from_check or remark", (from_check, remark), "a boolean and a string, or absent")
    return OpRecord(
        transaction_id=read_name(content, "transaction_id"),
        producer_group=None if admin and group is None else read_name(content, "producer_group"),
        decision=decision,
        half_messages=read_positions(content.get("half_messages"), MAX_HALF_MESSAGES),
        from_check=bool(from_check),
        remark=remark,
    )


def decode_check(value: bytes | None, headers: Headers) -> CheckRecord:
    """Read a check request; raises `RecordError` when something the coordinator always writes is missing."""
    found = texts(headers)
    try:
        return CheckRecord(
            transaction_id=found[TRANSACTION_ID],
            producer_group=found[PGROUP],
            msg_id=found[UNIQ_KEY],
            topic=found[REAL_TOPIC],
            body=value or b"",
            half=Position(int(found[HALF_QUEUE]), int(found[HALF_OFFSET])),
            half_messages=read_positions(json.loads(found[HALF_MESSAGES]), MAX_INT64),
            check_times=int(found[CHECK_TIMES]),
            check_id=found[CHECK_ID],
            queue_id=natural(found.get(REAL_QID)),
            tags=found.get(TAGS),
            keys=found.get(KEYS),
            properties=_user_properties(found, RESERVED_HEADERS),
            born_timestamp=natural(found.get(BORN_TIMESTAMP)),
            stored_timestamp=natural(found.get(STORED_TIMESTAMP)),
        )
    except (KeyError, ValueError) as error:
        msg = f"not a check request: {type(error).__name__} {error}; headers are {sorted(found)}"
        raise RecordError(msg) from error


def decode_settings(value: bytes | None) -> Settings:
    """Read the record of `settings`; keys this version does not know are passed over."""
    content = from_json(value, None)
    names = Settings.__dataclass_fields__
    missing = sorted(set(names) - set(content)) if isinstance(content, dict) else list(names)
    if missing:
        msg = f"the settings record lacks {missing}; is the coordinator of another version?"
        raise RecordError(msg)
    return Settings(**{name: _frozen(content[name]) for name in names})


def _message_headers(record: MessageRecord) -> dict[str, object]:
    return {
        REAL_TOPIC: record.topic,
        UNIQ_KEY: record.msg_id,
        PGROUP: record.producer_group,
        REAL_QID: record.queue_id,
        TAGS: record.tags,
        KEYS: record.keys,
        **record.delays,
        BORN_TIMESTAMP: record.born_timestamp,
        BATCH: record.batch,
    }


def _message_fields(
    key: bytes | None, value: bytes | None, found: Mapping[str, str], *, group_required: bool = False
) -> dict[str, Any]:
    topic = required(found, REAL_TOPIC, "MISSING_REAL_TOPIC", 127)
    msg_id = required(found, UNIQ_KEY, "MISSING_UNIQ_KEY", MAX_ID_LENGTH)
    if group_required or found.get(PGROUP):
        required(found, PGROUP, "MISSING_PRODUCER_GROUP", MAX_ID_LENGTH)
    queue_id = whole(found.get(REAL_QID), "BAD_QUEUE_ID")
    if value is None:
        msg = "the record has no value; a message needs a body, which may be empty"
        raise RecordError(msg, "NULL_BODY")
    return {
        "topic": topic,
        "msg_id": msg_id,
        "body": value,
        "producer_group": found.get(PGROUP) or None,
        "queue_id": queue_id,
        "tags": found.get(TAGS),
        "keys": found.get(KEYS),
        "properties": _user_properties(found, PROTOCOL_HEADERS),
        "sharding_key": key,
        "delays": {name: found[name] for name in DELAY_HEADERS if name in found},
        "born_timestamp": natural(found.get(BORN_TIMESTAMP)),
        "batch": whole(found.get(BATCH), "BAD_BATCH"),
    }


def _recall(content: Mapping[str, object]) -> RecallRecord:
    return RecallRecord(
        msg_id=read_name(content, "message_id"),
        topic=read_name(content, "topic"),
        message=read_positions(content.get("messages"), 1)[0],
    )


def _user_properties(found: Mapping[str, str], known: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if name not in known}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
