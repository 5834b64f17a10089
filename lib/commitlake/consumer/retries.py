"""Messages that wait for their next attempt."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from commitlake.consumer.rows import Place, place_of

Waiting = Mapping[str, Any]
"""A receipt, as a row of the table."""


class Retries:
    """What waits, by due time. Messages that are handed over again stay `out` until their receipt is written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, Waiting]] = []
        self._out: set[Place] = set()

    def replace(self, receipts: Iterable[Waiting], queues: Collection[int]) -> None:
        """Take over what the table says of these queues."""
        with self._lock:
            mine = [row for row in receipts if row["queue_id"] in queues and place_of(row) not in self._out]
            self._waiting = [(_ms(row), id(row), row) for row in mine]
            heapq.heapify(self._waiting)

    def add(self, receipt: Waiting) -> None:
        """A message is to come again."""
        with self._lock:
            self._out.discard(place_of(receipt))
            heapq.heappush(self._waiting, (_ms(receipt), id(receipt), receipt))

    def is_due(self, now_ms: int) -> bool:
        """Whether any message is due."""
        waiting = self._waiting
        return bool(waiting) and waiting[0][0] <= now_ms

    def take_due(self, now_ms: int, most: int = 1_000) -> list[Waiting]:
        """Receipts of messages that are due, which are out from now on."""
        found: list[Waiting] = []
        with self._lock:
            while self._waiting and self._waiting[0][0] <= now_ms and len(found) < most:
                found.append(heapq.heappop(self._waiting)[2])
                self._out.add(place_of(found[-1]))
        return found

    def end(self, place: Place) -> None:
        """The receipt of a message that was out is in the table."""
        with self._lock:
            self._out.discard(place)


def _ms(row: Waiting) -> int:
    return int(row["due_at"].timestamp() * 1_000)
