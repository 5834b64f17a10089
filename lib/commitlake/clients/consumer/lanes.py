"""What one instance reads: a lane for each of its queues, and the receipts that are not written yet.

The iterator hands messages over, any thread finishes them, and the member writes what came of it: one lock holds it all
together, so that no cursor goes beyond a message whose receipt is not taken along.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from commitlake.clients.consumer import assignment
from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.receipts import Attempt, Receipt, Unwritten
from commitlake.clients.consumer.retries import NEVER, Retries, Waiting
from commitlake.clients.consumer.rows import PLACE_COLUMNS, Chosen, Place, Rows

_OBJECT_BYTES = 200
_MOST_MOVED = 64
"""Tables of messages that left their windows, each 16 kB beside its rows; more are put together."""


@dataclass(eq=False, slots=True)
class InFlight:
    """Messages of one queue that were handed over together: one, or those of a batch.

    Attributes:
        lane: of their queue.
        chosen: where they are; `Lanes.shrink` moves them.
        attempt: 1 for the first.
        round: grows by one each time an administrator sends them again, or rewinds the group.
        finished: whether it is known what became of them.
        is_given_back: whether this instance does no more about them; they come again elsewhere.
    """

    lane: Lane
    chosen: Chosen
    attempt: int = 1
    round: int = 0
    finished: bool = False
    is_given_back: bool = False

    def value(self, column: str) -> Any:
        """A value of the message, or of the first one."""
        return self.chosen.rows.value(column, self.chosen.indexes[0])

    def place(self) -> Place:
        """What identifies the message, or the first one."""
        return tuple(map(self.value, PLACE_COLUMNS))

    @property
    def kept_bytes(self) -> int:
        """Memory that it takes, each message taken as the mean of the rows that were read with it."""
        return len(self.chosen.indexes) * (int(self.chosen.rows.bytes_a_row) + _OBJECT_BYTES)

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
        retries: what waits for its next attempt, and what is in somebody's hands again.
        is_closing: another instance reads it, or is due to; nothing more is handed over.
        is_lost: another instance may read it, which gets all that is not done.
    """

    cursor: Cursor
    read_to: Cursor
    round: int = 0
    handed: deque[InFlight | Passed] = field(default_factory=deque)
    retries: Retries = field(default_factory=Retries)
    is_closing: bool = False
    is_lost: bool = False

    def settle(self) -> bool:
        """Move the cursor over all that is finished in front; of what is finished behind keep the ends.

        Returns:
            Whether anything was in front.
        """
        kept: deque[InFlight | Passed] = deque()
        has_moved = bool(self.handed) and not _is_unfinished(self.handed[0])
        while self.handed:
            passed = self._finished()
            if kept:
                kept.append(passed)
            else:
                self.cursor.join(passed.end)
            if self.handed:
                kept.append(self.handed.popleft())
        self.handed = kept
        return has_moved

    def _finished(self) -> Passed:
        """Take what is finished, up to the next message that is not."""
        end, kept_bytes, rows_of = Cursor(), 0, dict[int, tuple[Rows, list[int]]]()
        while self.handed and not _is_unfinished(self.handed[0]):
            first = self.handed.popleft()
            kept_bytes += first.kept_bytes
            if isinstance(first, Passed):
                end.join(first.end)
            else:
                rows, indexes = first.chosen
                rows_of.setdefault(id(rows), (rows, []))[1].extend(indexes)
        for rows, indexes in rows_of.values():
            end.advance_to_end(rows.keys.where(np.asarray(indexes)))
        return Passed(end, kept_bytes)

    def passed_bytes(self) -> int:
        """What is finished behind an open message took so much; a restart gets it again."""
        return sum(each.kept_bytes for each in self.handed if isinstance(each, Passed))

    def front(self) -> InFlight | None:
        """The first that the cursor has not passed."""
        return next((each for each in self.handed if isinstance(each, InFlight)), None)

    def is_held(self) -> bool:
        """Whether the queue must stay here: it is read, or messages are in hand, for the first time or again."""
        in_hand = any(isinstance(each, InFlight) and each.is_open for each in self.handed)
        return not self.is_closing or in_hand or bool(self.retries.out)


