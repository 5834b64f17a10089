"""Messages of one queue that wait for their next attempt."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from commitlake.clients.consumer.rows import Place, place_of

Waiting = Mapping[str, Any]
"""A receipt, as a row of the table."""
NEVER = float("inf")
_DUE_MS = itemgetter(0)


class Retries:
    """Waiting messages of a queue. A redelivered message stays in `out` until its receipt is written.

    A message leaves only with `begin`, when it is handed over, so that one that could not be read is retried. Not
    thread-safe: `Lanes` locks.
    """

    def __init__(self) -> None:
        self.out: set[Place] = set()
        self._waiting: dict[Place, tuple[int, Waiting]] = {}

    def __len__(self) -> int:
        """How many messages wait for their next attempt."""
        return len(self._waiting)

    def replace(self, receipts: Iterable[Waiting]) -> None:
        """Replace the waiting messages by the table's receipts of this queue."""
        self._waiting = {place: (_due_ms(row), row) for row in receipts if (place := place_of(row)) not in self.out}

    def note(self, receipt: Waiting) -> None:
        """Note a receipt that is in the table now."""
        place = place_of(receipt)
        self.out.discard(place)
        if receipt["state"] == "RETRY":
            self._waiting[place] = _due_ms(receipt), receipt

    def due_ms(self) -> float:
        """When the next message is due, ms since epoch, UTC; `NEVER` when none waits."""
        return min(map(_DUE_MS, self._waiting.values()), default=NEVER)

    def due(self, now_ms: int, most: int) -> list[Waiting]:
        """Receipts of messages that are due; the caller calls `begin` for each that it hands over."""
        found = (each for each in self._waiting.values() if each[0] <= now_ms)
        return [receipt for _, receipt in heapq.nsmallest(most, found, key=_DUE_MS)]

    def begin(self, place: Place) -> bool:
        """Note that a message is handed over; False when it waits no more."""
        if self._waiting.pop(place, None) is None:
            return False
        self.out.add(place)
        return True

    def put_off(self, place: Place, due_ms: int) -> None:
        """Make a message that waits due at `due_ms` (ms since epoch, UTC), or when it was due if that is later."""
        if place in self._waiting:
            before_ms, receipt = self._waiting[place]
            self._waiting[place] = max(before_ms, due_ms), receipt


def _due_ms(receipt: Waiting) -> int:
    return int(receipt["due_at"].timestamp() * 1_000)
