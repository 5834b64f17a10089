"""A batch: several messages for one topic in one Kafka record, so that all of them land or none does."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from commitlake.errors import RecordError
from commitlake.protocol.encoding import to_json

_WRAPPING = len(b'{"messages":[]}')
T = TypeVar("T")


class Member(NamedTuple):
    """One message of a batch; `properties` are its headers: `UNIQ_KEY`, `TAGS`, `KEYS` and user properties."""

    body: bytes
    properties: Mapping[str, str]


def pack(members: Iterable[Member]) -> bytes:
    """Value of the batch record."""
    return to_json({"messages": [_entry(member) for member in members]})


def packed_size(member: Member) -> int:
    """Bytes that `member` adds to the value of its batch, with the comma that follows it."""
    return len(to_json(_entry(member))) + 1


def split(items: Sequence[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Cut `items` into lists, in order, that each fit into one batch.

    Args:
        items: messages of any kind.
        size: the `packed_size` of an item, in bytes.
        most: the largest value of a batch record, in bytes.

    Raises:
        RecordError: `BODY_TOO_LARGE`, before anything is yielded, when one item alone is larger.
    """
    sizes = [size(item) for item in items]
    largest = max(sizes, default=0) - 1 + _WRAPPING
    if sizes and largest > most:
        msg = f"one message packs to {largest} bytes, more than max_message_size = {most}; send it alone, or shorten it"
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