class Lanes:
    """The lanes of an instance; its methods may be called in any thread.

    Attributes:
        open: messages that are handed over and not finished.
        open_bytes: bytes of their rows, each message taken as the mean of the rows that were read with it.
        unwritten: messages whose receipts are not written yet.
        finished: how many were finished so far.
        due_ms: when the next message may be due again, ms since epoch, UTC.
        changes: how often queues came or went.
        wake: tells whoever waits for messages to look again.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self.wake = wake
        self._lanes: dict[int, Lane] = {}
        self._open: set[InFlight] = set()
        self._has_moved = False  # whether a cursor has since the last `take`
        self._receipts, self._at_work = list[tuple[Lane, Receipt]](), list[tuple[Lane, Receipt]]()
        self._lock = threading.RLock()  # garbage collection may end an iterator, which puts retries off, inside of it
        self.open = self.open_bytes = self.unwritten = self.finished = self.changes = 0
        self.due_ms = NEVER

    def reading(self) -> dict[int, Lane]:
        """The lanes as they are now."""
        with self._lock:
            return {queue: lane for queue, lane in self._lanes.items() if not lane.is_closing}

    def queues(self) -> set[int]:
        """Those that have a lane."""
        with self._lock:
            return set(self._lanes)

    def crowded(self, most_bytes: int) -> list[tuple[int, str]]:
        """Where more than so many bytes are finished behind open messages, the queues that have more than their share.

        Each with the message in front, by its position.
        """
        with self._lock:
            self._settle()
            kept = {queue: lane.passed_bytes() for queue, lane in self._lanes.items()}
            if sum(kept.values()) <= most_bytes:
                return []
            lanes = [(q, lane.front()) for q, lane in self._lanes.items() if kept[q] > most_bytes // len(kept)]
            return [(q, "-".join(map(str, it.place()))) for q, it in lanes if it is not None and it.is_open]

    def waiting(self) -> int:
        """How many messages wait for their next attempt."""
        with self._lock:
            return sum(len(lane.retries) for lane in self._lanes.values())

    def has_news(self) -> bool:
        """Whether there is something to write."""
        with self._lock:
            return self._has_moved or bool(self._receipts) or any(lane.handed for lane in self._lanes.values())

    def hand_over(self, handed: InFlight) -> bool:
        """Note that messages are handed over; False when their queue is no longer read."""
        with self._lock:
            if handed.lane.is_closing:
                return False
            handed.lane.handed.append(handed)
            self._count(handed, 1)
            return True

    def hand_again(self, handed: InFlight, place: Place) -> bool:
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

    def finish(self, handed: InFlight, outcome: Attempt) -> None:
        """Note what became of messages; only the first time counts."""
        with self._lock:
            if handed.is_open:
                handed.finished = True
                self._count(handed, -1)
                self.finished += 1
                if outcome.state != "RETRY" or not handed.lane.is_lost:
                    rows, indexes = handed.chosen
                    self._receipts.append((handed.lane, Receipt(rows.of_receipts, indexes, outcome)))
                    self.unwritten += len(indexes)

    def give_back(self, handed: InFlight) -> bool:
        """Do no more about messages of a queue that another instance is due to read; False where none is."""
        with self._lock:
            if not handed.lane.is_closing or not handed.is_open:
                return False
            handed.is_given_back = True
            handed.lane.retries.out.discard(handed.place())  # no receipt will say so
            self._count(handed, -1)
            return True

    def take(self) -> Unwritten:
        """What is to be written; `written` or `put_back` follows, before the next time.

        No message of a lost queue is put off: who has it now may have done it, and a RETRY would bring it once more.
        """
        with self._lock:
            self._settle()
            self._has_moved = False
            self._receipts = [it for it in self._receipts if it[1].outcome.state != "RETRY" or not it[0].is_lost]
            self.unwritten = sum(len(receipt.indexes) for _, receipt in self._receipts)
            self._at_work, self._receipts = self._receipts, []
            cursors = {queue: lane.cursor.to_json() for queue, lane in self._lanes.items()}
            held = {queue for queue, lane in self._lanes.items() if lane.is_held()}
            return Unwritten([receipt for _, receipt in self._at_work], cursors, held, self.changes)

    def written(self) -> None:
        """What was taken is in the table."""
        with self._lock:
            self.unwritten -= sum(len(receipt.indexes) for _, receipt in self._at_work)
            self._at_work = []

    def put_back(self) -> None:
        """What was taken could not be written: it is the first to be taken next time."""
        with self._lock:
            self._receipts[:0], self._at_work = self._at_work, []
            self._has_moved = True

    def follow(self, state: assignment.State, me: str, held: Collection[int]) -> bool:
        """Read what this instance owns now; whether any lane is new. Where lanes change or close there is news.

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
                lane.is_lost |= queue not in kept
                lane.is_closing |= lane.is_lost or due[queue] != me
            has_changed = bool(new) or len(kept) < len(self._lanes)
            self.changes += has_changed
            self._has_moved |= has_changed or any(lane.is_closing for lane in kept.values())
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
        """Messages that are due again, so many at most; of each queue its share first."""
        found: list[tuple[Lane, Waiting]] = []
        with self._lock:
            lanes = [lane for lane in self._lanes.values() if not lane.is_closing]
            for share in (most // max(1, len(lanes)), most):
                for lane in lanes:
                    found += [(lane, row) for row in lane.retries.due(now_ms, min(share, most - len(found)))]
            self._set_due()
            return found

    def put_off(self, lane: Lane, place: Place, due_ms: int) -> None:
        """A message that was due can't be handed over before then (ms since epoch, UTC)."""
        with self._lock:
            lane.retries.put_off(place, due_ms)
            self._set_due()

    def _set_due(self) -> None:
        before, lanes = self.due_ms, [lane for lane in self._lanes.values() if not lane.is_closing]
        self.due_ms = min((lane.retries.due_ms() for lane in lanes), default=NEVER)
        if self.due_ms < before:
            self.wake()

    def _count(self, handed: InFlight, sign: int) -> None:
        rows, indexes = handed.chosen
        count = sign * len(indexes)
        self.open += count
        self.open_bytes += count * rows.bytes_a_row
        rows.open += count
        (self._open.add if sign > 0 else self._open.discard)(handed)

    def shrink(self) -> None:
        """Copy what is open out of windows that are finished by more than half, so that their memory is free.

        An open message keeps all of its window: sixteen of them, 256 MiB.
        """
        with self._lock:
            of_rows: dict[int, list[InFlight]] = {}
            for each in self._open:
                of_rows.setdefault(id(each.chosen.rows), []).append(each)
            left, moved = list[list[InFlight]](), list[list[InFlight]]()
            for some in of_rows.values():
                rows = some[0].chosen.rows
                if 2 * rows.open < rows.table.num_rows:
                    left.append(some)
                elif rows.is_moved:
                    moved.append(some)
            if left:
                self._move(left + (moved if len(moved) > _MOST_MOVED else []))

    def _move(self, groups: list[list[InFlight]]) -> None:
        """To rows of their own: messages that have theirs in common, group by group."""
        tables, at = [], 0
        for some in groups:
            indexes = [index for each in some for index in each.chosen.indexes]
            tables.append(some[0].chosen.rows.table.take(indexes))
        rows = Rows(pa.concat_tables(tables), is_moved=True)
        for each in chain.from_iterable(groups):
            self._count(each, -1)
            count = len(each.chosen.indexes)
            each.chosen = Chosen(rows, range(at, at + count))
            self._count(each, 1)
            at += count

    def _settle(self) -> None:
        for lane in self._lanes.values():
            self._has_moved |= lane.settle()


def _is_unfinished(each: InFlight | Passed) -> bool:
    return isinstance(each, InFlight) and not each.finished


def _lane(kept: Mapping[str, Any] | None, first_round: int) -> Lane:
    cursor = Cursor.of_json(kept) if kept else Cursor()
    return Lane(cursor, cursor.copy(), first_round)
