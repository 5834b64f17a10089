"""A batch: several messages for one topic in one Kafka record, so that all of them land or none does.

Its value has one of two forms. The joined form is a head, then the bodies unchanged: 1 000 members of 256 B take 1.04
times their bytes. The JSON form has the bodies in base64, and takes 1.65 times their bytes. Coordinators of version 4
of the contract read only the JSON form.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

from commitlake.errors import RecordError
from commitlake.protocol import headers
from commitlake.protocol.encoding import to_json

MOST_MEMBERS = 1 << 16
"""Limit of the joined form: a member may take only 5 bytes there, but its id 255 characters in the tables."""
MOST_KEY_BYTES = 64 << 20
"""Limit of the key's bytes times the members. Each member's row has the key: 65 536 rows of 900 kB would be 59 GB."""
T = TypeVar("T")


class Member(NamedTuple):
    """One message of a batch; `properties` are its headers: `UNIQ_KEY`, `TAGS`, `KEYS` and user properties."""

    body: bytes
    properties: Mapping[str, str]


class Joined(NamedTuple):
    """The value of a batch record, and the number of its bytes before the bodies."""

    value: bytes
    head: int


def member_id(batch_id: str, index: int) -> str:
    """The id of a joined form's member that names none; `index` is from 0, `batch_id` the record's `UNIQ_KEY`."""
    return f"{batch_id}-{index}"


def most_members(sharding_key: bytes | None, *, is_joined: bool) -> int:
    """How many members a batch with this key may have; 0 where it can't have even one."""
    by_key = MOST_KEY_BYTES // max(1, len(sharding_key or b""))
    return min(by_key, MOST_MEMBERS) if is_joined else by_key


def join(members: Sequence[Member], batch_id: str) -> Joined:
    """The joined form; a member's id is left out where `member_id` returns the same."""
    ends = list(accumulate(len(member.body) for member in members))
    properties = [_without_own_id(member, member_id(batch_id, at)) for at, member in enumerate(members)]
    head = to_json({"ends": ends, "properties": properties})
    return Joined(b"".join([head, *(member.body for member in members)]), len(head))


def pack(members: Iterable[Member]) -> bytes:
    """The JSON form."""
    return to_json({"messages": [_entry(member) for member in members]})


def split(
    items: Sequence[T],
    member: Callable[[T], Member],
    most: int,
    *,
    is_joined: bool,
    sharding_key: bytes | None = None,
) -> Iterator[list[T]]:
    """Cut `items` into lists, in order, that each fit into one batch.

    Args:
        items: messages of any kind.
        member: makes an item's member; in the joined form without `UNIQ_KEY` where `member_id` returns the same id.
        most: the largest value of a batch record, in bytes.
        is_joined: whether the batches have the joined form.
        sharding_key: the key of the records; the longest one where they have several.

    Raises:
        RecordError: before anything is yielded: `BODY_TOO_LARGE` when one item alone exceeds `most`, `BAD_BATCH` when
            the key is too long for any batch.
    """
    measured, wrapping = (_joined_size, _HEAD) if is_joined else (_json_size, _WRAPPING)
    sizes = [measured(member(item)) for item in items]
    largest = max((size.behind(0) for size in sizes), default=0) + wrapping
    if sizes and largest > most:
        msg = f"one message packs to {largest} bytes, more than max_message_size = {most}; send it alone, or shorten it"
        raise RecordError(msg, "BODY_TOO_LARGE")
    many = most_members(sharding_key, is_joined=is_joined)
    if not many:
        msg = f"a sharding key has {len(sharding_key or b'')} bytes; in a batch it may have {MOST_KEY_BYTES}; "
        msg += "shorten it, or send its message alone"
        raise RecordError(msg, "BAD_BATCH")
    return _split(items, sizes, most - wrapping, many)


class _Size(NamedTuple):
    """Bytes that a member adds to the value: its commas and properties, and its body."""

    fixed: int
    body: int
    is_joined: bool

    def behind(self, bodies: int) -> int:
        """Bytes that the member adds after `bodies` bytes of other bodies; the joined form also has its end."""
        return self.fixed + self.body + (len(str(bodies + self.body)) if self.is_joined else 0)


_WRAPPING = len(b'{"messages":[]}') - 1
"""Bytes around the members, less one: no comma follows the last member."""
_HEAD = len(b'{"ends":[],"properties":[]}') - 2


def _json_size(member: Member) -> _Size:
    return _Size(len(to_json(_entry(member))) + 1, 0, is_joined=False)


def _joined_size(member: Member) -> _Size:
    return _Size(len(to_json(dict(member.properties))) + 2, len(member.body), is_joined=True)


def _split(items: Sequence[T], sizes: Sequence[_Size], most: int, many: int) -> Iterator[list[T]]:
    part: list[T] = []
    used = bodies = 0
    for item, size in zip(items, sizes, strict=True):
        if used + size.behind(bodies) > most or len(part) == many:
            yield part
            part, used, bodies = [], 0, 0
        part.append(item)
        used += size.behind(bodies)
        bodies += size.body
    if part:
        yield part


def _entry(member: Member) -> dict[str, object]:
    return {"body": base64.b64encode(member.body).decode(), "properties": dict(member.properties)}


def _without_own_id(member: Member, own_id: str) -> dict[str, str]:
    """The properties; `UNIQ_KEY` is left out where it equals `own_id`."""
    named = dict(member.properties)
    if named.get(headers.UNIQ_KEY) == own_id:
        del named[headers.UNIQ_KEY]
    return named
