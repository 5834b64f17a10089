"""Kafka records made by numpy and sent without a client library: about 3 us a record, where kafka-python needs 60.

A load of 10 000 records a second must leave the machine to what is measured. All records of a `Layout` have one length,
so many of them are a matrix of bytes, in which the fields are columns.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

MOST = 8_191
"""Records in a batch: what fits the two bytes that each has for its place."""
_PRODUCE, _VERSION = 0, 3
_TIMEOUT_MS = 30_000
_UNREADY, _UNREADY_S = (3, 5, 6), 10
"""Errors of a topic that was created a moment ago, and for how long they are harmless."""


class Field(NamedTuple):
    """Bytes that differ from record to record: a number with leading `pad`, or bytes that are given."""

    name: str
    width: int
    pad: bytes = b"0"


Part = bytes | Field
_PLACE = Field("place in the batch", 2)


class Layout:
    """What all records of a kind have in common.

    Args:
        value: the value's parts, joined.
        key: the key's parts; none for no key.
        headers: the parts of each header's value.
    """

    def __init__(
        self, value: Sequence[Part], key: Sequence[Part] = (), headers: Mapping[str, Sequence[Part]] | None = None
    ) -> None:
        parts: list[Part] = [b"\0\0", _PLACE, *(_sized(key) if key else [_varint(-1)]), *_sized(value)]
        parts.append(_varint(len(headers or {})))
        for name, header in (headers or {}).items():
            parts += [*_sized([name.encode()]), *_sized(header)]
        parts = _sized(parts)
        ends = np.cumsum([_width(part) for part in parts]).tolist()
        self._fields = [(part, end) for part, end in zip(parts, ends, strict=True) if isinstance(part, Field)]
        filled = b"".join(part if isinstance(part, bytes) else b" " * part.width for part in parts)
        self._template = np.frombuffer(filled, np.uint8)

    def batches(self, queues: np.ndarray, **values: np.ndarray) -> dict[int, bytes]:
        """Record batches by partition, each in the order of the rows.

        Args:
            queues: the partition of each row.
            values: for each field whole numbers, or a matrix of bytes with the field's width.
        """
        order = np.argsort(queues, kind="stable")
        counts = np.bincount(queues)
        begins = np.cumsum(counts) - counts
        places = np.arange(len(queues)) - begins[queues[order]]
        rows = np.tile(self._template, (len(queues), 1))
        for field, end in self._fields:
            taken = _place_bytes(places) if field is _PLACE else _bytes_of(field, values[field.name][order])
            rows[:, end - field.width : end] = taken
        sums = _checksums(rows)
        split = {queue: slice(begins[queue], begins[queue] + counts[queue]) for queue in np.flatnonzero(counts)}
        return {int(queue): _batch(rows[part], sums[part]) for queue, part in split.items()}


def padded(texts: Sequence[bytes], width: int) -> np.ndarray:
    """A matrix of bytes: each text with blanks behind it; a text that is too long fails."""
    joined = b"".join(text.ljust(width) for text in texts)
    return np.frombuffer(joined, np.uint8).reshape(len(texts), width)


class Appended(NamedTuple):
    """Where a batch begins in its partition, and when the broker appended it (ms since epoch, UTC)."""

    offset: int
    at_ms: int


class Producer:
    """One connection to a broker that leads all partitions; each send is acknowledged before it returns."""

    def __init__(self, servers: str) -> None:
        host, _, port = servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_MS / 1_000)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sent = 0

    def send(self, topic: str, batches: Mapping[int, bytes]) -> dict[int, Appended]:
        """Sends one batch to each of some partitions.

        Raises:
            RuntimeError: the broker refused one; the message has Kafka's error code.
        """
        appended: dict[int, Appended] = {}
        until = time.monotonic() + _UNREADY_S
        while missing := {queue: batch for queue, batch in batches.items() if queue not in appended}:
            for queue, error, offset, at_ms in self._produce(topic, missing):
                if not error:
                    appended[queue] = Appended(offset, at_ms)
                elif error not in _UNREADY or time.monotonic() > until:
                    msg = f"Kafka refused a batch for {topic}-{queue} with error {error}"
                    raise RuntimeError(msg)
        return appended

    def _produce(self, topic: str, batches: Mapping[int, bytes]) -> Iterator[tuple[int, ...]]:
        """One request; yields partition, error, offset and append time."""
        self._sent += 1
        begin = struct.pack(">hhih5shhi", _PRODUCE, _VERSION, self._sent, 5, b"bench", -1, 1, _TIMEOUT_MS)
        named = struct.pack(f">ih{len(topic)}si", 1, len(topic), topic.encode(), len(batches))
        each = [struct.pack(">ii", queue, len(batch)) + batch for queue, batch in batches.items()]
        request = b"".join([begin, named, *each])
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        answer = self._read(*struct.unpack(">i", self._read(4)))
        return struct.iter_unpack(">ihqq", answer[4 + 4 + 2 + len(topic) + 4 : -4])

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            if not more:
                msg = "the broker closed the connection"
                raise ConnectionError(msg)
            found += more
        return bytes(found)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()


def _batch(rows: np.ndarray, sums: np.ndarray) -> bytes:
    """Kafka's record batch, version 2: no compression, no transaction; the broker sets the append time."""
    count, now = len(rows), time.time_ns() // 1_000_000
    assert count <= MOST, count
    checked = struct.pack(">hiqqqhii", 0, count - 1, now, now, -1, -1, -1, count)
    state = 0xFFFFFFFF
    table = _table().tolist()
    for byte in checked:
        state = table[(state ^ byte) & 255] ^ (state >> 8)
    shift = _shift(rows.shape[1])
    for row in sums.tolist():
        state = shift[0][state & 255] ^ shift[1][state >> 8 & 255] ^ shift[2][state >> 16 & 255] ^ shift[3][state >> 24]
        state ^= row
    body = struct.pack(">ibI", -1, 2, state ^ 0xFFFFFFFF) + checked + rows.tobytes()
    return struct.pack(">qi", 0, len(body)) + body


