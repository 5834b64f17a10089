"""What Python programs give as the fields of a message: right, wrong, and what only looks right."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any

import numpy as np

from commitlake import Message, config
from commitlake.clients.producer.record_maker import RecordMaker
from commitlake.errors import RecordError
from commitlake.protocol import headers, wire
from commitlake.protocol.encoding import Position


class Name(str, Enum):  # noqa: UP042 - the trap itself
    """The usual way to name topics and tags; `str()` of a member is `Name.ORDERS`."""

    ORDERS = "orders"
    PAID = "paid"
    SPLIT = "a||b"


class Number(IntEnum):
    THREE = 3
    MANY = 10_000


class Loud(str):
    """A text that shows itself as another one."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


class Count(int):
    """A number that shows itself as a text."""

    def __str__(self) -> str:
        return "many"

    def __int__(self) -> int:
        return 99


class Bytes(bytes):
    """Bytes that give others away."""

    def __bytes__(self) -> bytes:
        return b"other"


def released() -> memoryview:
    """One that nobody may read any more."""
    view = memoryview(b"gone")
    view.release()
    return view


_TEXTS = [
    "",
    "a",
    "orders",
    "x" * 127,
    "x" * 128,
    "x" * 255,
    "x" * 256,
    "TBW102",
    "%RETRY%g",
    "a b",
    " a",
    "a||b",
    "\0",
]
_TEXTS += ["\ud800", "ü", "1", "3h", "5", "payments", *Name, Loud("orders"), Loud("paid"), np.str_("orders")]
_NUMBERS: list[Any] = [True, False, 0, 1, 3, 7, 8, -1, 10**12, 10**19, 10**4000, -(10**4000), *Number, Count(3)]
_NUMBERS += [np.int64(3), np.uint8(3), np.bool_(True), 1.0, 1.5, -0.5, 1e300, float("nan"), float("inf")]
_NUMBERS += [np.float32(1.5), Decimal(3), Fraction(1, 3), Fraction(10**400), np.timedelta64(3, "s"), 3j]
_BYTES: list[Any] = [
    b"",
    b"orders",
    Bytes(b"body"),
    bytearray(b"body"),
    memoryview(b"body"),
    memoryview(b"body")[::2],
    released(),
]
_BYTES += [b"x" * 2_048, b"x" * 2_049, bytearray(b"x" * 2_049)]
NOW = datetime.now(UTC)
_TIMES: list[Any] = [
    NOW,
    NOW.replace(tzinfo=None),
    NOW - timedelta(300),
    NOW - timedelta(400),
    NOW + timedelta(3),
    NOW.date(),
]
_TIMES += [NOW.astimezone(timezone(timedelta(hours=5))), datetime.max.replace(tzinfo=UTC), date.min]
_TIMES += [int(NOW.timestamp()), int(NOW.timestamp() * 1_000), NOW.timestamp() * 1_000, np.datetime64("now")]
_TIMES += [timedelta(seconds=3), timedelta(-1), timedelta(days=41)]
_OTHERS: list[Any] = [
    None,
    object(),
    [],
    {},
    {"a": "b"},
    ["paid"],
    ("a",),
    uuid.UUID(int=5),
    np.array([1, 2]),
    str,
    Ellipsis,
]
VALUES: list[Any] = [*_TEXTS, *_NUMBERS, *_BYTES, *_TIMES, *_OTHERS]
PROPERTIES: list[Any] = [
    *({name: "value"} for name in (*_TEXTS, *_NUMBERS, "DELAY", "UNIQ_KEY", "TRAN_MSG", "BATCH", "STORED_TIMESTAMP")),
    *({"name": value} for value in VALUES),
    *_OTHERS,
]
_INT, _TEXT, _DATA = (int, np.integer), (str,), (str, bytes, bytearray, memoryview)
TYPED: dict[str, tuple[type, ...]] = {
    "topic": _TEXT,
    "body": _DATA,
    "tags": _TEXT,
    "keys": _TEXT,
    "queue_id": _INT,
    "sharding_key": _DATA,
    "delay_time_level": _INT,
    "delay_seconds": _INT,
    "delay_milliseconds": _INT,
    "deliver_at": _INT,
    "check_immunity_seconds": (),
    "transaction_id": _TEXT,
    "message_id": _TEXT,
}
"""The fields but for properties, and what each has in a record as it is; a duration has other kinds, too."""


def is_typed(name: str, value: Any) -> bool:
    """Whether a record has this value of a field as it is."""
    return isinstance(value, TYPED[name]) and not isinstance(value, bool | np.timedelta64) and _is_written(value)


def _is_written(value: Any) -> bool:
    try:
        return plain(value).encode() is not None if isinstance(value, str) else bool(str(plain(value)))
    except ValueError:  # a lone surrogate, a memoryview that was released
        return False


def plain(value: Any) -> Any:
    """What a value says, without asking it: the content of a text, of bytes, of a number."""
    if isinstance(value, str):
        return "".join(str.__iter__(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return memoryview(value).tobytes()
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return value + 0
    if isinstance(value, dict):
        return {plain(name): plain(each) for name, each in value.items()}
    return value


CONFIG = {
    "topics": {"allowed": ["order*", "x*", "%RETRY%g", "a"], "max_queues": 8},
    "max_message_size": "2KiB",
    "delay": {"max": "40d"},
}
SETTINGS = config.from_mapping(CONFIG).limits(())
MAKER = RecordMaker("group", SETTINGS)
OLD = replace(MAKER, settings=replace(SETTINGS, batch_head=False))
FIRST = MAKER.half(Message("orders", b"first"))


def made(fields: dict[str, Any]) -> Message:
    """A message whose fields are set one by one, past all that its constructor looks at."""
    message = Message("orders", b"body")
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def sent(path: str, fields: dict[str, Any]) -> tuple[str, wire.Encoded]:
    """The Kafka topic that a message goes to, and its record."""
    message = made(fields)
    if path == "message":
        return "messages", wire.encode_message(MAKER.message(message))
    if path == "half":
        return "half", wire.encode_half(MAKER.half(message))
    if path == "part":
        return "half", wire.encode_half(MAKER.half(message, FIRST, Position(0, 1)))
    common = {"topic", "queue_id", "sharding_key"}
    place = {name: value for name, value in fields.items() if name in common}
    maker = MAKER if path == "batch" else OLD
    return "messages", wire.encode_message(maker.batch([message, made(place)])[0])


def refusal(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except RecordError as error:
        return error.reason or "refused"
    return None


HEADERS = {
    "topic": headers.REAL_TOPIC,
    "tags": headers.TAGS,
    "keys": headers.KEYS,
    "queue_id": headers.REAL_QID,
    "delay_time_level": headers.DELAY,
    "delay_seconds": headers.TIMER_DELAY_SEC,
    "delay_milliseconds": headers.TIMER_DELAY_MS,
    "deliver_at": headers.TIMER_DELIVER_MS,
    "transaction_id": headers.TRANSACTION_ID,
    "message_id": headers.UNIQ_KEY,
}


def bare(name: str, value: Any) -> wire.Encoded:
    """A record with one such value, made without a producer."""
    data = plain(value).encode() if isinstance(value, str) else plain(value)
    own = {headers.REAL_TOPIC: "orders", headers.UNIQ_KEY: "m1", headers.PGROUP: "group"}
    if name in HEADERS:
        own[HEADERS[name]] = str(plain(value))
    named = [(header, text.encode()) for header, text in own.items()]
    return wire.Encoded(data if name == "sharding_key" else None, data if name == "body" else b"body", named)
