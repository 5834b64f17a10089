"""Fields of a record as text and bytes; `wire` says which fields there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from commitlake.errors import RecordError

MAX_ID_LENGTH = 255
"""Characters of a message id, a transaction id or a producer group."""
LATEST_BORN_MS = (2**63 - 1) // 1_000_000
OFFSET_BITS = 48
"""A position's *coordinate* is one 64-bit number: the offset in these lower bits, the queue above them. They last a
queue 8 900 years at 1 000 records a second. `tables.columns` and `statemachine.rows` build coordinates."""
MAX_OFFSET = 2**OFFSET_BITS - 1
MAX_QUEUE = 2 ** (63 - OFFSET_BITS) - 1
"""The largest queue of a coordinate. `kafka.queues` is no limit here: partitions may be added by hand, and an op about
one of them is not malformed."""

Headers = Sequence[tuple[str, bytes]]


class Position(NamedTuple):
    """The position of a record: its Kafka partition (= queue) and its Kafka offset (= queue offset)."""

    queue: int
    offset: int

    def __str__(self) -> str:
        return f"{self.queue}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read `<queue>-<offset>`.

        Raises:
            RecordError: `text` has another form, or is out of range.
        """
        found = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,18})", text)
        if not found or int(found[1]) > MAX_QUEUE or int(found[2]) > MAX_OFFSET:
            msg = f"{text[:100]!r} is not a position in Kafka; write <queue>-<offset>, for example 0-12"
            raise RecordError(msg)
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def checked(cls, queue: object, offset: object) -> Position:
        """A position from two numbers of a JSON text.

        Raises:
            RecordError: one is not an integer, such as `true` or 1.0, or is out of range.
        """
        if type(queue) is int and type(offset) is int and 0 <= queue <= MAX_QUEUE and 0 <= offset <= MAX_OFFSET:
            return cls(queue, offset)
        msg = f"queue {queue!r:.50} and offset {offset!r:.50} are no position in Kafka; both are whole numbers from 0"
        raise RecordError(msg)

    @classmethod
    def from_coordinate(cls, coordinate: int) -> Position:
        """The position that a coordinate stands for."""
        return cls(coordinate >> OFFSET_BITS, coordinate & MAX_OFFSET)


def to_json(content: object) -> bytes:
    """Compact JSON, ASCII only, so that no text can make it invalid UTF-8."""
    return json.dumps(content, separators=(",", ":")).encode()


def from_json(value: bytes | None, reason: str | None, *, is_strict: bool = False) -> Any:
    """Read UTF-8 JSON, or raise `RecordError` with `reason`; `is_strict` rejects NaN and a name twice in an object."""
    rules: dict[str, Any] = {"object_pairs_hook": _once_each, "parse_constant": _no_number} if is_strict else {}
    try:
        return json.loads((value or b"").decode(), **rules)
    except (ValueError, RecursionError) as error:
        msg = f"value is not UTF-8 JSON: {error}"
        raise RecordError(msg, reason) from error


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        msg = "an object has a name twice"
        raise ValueError(msg)
    return found


def _no_number(name: str) -> NoReturn:
    msg = f"{name} is no JSON"
    raise ValueError(msg)


def to_headers(own: Mapping[str, object], properties: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Header list: user properties first, then the protocol's own headers. Headers that are None are left out.

    Raises:
        RecordError: a name or a value can't be written.
    """
    both = {**properties, **own}
    return [(_header_name(name), utf8(str(value))) for name, value in both.items() if value is not None]


def _header_name(name: str) -> str:
    """Rejects a name with NUL: librdkafka cuts it there, and the rest may be the name of a protocol header."""
    if b"\0" in utf8(name):
        msg = f"property {name[:100]!r} has a NUL in its name; remove it"
        raise RecordError(msg)
    return name


def texts(headers: Headers) -> dict[str, str]:
    """Headers by name; of duplicates the last wins."""
    return {name: value.decode(errors="replace") for name, value in headers if value is not None}


def plain_text(text: str) -> str:
    """The content of a `str`; `str()` would return the name of a member of `class Topic(str, Enum)`."""
    return str.__str__(text)


def utf8(text: str) -> bytes:
    """UTF-8 bytes, or `RecordError` for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        msg = f"{text[:100]!r} cannot be written as UTF-8: {error.reason}; remove the character"
        raise RecordError(msg) from error


def natural(text: str | None) -> int | None:
    """A whole number from 0 up; None for anything else."""
    return int(text) if text and re.fullmatch("[0-9]{1,18}", text) else None


def born_ms(text: str | None) -> int | None:
    """When a message was made, ms since epoch, UTC; None after the year 2262, where the ns of pandas and Arrow end."""
    number = natural(text)
    return None if number is None or number > LATEST_BORN_MS else number


def positions(listed: Iterable[Position]) -> list[dict[str, int]]:
    """Positions as JSON objects."""
    return [position._asdict() for position in listed]


def read_positions(listed: object, most: int, reason: str | None) -> tuple[Position, ...]:
    """Positions from JSON, or raise `RecordError` with `reason` unless it lists 1 to `most` of them."""
    try:
        if isinstance(listed, list) and 1 <= len(listed) <= most:
            return tuple(Position.checked(entry["queue"], entry["offset"]) for entry in listed)
    except (KeyError, TypeError, RecordError):
        pass
    msg = (
        f"{listed!s:.200} is no list of 1 to {most} objects with queue, 0 to {MAX_QUEUE}, and offset, 0 to {MAX_OFFSET}"
    )
    raise RecordError(msg, reason)