def _checksums(rows: np.ndarray) -> np.ndarray:
    """The CRC-32C of each row, begun with 0 and not inverted: such sums can be put together."""
    return _run(np.zeros(len(rows), np.uint32), np.ascontiguousarray(rows.T))


def _run(states: np.ndarray, columns: np.ndarray) -> np.ndarray:
    table = _table()
    for column in columns:
        states = table[states.astype(np.uint8) ^ column] ^ (states >> 8)
    return states


@cache
def _table() -> np.ndarray:
    states = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        states = np.where(states & 1, (states >> 1) ^ np.uint32(0x82F63B78), states >> 1)
    return states


@cache
def _shift(width: int) -> list[list[int]]:
    """What `width` more bytes make of a sum, for each value of each of its four bytes."""
    states = (np.arange(256, dtype=np.uint32)[None, :] << np.array([[0], [8], [16], [24]], np.uint32)).ravel()
    return _run(states, np.zeros((width, 1), np.uint8)).reshape(4, 256).tolist()


def _bytes_of(field: Field, values: np.ndarray) -> np.ndarray:
    if values.dtype == np.uint8:
        return values
    powers = 10 ** np.arange(field.width - 1, -1, -1)
    digits = values[:, None] // powers % 10 + ord("0")
    is_leading = (values[:, None] < powers) & (powers > 1)
    return np.where(is_leading, ord(field.pad), digits)


def _place_bytes(places: np.ndarray) -> np.ndarray:
    """A signed varint in two bytes, also where one would do."""
    doubled = places * 2
    return np.stack([doubled & 127 | 128, doubled >> 7], axis=1)


def _sized(parts: Sequence[Part]) -> list[Part]:
    return [_varint(sum(map(_width, parts))), *parts]


def _width(part: Part) -> int:
    return part.width if isinstance(part, Field) else len(part)


def _varint(number: int) -> bytes:
    rest, found = number << 1 ^ number >> 63, bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])
