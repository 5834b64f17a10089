"""What one instance reads: a lane for each of its queues, and the receipts that are not written yet.

The iterator hands messages over, any thread finishes them, and the keeper writes what came of it: one lock holds it all
together, so that no cursor goes beyond a message whose receipt is not taken along.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commitlake.clients.consumer import assignment
from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.receipts import Receipt
from commitlake.clients.consumer.retries import NEVER, Retries, Waiting
from commitlake.clients.consumer.rows import Place, Rows, place_texts

_OBJECT_BYTES = 200


@dataclass(eq=False, slots=True)
class Handed:
    """Messages of one queue that were handed over together: one, or those of a batch.

    Attributes:
        lane: of their queue.
        rows: where they are.
        indexes: their rows.
        attempt: 1 for the first.
        round: grows by one each time an administrator sends them again, or rewinds the group.
        finished: whether it is known what became of them.
        is_given_back: whether this instance does no more about them; they come again elsewhere.
    """

    lane: Lane
    rows: Rows
    indexes: Sequence[int]
    attempt: int = 1
    round: int = 0
    finished: bool = False
    is_given_back: bool = False

    @property
    def kept_bytes(self) -> int:
        """Memory that it takes, each message taken as the mean of the rows that were read with it."""
        return len(self.indexes) * (int(self.rows.bytes_a_row) + _OBJECT_BYTES)

    @property
    def is_open(self) -> bool:
        """Whether somebody is still at it."""
        return not (self.finished or self.is_given_back)


@dataclass(eq=False, slots=True)
class Passed:
    """Messages of one queue behind one that is open; they are finished, and their rows need no memory any more.

    Attributes:
        end: behind the last of them; also the end of a window.
        kept_bytes: what they took.
    """

    end: Cursor
    kept_bytes: int = 0


@dataclass(eq=False)
class Lane:
    """One queue.

    Attributes:
        cursor: before the first message that is not finished.
        read_to: where the next window begins.
        round: of first attempts.
        handed: first attempts in order, and what is passed among them.
        kept_bytes: of all these; a restart gets them again, and most are finished when one in front is open for long.
        retries: what waits for its next attempt, and what is in somebody's hands again.
        is_closing: another instance reads it, or is due to; nothing more is handed over.
    """

    cursor: Cursor
    read_to: Cursor
    round: int = 0
    handed: deque[Handed | Passed] = field(default_factory=deque)
    kept_bytes: int = 0
    retries: Retries = field(default_factory=Retries)
    is_closing: bool = False

    def append(self, handed: Handed) -> None:
        """Note a first attempt."""
        self.handed.append(handed)
        self.kept_bytes += handed.kept_bytes

    def settle(self) -> None:
        """Move the cursor over all that is finished in front; of what is finished behind keep the ends."""
        kept: deque[Handed | Passed] = deque()
        while self.handed:
            passed = self._finished()
            if kept:
                kept.append(passed)
            else:
                self.cursor.join(passed.end)
                self.kept_bytes -= passed.kept_bytes
            if self.handed:
                kept.append(self.handed.popleft())
        self.handed = kept

    def _finished(self) -> Passed:
        """Take what is finished, up to the next message that is not."""
        end, kept_bytes, rows_of = Cursor(), 0, dict[int, tuple[Rows, list[int]]]()
        while self.handed and (isinstance(self.handed[0], Passed) or self.handed[0].finished):
            first = self.handed.popleft()
            kept_bytes += first.kept_bytes
            if isinstance(first, Passed):
                end.join(first.end)
            else:
                rows_of.setdefault(id(first.rows), (first.rows, []))[1].extend(first.indexes)
        for rows, indexes in rows_of.values():
            end.advance_to_end(rows.keys.where(np.asarray(indexes)))
        return Passed(end, kept_bytes)

    def front(self) -> Handed | None:
        """The first that the cursor has not passed."""
        return next((each for each in self.handed if isinstance(each, Handed)), None)

    def is_held(self) -> bool:
        """Whether the queue must stay here: it is read, or messages are in hand, for the first time or again."""
        in_hand = any(isinstance(each, Handed) and each.is_open for each in self.handed)
        return not self.is_closing or in_hand or bool(self.retries.out)


class Lanes:
    """The lanes of an instance; its methods may be called in any thread.

    Attributes:
        open: messages that are handed over and not finished.
        open_bytes: bytes of their rows, each message taken as the mean of the rows that were read with it.
        window_bytes: bytes of the windows that have one of them: one message keeps all of its window in memory.
        finished: how many were finished so far.
        due_ms: when the next message may be due again, ms since epoch, UTC.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, Lane] = {}
        self._receipts: list[Receipt] = []
        self._lock = threading.Lock()
        self.open = self.open_bytes = self.window_bytes = self.finished = 0
        self.due_ms = NEVER

    def reading(self) -> dict[int, Lane]:
        """The lanes as they are now."""
        with self._lock:
            return {queue: lane for queue, lane in self._lanes.items() if not lane.is_closing}

    def crowded(self, most_bytes: int) -> list[tuple[int, str]]:
        """Queues that keep more than their share of so many bytes, each with the message in front, by its position."""
        with self._lock:
            most = most_bytes // max(1, len(self._lanes))
            lanes = [(queue, lane.front()) for queue, lane in self._lanes.items() if lane.kept_bytes > most]
            return [(queue, _position(front)) for queue, front in lanes if front is not None and front.is_open]

    def has_news(self) -> bool:
        """Whether there is something to write."""
        with self._lock:
            return bool(self._receipts) or any(lane.handed for lane in self._lanes.values())

    def hand_over(self, handed: Handed) -> bool:
        """Note that messages are handed over; False when their queue is no longer read."""
        with self._lock:
            if handed.lane.is_closing:
                return False
            handed.lane.append(handed)
            self._count(handed, 1)
            return True

    def hand_again(self, handed: Handed, place: Place) -> bool:
        """Note that a message is handed over once more; False when that is not to be done here, or no more."""
        with self._lock:
            if handed.lane.is_closing or not handed.lane.retries.begin(place):
                return False
            self._count(handed, 1)
            return True

    def pass_window(self, lane: Lane, end: Cursor) -> None:
        """Note that all messages up to here were handed over."""
        with self._lock:
            if not lane.is_closing:
                lane.read_to.join(end)
                lane.handed.append(Passed(end))

    def finish(self, handed: Handed, receipt: Receipt) -> None:
        """Note what became of messages; only the first time counts."""
        with self._lock:
            if handed.is_open:
                handed.finished = True
                self._receipts.append(receipt)
                self._count(handed, -1)
                self.finished += 1

    def give_back(self, handed: Handed) -> bool:
        """Do no more about messages of a queue that another instance is due to read; False where none is."""
        with self._lock:
            if not handed.lane.is_closing or not handed.is_open:
                return False
            handed.is_given_back = True
            self._count(handed, -1)
            return True

    def take(self) -> tuple[list[Receipt], dict[int, Any], set[int]]:
        """Receipts to write, the cursors that hold once they are written, and the queues that must be kept."""
        with self._lock:
            taken, self._receipts = self._receipts, []
            for lane in self._lanes.values():
                lane.settle()
            cursors = {queue: lane.cursor.to_json() for queue, lane in self._lanes.items()}
            return taken, cursors, {queue for queue, lane in self._lanes.items() if lane.is_held()}

    def put_back(self, receipts: list[Receipt]) -> None:
        """Receipts that could not be written: they are the first to be taken next time."""
        with self._lock:
            self._receipts[:0] = receipts

    def follow(self, state: assignment.State, me: str, held: Collection[int]) -> bool:
        """Read what this instance owns now; whether any lane is new.

        Args:
            state: of the group.
            me: this instance.
            held: queues that were owned and held before; a lane of another queue begins anew, if at all.
        """
        mine, due = assignment.owned(state, me), assignment.due(state)
        with self._lock:
            kept = {queue: lane for queue, lane in self._lanes.items() if queue in mine and queue in held}
            first = assignment.first_rounds(state)[-1]
            new = {queue: _lane(mine[queue], first) for queue in mine if queue not in kept}
            for queue, lane in self._lanes.items():
                lane.is_closing |= queue not in kept or due[queue] != me
            self._lanes = kept | new
            self._set_due()
            return bool(new)

    def note(self, receipts: Iterable[Waiting]) -> None:
        """Receipts that are in the table now."""
        with self._lock:
            for row in receipts:
                if row["queue_id"] in self._lanes:
                    self._lanes[row["queue_id"]].retries.note(row)
            self._set_due()

    def set_waiting(self, receipts: Iterable[Waiting]) -> None:
        """Take over what the table says of messages that wait."""
        with self._lock:
            found: dict[int, list[Waiting]] = {queue: [] for queue in self._lanes}
            for row in receipts:
                if row["queue_id"] in found:
                    found[row["queue_id"]].append(row)
            for queue, rows in found.items():
                self._lanes[queue].retries.replace(rows)
            self._set_due()

    def due(self, now_ms: int, most: int) -> list[tuple[Lane, Waiting]]:
        """Messages that are due again, up to `most` of each queue."""
        with self._lock:
            lanes = [lane for lane in self._lanes.values() if not lane.is_closing]
            found = [(lane, row) for lane in lanes for row in lane.retries.due(now_ms, most)]
            self._set_due()
            return found

    def put_off(self, lane: Lane, place: Place, due_ms: int) -> None:
        """A message that was due can't be handed over before then (ms since epoch, UTC)."""
        with self._lock:
            lane.retries.put_off(place, due_ms)
            self._set_due()

    def _set_due(self) -> None:
        self.due_ms = min(
            (lane.retries.due_ms() for lane in self._lanes.values() if not lane.is_closing), default=NEVER
        )

    def _count(self, handed: Handed, sign: int) -> None:
        count, rows = sign * len(handed.indexes), handed.rows
        self.open += count
        self.open_bytes += count * rows.bytes_a_row
        if rows.open == 0 or rows.open + count == 0:
            self.window_bytes += sign * rows.table.nbytes
        rows.open += count


def _position(handed: Handed) -> str:
    return str(place_texts(handed.rows.table.slice(handed.indexes[0], 1))[0])


def _lane(kept: Mapping[str, Any] | None, first_round: int) -> Lane:
    cursor = Cursor.of_json(kept) if kept else Cursor()
    return Lane(cursor, cursor.copy(), first_round)
