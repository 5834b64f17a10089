"""The offset to commit of a Kafka partition whose records are processed out of order, by calls that may hang."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class CheckProgress:
    """The offset below which every record of one partition is done. Calls of `begin` must come in rising order."""

    def __init__(self) -> None:
        self._open: dict[int, None] = {}  # a dict keeps the order in which records began
        self._next = 0
        self._lock = threading.Lock()

    def begin(self, offset: int) -> None:
        """Note that the record at `offset` has been read."""
        with self._lock:
            self._open[offset] = None
            self._next = offset + 1

    def done(self, offset: int) -> None:
        """Note that the record at `offset` needs no more work; a second call changes nothing."""
        with self._lock:
            self._open.pop(offset, None)

    def __len__(self) -> int:
        """How many records were read and are not done."""
        return len(self._open)

    @property
    def position(self) -> int:
        """Offset of the first record that is not done; else the offset after the last record that was read."""
        with self._lock:
            return next(iter(self._open), self._next)


class Calls:
    """Calls of the listener, each of which may take `timeout_s`."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._begun: dict[int, float] = {}
        self._numbers = itertools.count()
        self._returned = time.monotonic()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a call as running within the `with` block."""
        number = next(self._numbers)
        self._begun[number] = time.monotonic()
        try:
            yield
        finally:
            self._returned = time.monotonic()
            del self._begun[number]

    def __len__(self) -> int:
        """How many calls are running."""
        return len(self._begun)

    def are_late(self) -> bool:
        """Whether calls are running, and none has begun or returned for `timeout_s`."""
        begun = list(self._begun.values())
        return bool(begun) and time.monotonic() - max(self._returned, *begun) > self.timeout_s
