"""How far a Kafka partition may be committed while its records are processed out of order."""

from __future__ import annotations

import threading


class Progress:
    """The offset below which every record of one partition is done. Offsets must begin in rising order."""

    def __init__(self) -> None:
        self._open: dict[int, None] = {}  # keeps the order in which they began
        self._next = 0
        self._lock = threading.Lock()

    def begin(self, offset: int) -> None:
        """Note that the record at `offset` has been read."""
        with self._lock:
            self._open[offset] = None
            self._next = offset + 1

    def done(self, offset: int) -> None:
        """Note that it needs no more work; a second time changes nothing."""
        with self._lock:
            self._open.pop(offset, None)

    @property
    def position(self) -> int:
        """Offset of the first record that is not done, or else the one after the last that was read."""
        with self._lock:
            return next(iter(self._open), self._next)
