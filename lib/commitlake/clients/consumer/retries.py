"""Messages of one queue that wait for their next attempt."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from commitlake.clients.consumer.rows import Place, place_of

Waiting = Mapping[str, Any]
"""A receipt, as a row of the table."""
NEVER = float("inf")
_NUMBERS = count()


class Retries:
    """Waiting messages of a queue, by due time. A redelivered message stays in `out` until its receipt is written.

    A message leaves only with `begin`, when it is handed over, so that one that could not be read is retried. Not
    thread-safe: `Lanes` locks.
    """

    def __init__(self) -> None:
        self.out: set[Place] = set()
        self._waiting: dict[Place, Waiting] = {}
        self._due: dict[Place, int] = {}  # without those that `due` returned; a heap entry with another time is old
        self._heap: list[tuple[int, int, Place]] = []

    def __len__(self) -> int:
        """How many messages wait for their next attempt."""
        return len(self._waiting)

    def replace(self, receipts: Iterable[Waiting]) -> None:
        """Replace the waiting messages by the table's receipts of this queue."""
        self._waiting, self._due, self._heap = {}, {}, []
        for row in receipts:
            if place_of(row) not in self.out:
                self._wait(row)

    def note(self, receipt: Waiting) -> None:
        """Note a receipt that is in the table now."""
        self.out.discard(place_of(receipt))
        if receipt["state"] == "RETRY":
            self._wait(receipt)

    def due_ms(self) -> float:
        """When the next message is due, ms since epoch, UTC; `NEVER` when none waits."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else NEVER

    def due(self, now_ms: int, most: int) -> list[Waiting]:
        """Receipts of messages that are due; the caller calls `begin` or `put_off` for each."""
        found: list[Waiting] = []
        while len(found) < most and self.due_ms() <= now_ms:
            place = heapq.heappop(self._heap)[2]
            del self._due[place]
            found.append(self._waiting[place])
        return found

    def begin(self, place: Place) -> bool:
        """Note that a message is handed over; False when it waits no more."""
        self._due.pop(place, None)
        if self._waiting.pop(place, None) is None:
            return False
        self.out.add(place)
        return True

    def put_off(self, place: Place, due_ms: int) -> None:
        """Make a message that was due, and not handed over, due at `due_ms` (ms since epoch, UTC)."""
        if place in self._waiting and place not in self._due:
            self._due[place] = due_ms
            heapq.heappush(self._heap, (due_ms, next(_NUMBERS), place))

    def _wait(self, receipt: Waiting) -> None:
        place, due_ms = place_of(receipt), int(receipt["due_at"].timestamp() * 1_000)
        self._waiting[place], self._due[place] = receipt, due_ms
        heapq.heappush(self._heap, (due_ms, next(_NUMBERS), place))
