"""The codecs of the contract that only tests need, in plain Python.

Landing decodes half messages, ops and batches, and coordination encodes check requests, both in the JVM. The functions
here read and write the same records one by one. A decoder raises `RecordError` with the reason that landing gives, the
first of several. With `Limits` it checks the limits of the configuration, too.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from commitlake.errors import RecordError
from commitlake.protocol import delay, encoding, headers, topic_names, wire
from commitlake.protocol.message_batch import MOST_KEY_BYTES, MOST_MEMBERS, Member, member_id


class Limits(NamedTuple):
    """The limits of a record that was stored at `stored` (ms since epoch, UTC)."""

    settings: wire.Settings
    stored: int

    def admit(self, topic: str) -> None:
        """Raise `RecordError` unless messages of that topic are allowed."""
        topic_names.check_name(topic)
        rules = self.settings
        topic_names.check_admitted(topic, rules.topics_allowed, rules.topics, rules.topics_max)

    def delay(self, record: wire.MessageRecord) -> delay.Delay | None:
        """The delay of a message, None without one; raises when it is malformed or too long."""
        levels = [delay.level_ms(level) for level in self.settings.delay_levels]
        return delay.parse(record.delays, levels, self.settings.delay_max_ms, self.stored)


def encode_check(check: wire.CheckRecord) -> wire.Encoded:
    """Bytes of a check request; the transaction id is the key."""
    own = {
        headers.PGROUP: check.producer_group,
        headers.UNIQ_KEY: check.msg_id,
        headers.TRANSACTION_ID: check.transaction_id,
        headers.REAL_TOPIC: check.topic,
        headers.REAL_QID: check.queue_id,
        headers.TAGS: check.tags,
        headers.KEYS: check.keys,
        headers.BORN_TIMESTAMP: check.born_timestamp,
        headers.STORED_TIMESTAMP: check.stored_timestamp,
        headers.HALF_QUEUE: check.half.queue,
        headers.HALF_OFFSET: check.half.offset,
        headers.HALF_MESSAGES: encoding.to_json(encoding.positions(check.half_messages)).decode(),
        headers.CHECK_TIMES: check.check_times,
        headers.CHECK_ID: check.check_id,
    }
    return wire.Encoded(encoding.utf8(check.transaction_id), check.body, encoding.to_headers(own, check.properties))


def decode_message(
    key: bytes | None, value: bytes | None, given: encoding.Headers, limits: Limits | None = None
) -> wire.MessageRecord:
    """Read a record of `messages`; the members of a batch stay packed."""
    found = encoding.texts(given)
    record = wire.MessageRecord(**_message_fields(key, value, found, limits))
    if limits:
        if record.batch is not None:
            unpack(record, found)
        limits.delay(record)
    return record


def decode_half(
    key: bytes | None, value: bytes | None, given: encoding.Headers, limits: Limits | None = None
) -> wire.HalfRecord:
    """Read a record of `half`."""
    found = encoding.texts(given)
    fields = _message_fields(key, value, found, limits, is_half=True)
    if fields["batch"] is not None:
        msg = f"a half message can't be a batch; remove {headers.BATCH}"
        raise RecordError(msg, "BAD_BATCH")
    if limits:
        limits.delay(wire.MessageRecord(**fields))
    record = wire.HalfRecord(
        **fields,
        transaction_id=found.get(headers.TRANSACTION_ID) or fields["msg_id"],
        first_half=_first_half(found.get(headers.FIRST_HALF)),
        check_immunity_s=encoding.natural(found.get(headers.CHECK_IMMUNITY)),
    )
    if limits and limits.settings.reject_transactions:
        msg = "transaction.reject is on"
        raise RecordError(msg, "TRANSACTIONS_REJECTED")
    return record


def decode_op(value: bytes | None, *, admin: bool = False) -> wire.OpRecord | wire.RecallRecord:
    """Read a record of `op`, or of `admin`, where the group may be absent and `RESUME` is a decision; else `BAD_OP`."""
    content = encoding.from_json(value, "BAD_OP")
    if not isinstance(content, dict):
        _refuse_op("value", content, "one JSON object")
    decision = content.get("decision")
    if decision == "RECALL" and not admin:
        return wire.RecallRecord(
            msg_id=_name(content, "message_id"),
            topic=_name(content, "topic"),
            message=encoding.read_positions(content.get("messages"), 1, "BAD_OP")[0],
        )
    if decision not in ("COMMIT", "ROLLBACK", "UNKNOWN", *(["RESUME"] if admin else [])):
        _refuse_op("decision", decision, "COMMIT, ROLLBACK, UNKNOWN (RECALL in op, RESUME in admin)")
    group, from_check, remark = content.get("producer_group"), content.get("from_check"), content.get("remark")
    check_id = content.get("check_id")
    if not isinstance(from_check, bool | None) or not isinstance(remark, str | None):
        _refuse_op("from_check or remark", (from_check, remark), "a boolean and a string, or absent")
    if not isinstance(check_id, str | None):
        _refuse_op("check_id", check_id, "a string, or absent")
    return wire.OpRecord(
        transaction_id=_name(content, "transaction_id"),
        producer_group=None if admin and group is None else _name(content, "producer_group"),
        decision=decision,
        half_messages=encoding.read_positions(content.get("half_messages"), wire.MAX_HALF_MESSAGES, "BAD_OP"),
        from_check=bool(from_check),
        check_id=check_id,
        remark=remark,
    )


def unpack(record: wire.MessageRecord, given: Mapping[str, str]) -> list[Member]:
    """Read the members of a batch, else `BAD_BATCH`; `given` are all headers of the record."""
    if record.topic.startswith(topic_names.RETRY_PREFIX) or headers.FORBIDDEN_IN_BATCH & given.keys():
        _refuse_batch(f"topic {record.topic!r} or one of {sorted(given)} is not allowed")
    members = _packed(record) if record.batch_head is None else _joined(record, record.batch_head)
    if len(members) != record.batch or not members:
        _refuse_batch(f"{headers.BATCH} is {record.batch}, but there are not as many messages, or none")
    key = len(record.sharding_key or b"")
    if len(members) * key > MOST_KEY_BYTES:
        _refuse_batch(f"{len(members)} members with a key of {key} bytes: together it may take {MOST_KEY_BYTES}")
    return members


def _packed(record: wire.MessageRecord) -> list[Member]:
    content = encoding.from_json(record.body, "BAD_BATCH", is_strict=True)
    entries = content.get("messages") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        _refuse_batch(f"{str(content)[:200]} has no list of messages")
    return [_member(entry, record.topic) for entry in entries]


def _joined(record: wire.MessageRecord, head: int) -> list[Member]:
    content, bodies = encoding.from_json(record.body[:head], "BAD_BATCH", is_strict=True), record.body[head:]
    ends, properties = (content.get("ends"), content.get("properties")) if isinstance(content, dict) else (None, None)
    if not isinstance(ends, list) or not isinstance(properties, list) or len(ends) != len(properties):
        _refuse_batch(f"{str(content)[:200]} has no ends and properties, as many of each")
    if len(ends) > MOST_MEMBERS:
        _refuse_batch(f"there are {len(ends)} members; with {headers.BATCH_HEAD} there may be {MOST_MEMBERS}")
    begins = [0, *ends]
    are_numbers = all(type(end) is int for end in ends)
    if not ends or not are_numbers or begins != sorted(begins) or begins[-1] != len(record.body) - head:
        _refuse_batch(f"the ends are {str(ends)[:200]}; they must be whole numbers that grow to {len(bodies)}")
    return [
        Member(bodies[begins[at] : ends[at]], _checked(_with_id(each, record.msg_id, at), record.topic))
        for at, each in enumerate(properties)
    ]


def _with_id(properties: object, batch_id: str, index: int) -> object:
    return {headers.UNIQ_KEY: member_id(batch_id, index), **properties} if isinstance(properties, dict) else properties


def _message_fields(
    key: bytes | None, value: bytes | None, found: Mapping[str, str], limits: Limits | None, *, is_half: bool = False
) -> dict[str, Any]:
    topic = _required(found, headers.REAL_TOPIC, "MISSING_REAL_TOPIC", topic_names.MAX_LENGTH)
    msg_id = _required(found, headers.UNIQ_KEY, "MISSING_UNIQ_KEY", encoding.MAX_ID_LENGTH)
    if is_half and found.get(headers.TRANSACTION_ID):
        _required(found, headers.TRANSACTION_ID, "MISSING_UNIQ_KEY", encoding.MAX_ID_LENGTH)
    if is_half or found.get(headers.PGROUP):
        _required(found, headers.PGROUP, "MISSING_PRODUCER_GROUP", encoding.MAX_ID_LENGTH)
    if limits:
        limits.admit(topic)
    queue_id = _whole(found.get(headers.REAL_QID), "BAD_QUEUE_ID", limits and limits.settings.max_queues)
    if value is None:
        msg = "the record has no value; a body may be empty, but not null"
        raise RecordError(msg, "NULL_BODY")
    if limits and len(value) > limits.settings.max_message_size:
        msg = f"{len(value)} bytes, max_message_size is {limits.settings.max_message_size}"
        raise RecordError(msg, "BODY_TOO_LARGE")
    return {
        "topic": topic,
        "msg_id": msg_id,
        "body": value,
        "producer_group": found.get(headers.PGROUP) or None,
        "queue_id": queue_id,
        "tags": found.get(headers.TAGS) or None,
        "keys": found.get(headers.KEYS) or None,
        "properties": {name: text for name, text in found.items() if name not in headers.PROTOCOL_HEADERS},
        "sharding_key": key,
        "delays": {name: found[name] for name in headers.DELAY_HEADERS if name in found},
        "born_timestamp": encoding.born_ms(found.get(headers.BORN_TIMESTAMP)),
        "batch": _whole(found.get(headers.BATCH), "BAD_BATCH"),
        "batch_head": _whole(found.get(headers.BATCH_HEAD), "BAD_BATCH") if found.get(headers.BATCH) else None,
    }


def _required(found: Mapping[str, str], name: str, reason: str, longest: int) -> str:
    """A header of 1 to `longest` characters, else `reason`."""
    text = found.get(name, "")
    if not 1 <= len(text) <= longest:
        msg = f"{name} has {len(text)} characters; it must have 1 to {longest}"
        raise RecordError(msg, reason)
    return text


def _whole(text: str | None, reason: str, below: int | None = None) -> int | None:
    """A whole number from 0 up, and smaller than `below`; None when absent or empty, else `reason`."""
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,9}", text) or (below is not None and int(text) >= below):
        msg = f"{text!r} must be a whole number from 0 up" + (f" to {below - 1}" if below else "")
        raise RecordError(msg, reason)
    return int(text)


def _first_half(text: str | None) -> encoding.Position | None:
    try:
        return encoding.Position.parse(text) if text else None
    except RecordError as error:
        raise RecordError(str(error), "BAD_FIRST_HALF") from error


def _name(content: Mapping[str, object], key: str) -> str:
    value = content.get(key)
    if not isinstance(value, str) or not 1 <= len(value) <= encoding.MAX_ID_LENGTH:
        _refuse_op(key, value, f"a string of 1 to {encoding.MAX_ID_LENGTH} characters")
    return value


def _member(entry: object, topic: str) -> Member:
    body, properties = (entry.get("body"), entry.get("properties")) if isinstance(entry, dict) else (None, None)
    if not isinstance(body, str):
        _refuse_batch(f"{entry} must be an object with a body (base64) and properties")
    checked = _checked(properties, topic)
    try:
        return Member(base64.b64decode(body, validate=True), checked)
    except (binascii.Error, ValueError):
        _refuse_batch(f"the body of {entry} is not base64")


def _checked(properties: object, topic: str) -> dict[str, str]:
    """The properties of a member, else `BAD_BATCH`."""
    if not isinstance(properties, dict) or not all(isinstance(text, str) for text in properties.values()):
        _refuse_batch(f"{properties} must be an object of strings")
    if not 1 <= len(properties.get(headers.UNIQ_KEY, "")) <= encoding.MAX_ID_LENGTH:
        _refuse_batch(f"{properties} has no {headers.UNIQ_KEY} of 1 to {encoding.MAX_ID_LENGTH} characters")
    if headers.FORBIDDEN_IN_BATCH & properties.keys() or properties.get(headers.REAL_TOPIC, topic) != topic:
        _refuse_batch(f"{properties} is delayed, transactional or for another topic")
    return properties


def _refuse_op(what: str, value: object, allowed: str) -> NoReturn:
    msg = f"{what} is {str(value)[:200]!r}; it must be {allowed}"
    raise RecordError(msg, "BAD_OP")


def _refuse_batch(message: str) -> NoReturn:
    raise RecordError(message, "BAD_BATCH")
