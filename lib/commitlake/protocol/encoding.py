"""How the fields of a record become text and bytes, and come back; `wire` says which fields there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from commitlake.errors import RecordError

MAX_ID_LENGTH = 255
"""Characters of a message id, a transaction id or a producer group."""
OFFSET_BITS = 48
"""A place is one 64-bit number in a join: a queue above, an offset below. At 1 000 records a second a queue has enough
offsets for 8 900 years."""
MAX_OFFSET = 2**OFFSET_BITS - 1
MAX_QUEUE = 2 ** (63 - OFFSET_BITS) - 1
"""Not `kafka.queues`: partitions may be added by hand, and what is decided there is no malformed op."""
MAX_INT64 = 2**63 - 1

Headers = Sequence[tuple[str, bytes]]


class Position(NamedTuple):
    """Where a record stands: its Kafka partition (= queue) and its Kafka offset (= queue offset)."""

    queue: int
    offset: int

    def __str__(self) -> str:
        return f"{self.queue}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read `<queue>-<offset>`; anything else is `BAD_FIRST_HALF`."""
        found = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,18})", text)
        if not found or int(found[1]) > MAX_QUEUE or int(found[2]) > MAX_OFFSET:
            msg = f"FIRST_HALF is {text!r}; it must be <queue>-<offset> of the first half message"
            raise RecordError(msg, "BAD_FIRST_HALF")
        return cls(int(found[1]), int(found[2]))


def to_json(content: object) -> bytes:
    """Compact JSON, ASCII only, so that no text can make it invalid UTF-8."""
    return json.dumps(content, separators=(",", ":")).encode()


def from_json(value: bytes | None, reason: str | None) -> Any:
    """Read UTF-8 JSON, or raise `RecordError` with `reason`."""
    try:
        return json.loads((value or b"").decode())
    except (ValueError, RecursionError) as error:
        msg = f"value is not UTF-8 JSON: {error}"
        raise RecordError(msg, reason) from error


def to_headers(own: Mapping[str, object], properties: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Header list: user properties first, then the protocol's own; None is left out."""
    both = {**properties, **own}
    return [(name, utf8(str(value))) for name, value in both.items() if value is not None]


def texts(headers: Headers) -> dict[str, str]:
    """Headers by name; of duplicates the last wins."""
    return {name: value.decode(errors="replace") for name, value in headers if value is not None}


def utf8(text: str) -> bytes:
    """UTF-8 bytes; a lone surrogate is refused."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        msg = f"{text[:100]!r} can't be written as UTF-8: {error.reason}"
        raise RecordError(msg) from error


def required(found: Mapping[str, str], name: str, reason: str, longest: int) -> str:
    """A header of 1 to `longest` characters, else `reason`."""
    value = found.get(name, "")
    if not 1 <= len(value) <= longest:
        msg = f"{name} has {len(value)} characters; it must have 1 to {longest}"
        raise RecordError(msg, reason)
    return value


def whole(text: str | None, reason: str) -> int | None:
    """A whole number from 0 up, None when absent or empty, else `reason`."""
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,9}", text):
        msg = f"{text!r} must be a whole number from 0 up"
        raise RecordError(msg, reason)
    return int(text)


def natural(text: str | None) -> int | None:
    """A whole number from 0 up; anything else is as absent."""
    return int(text) if text and re.fullmatch("[0-9]{1,18}", text) else None


def positions(listed: Iterable[Position]) -> list[dict[str, int]]:
    """Positions as they stand in JSON."""
    return [position._asdict() for position in listed]


def read_positions(listed: object, most: int) -> tuple[Position, ...]:
    """A JSON list of 1 to `most` positions, else `BAD_OP`."""
    if not isinstance(listed, list) or not 1 <= len(listed) <= most:
        refuse_op("half_messages or messages", listed, f"a list of 1 to {most} objects with queue and offset")
    return tuple(read_position(entry) for entry in listed)


def read_position(entry: object) -> Position:
    """One JSON object with queue and offset, else `BAD_OP`."""
    values = [entry.get("queue"), entry.get("offset")] if isinstance(entry, dict) else []
    limits = zip(values, (MAX_QUEUE, MAX_OFFSET), strict=False)
    numbers = [value for value, most in limits if type(value) is int and 0 <= value <= most]
    if len(numbers) != len(Position._fields):
        allowed = f"an object with queue, a whole number from 0 to {MAX_QUEUE}, and offset, from 0 to {MAX_OFFSET}"
        refuse_op("an entry", entry, allowed)
    return Position(*numbers)


def read_name(content: Mapping[str, object], key: str) -> str:
    """A string of 1 to 255 characters, else `BAD_OP`."""
    value = content.get(key)
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_LENGTH:
        refuse_op(key, value, f"a string of 1 to {MAX_ID_LENGTH} characters")
    return value


def refuse_op(what: str, value: object, allowed: str) -> NoReturn:
    """Raise `BAD_OP`, naming `what` is wrong, its value and what is allowed."""
    msg = f"{what} is {str(value)[:200]!r}; it must be {allowed}"
    raise RecordError(msg, "BAD_OP")
