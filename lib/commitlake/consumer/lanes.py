"""What one instance reads: a lane for each of its queues, and the receipts that are not written yet.

The iterator hands messages over, any thread finishes them, and the keeper writes what came of it: one lock holds it all
together, so that no cursor goes beyond a message whose receipt is not taken along.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commitlake.consumer import shares
from commitlake.consumer.cursor import Cursor
from commitlake.consumer.message import ReceivedMessage
from commitlake.consumer.receipts import Receipt
from commitlake.consumer.rows import Rows


@dataclass(eq=False)
class Lane:
    """One queue.

    Attributes:
        cursor: before the first message that is not finished.
        read_to: where the next window begins.
        handed: messages in order, and the ends of windows.
        is_closing: another instance is due to read it; nothing more is handed over.
    """

    cursor: Cursor
    read_to: Cursor
    handed: deque[ReceivedMessage | Cursor] = field(default_factory=deque)
    is_closing: bool = False

    def settle(self) -> None:
        """Move the cursor over all that is finished in front."""
        passed: dict[int, tuple[Rows, list[int]]] = {}
        while self.handed and (isinstance(self.handed[0], Cursor) or self.handed[0].finished):
            first = self.handed.popleft()
            if isinstance(first, Cursor):
                self.cursor.join(first)
            else:
                passed.setdefault(id(first.rows), (first.rows, []))[1].append(first.row)
        for rows, indexes in passed.values():
            self.cursor.advance_to_end(rows.keys.where(np.asarray(indexes)))


class Lanes:
    """The lanes of an instance; its methods may be called in any thread."""

    def __init__(self) -> None:
        self._lanes: dict[int, Lane] = {}
        self._receipts: list[Receipt] = []
        self._lock = threading.Lock()
        self.open = 0

    def __len__(self) -> int:
        """How many queues this instance reads."""
        return len(self._lanes)

    def reading(self) -> dict[int, Lane]:
        """The lanes as they are now."""
        with self._lock:
            return {queue: lane for queue, lane in self._lanes.items() if not lane.is_closing}

    def has_news(self) -> bool:
        """Whether there is something to write."""
        with self._lock:
            return bool(self._receipts) or any(lane.handed for lane in self._lanes.values())

    def hand_over(self, queue: int, lane: Lane, item: ReceivedMessage | Cursor) -> bool:
        """Note that a message is handed over, or that a window ended; False when the queue is no longer read."""
        with self._lock:
            if lane.is_closing or self._lanes.get(queue) is not lane:
                return False
            lane.handed.append(item)
            self.open += isinstance(item, ReceivedMessage)
            return True

    def hand_again(self) -> None:
        """Note that a message is handed over once more."""
        with self._lock:
            self.open += 1

    def finish(self, message: ReceivedMessage, receipt: Receipt) -> None:
        """Note what became of a message; only the first time counts."""
        with self._lock:
            if not message.finished:
                message.finished = True
                self._receipts.append(receipt)
                self.open -= 1

    def take(self) -> tuple[list[Receipt], dict[int, Any], set[int]]:
        """Receipts to write, the cursors that hold once they are written, and the queues that must be kept."""
        with self._lock:
            taken, self._receipts = self._receipts, []
            for lane in self._lanes.values():
                lane.settle()
            cursors = {queue: lane.cursor.to_json() for queue, lane in self._lanes.items()}
            held = {queue for queue, lane in self._lanes.items() if lane.handed or not lane.is_closing}
            return taken, cursors, held

    def follow(self, state: shares.State, me: str, held: Collection[int]) -> bool:
        """Read what this instance owns now; whether any lane is new.

        Args:
            state: of the group.
            me: this instance.
            held: what `take` told before the state was made: a closed lane that is not held begins anew, if at all.
        """
        mine, due = shares.owned(state, me), shares.due(state)
        with self._lock:
            kept = {queue: lane for queue, lane in self._lanes.items() if queue in mine and queue in held}
            new = {queue: _lane(mine[queue]) for queue in mine if queue not in kept}
            self._lanes = kept | new
            for queue, lane in kept.items():
                lane.is_closing |= due[queue] != me
            return bool(new)


def _lane(kept: Mapping[str, Any] | None) -> Lane:
    cursor = Cursor.of_json(kept) if kept else Cursor()
    return Lane(cursor, cursor.copy())
