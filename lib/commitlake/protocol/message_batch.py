"""A batch: several messages for one topic in one Kafka record, so that all of them land or none does."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn, TypeVar

from commitlake.errors import RecordError
from commitlake.protocol import wire
from commitlake.protocol.encoding import MAX_ID_LENGTH, from_json, to_json
from commitlake.protocol.topic_names import RETRY_PREFIX

FORBIDDEN = frozenset({wire.TRAN_MSG, *wire.TRANSACTION_HEADERS, *wire.DELAY_HEADERS})
"""Headers that neither a batch nor a member may have, whatever their value."""
_WRAPPING = len(b'{"messages":[]}')
T = TypeVar("T")


class Member(NamedTuple):
    """One message of a batch; `properties` are its headers, `UNIQ_KEY`, `TAGS`, `KEYS` and user properties."""

    body: bytes
    properties: Mapping[str, str]


def pack(members: Iterable[Member]) -> bytes:
    """Value of the batch record."""
    return to_json({"messages": [_entry(member) for member in members]})


def packed_size(member: Member) -> int:
    """Bytes that `member` adds to the value of its batch, with the comma that follows it."""
    return len(to_json(_entry(member))) + 1


def unpack(value: bytes, count: int, topic: str, headers: Mapping[str, str]) -> list[Member]:
    """Read the members of a batch record; `BAD_BATCH` when anything in it is wrong.

    Args:
        value: value of the record.
        count: its header `BATCH`.
        topic: its header `REAL_TOPIC`.
        headers: all its headers.
    """
    if topic.startswith(RETRY_PREFIX):
        _refuse(f"topic {topic!r} is a retry topic, which takes no batch")
    _check_headers("the batch", headers)
    content = from_json(value, "BAD_BATCH")
    entries = content.get("messages") if isinstance(content, dict) else None
    if not isinstance(entries, list) or len(entries) != count or count == 0:
        _refuse(f"{wire.BATCH} is {count}, but the value must be an object with a list of as many messages, at least 1")
    return [_member(index, entry, topic) for index, entry in enumerate(entries)]


def split(items: Sequence[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Cut `items` into lists, in order, whose batch values have at most `most` bytes.

    Raises:
        RecordError: `BODY_TOO_LARGE`, before anything is yielded, when one item alone is larger.
    """
    sizes = [size(item) for item in items]
    largest = max(sizes, default=0) - 1 + _WRAPPING
    if sizes and largest > most:
        msg = f"one message packs to {largest} bytes, more than max_message_size = {most}"
        raise RecordError(msg, "BODY_TOO_LARGE")
    return _split(items, sizes, most)


def _split(items: Sequence[T], sizes: Sequence[int], most: int) -> Iterator[list[T]]:
    part: list[T] = []
    used = _WRAPPING - 1
    for item, own in zip(items, sizes, strict=True):
        if used + own > most:
            yield part
            part, used = [], _WRAPPING - 1
        part.append(item)
        used += own
    if part:
        yield part


def _entry(member: Member) -> dict[str, object]:
    return {"body": base64.b64encode(member.body).decode(), "properties": dict(member.properties)}


def _member(index: int, entry: object, topic: str) -> Member:
    body, properties = (entry.get("body"), entry.get("properties")) if isinstance(entry, dict) else (None, None)
    if not isinstance(body, str) or not isinstance(properties, dict):
        _refuse(f"message {index} must be an object with a body (base64) and properties")
    if not all(isinstance(value, str) for value in properties.values()):
        _refuse(f"message {index} has a property that is not a string")
    if not 1 <= len(properties.get(wire.UNIQ_KEY, "")) <= MAX_ID_LENGTH:
        _refuse(f"message {index} has no {wire.UNIQ_KEY} of 1 to {MAX_ID_LENGTH} characters")
    _check_headers(f"message {index}", properties)
    if properties.get(wire.REAL_TOPIC, topic) != topic:
        _refuse(f"message {index} names topic {properties[wire.REAL_TOPIC]!r}, its batch {topic!r}")
    return Member(_decoded(index, body), properties)


def _check_headers(what: str, headers: Mapping[str, str]) -> None:
    bad = sorted(FORBIDDEN & headers.keys())
    if bad:
        _refuse(f"{what} has {bad}; a batch is neither delayed nor transactional")


def _decoded(index: int, body: str) -> bytes:
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        _refuse(f"the body of message {index} is not base64")


def _refuse(message: str) -> NoReturn:
    raise RecordError(message, "BAD_BATCH")
