"""The queues of one instance, a lane for each, and the receipts that are not written yet.

The iterator hands messages over, any thread finishes them, and the member writes the receipts, all under one lock: so
no cursor passes a message whose receipt is not written with it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from commitlake.clients.consumer import assignment
from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.receipts import Attempt, Receipt, Unwritten
from commitlake.clients.consumer.retries import NEVER, Retries, Waiting
from commitlake.clients.consumer.rows import PLACE_COLUMNS, Chosen, Place, Rows, place_of, position_of

_OBJECT_BYTES = 200
_SMALL_BYTES = 64 << 10


@dataclass(eq=False, slots=True)
class InFlight:
    """Messages of one queue that were handed over together: a single one, or those of a batch.

    Attributes:
        lane: the lane of their queue.
        chosen: their rows; `Lanes.shrink` moves them.
        attempt: 1 for the first.
        round: grows each time an administrator sends them again, or rewinds the group.
        finished: whether their outcome is known.
        is_released: whether this instance has given them up; another instance redelivers them.
    """

    lane: Lane
    chosen: Chosen
    attempt: int = 1
    round: int = 0
    finished: bool = False
    is_released: bool = False

    def value(self, column: str) -> Any:
        """The value of a column, of the first message."""
        rows, indexes = self.chosen  # read once: another thread may move the rows meanwhile
        return rows.value(column, indexes[0])

    def place(self) -> Place:
        """The `PLACE_COLUMNS` of the first message, which identify it."""
        return tuple(map(self.value, PLACE_COLUMNS))

    @property
    def kept_bytes(self) -> int:
        """Bytes in memory; each message counts as the mean of the rows read with it."""
        return len(self.chosen.indexes) * (int(self.chosen.rows.bytes_a_row) + _OBJECT_BYTES)

    @property
    def is_open(self) -> bool:
        """Whether the messages are neither finished nor released."""
        return not (self.finished or self.is_released)


@dataclass(eq=False, slots=True)
class Passed:
    """Finished messages of one queue behind an open one; their rows are not in memory any more.

    Attributes:
        end: cursor behind the last of them; also the end of a window.
        kept_bytes: bytes that they took in memory.
    """

    end: Cursor
    kept_bytes: int = 0


@dataclass(eq=False)
class Lane:
    """One queue of this instance.

    Attributes:
        cursor: all messages up to it are finished.
        read_to: where the next window begins.
        round: round of first attempts.
        handed: messages at their first attempt, in order, with `Passed` between them.
        retries: messages that wait for their next attempt, and those that were handed over again.
        is_closing: the queue goes, or has gone, to another instance or a newer lane here, so no more messages are
            handed over.
    """

    cursor: Cursor
    read_to: Cursor
    round: int = 0
    handed: deque[InFlight | Passed] = field(default_factory=deque)
    retries: Retries = field(default_factory=Retries)
    is_closing: bool = False

    def settle(self) -> bool:
        """Move the cursor over the finished messages in front; replace those behind an open message by their ends.

        Returns:
            Whether any finished message was in front.
        """
        has_moved, kept = False, deque[InFlight | Passed]()
        for is_unfinished, several in groupby(self.handed, _is_unfinished):
            if is_unfinished:
                kept.extend(several)
            elif kept:
                kept.append(_passed(several))
            else:
                self.cursor.join(_passed(several).end)
                has_moved = True
        self.handed = kept
        return has_moved

    def passed_bytes(self) -> int:
        """Bytes of the messages that are finished behind an open one; a restart reads them again."""
        return sum(each.kept_bytes for each in self.handed if isinstance(each, Passed))

    def is_held(self) -> bool:
        """Whether the queue must stay here: it is read, or messages of it are in flight, at any attempt."""
        in_hand = any(isinstance(each, InFlight) and each.is_open for each in self.handed)
        return not self.is_closing or in_hand or bool(self.retries.out)


class Lanes:
    """The lanes of an instance; its methods may be called in any thread.

    Attributes:
        open: number of messages that are handed over and not finished.
        open_bytes: bytes of their rows; each message counts as the mean of the rows that were read with it.
        unwritten: number of messages whose receipts are not written yet.
        finished: number of `InFlight` that were finished so far.
        due_ms: when the next retry may be due, ms since epoch, UTC.
        changes: how often queues were added or removed.
        wake: makes a waiting iterator look again.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self.wake = wake
        self._lanes: dict[int, Lane] = {}
        self._open: set[InFlight] = set()
        self._has_moved = False  # whether a cursor has moved since the last `take`
        self._receipts, self._at_work = list[tuple[Lane, Receipt]](), list[tuple[Lane, Receipt]]()
        self._lock = threading.RLock()  # while it is held, garbage collection may finish a message, which takes it too
        self.open = self.open_bytes = self.unwritten = self.finished = self.changes = 0
        self.due_ms = NEVER

    def reading(self) -> dict[int, Lane]:
        """The lanes that are read now, by queue."""
        with self._lock:
            return {queue: lane for queue, lane in self._lanes.items() if not lane.is_closing}

    def queues(self) -> set[int]:
        """The queues that have a lane."""
        with self._lock:
            return set(self._lanes)

    def crowded(self, most_bytes: int) -> list[tuple[int, str]]:
        """Queues with more than their share of bytes finished behind an open message, and the position of that message.

        None while all queues together have at most `most_bytes`.
        """
        with self._lock:
            self._settle()
            kept = {queue: lane.passed_bytes() for queue, lane in self._lanes.items()}
            if sum(kept.values()) <= most_bytes:
                return []
            first = {q: self._lanes[q].handed[0] for q, size in kept.items() if size > most_bytes // len(kept)}
            return [(q, position_of(it.place())) for q, it in first.items() if isinstance(it, InFlight) and it.is_open]

    def waiting(self) -> int:
        """How many messages wait for their next attempt."""
        with self._lock:
            return sum(len(lane.retries) for lane in self._lanes.values())

    def has_news(self) -> bool:
        """Whether there is something to write."""
        with self._lock:
            return self._has_moved or bool(self._receipts) or any(lane.handed for lane in self._lanes.values())

    def hand_over(self, handed: InFlight, *, is_retry: bool = False) -> bool:
        """Note that messages are handed over; False when their queue is no longer read, or a retry waits no more."""
        with self._lock:
            lane = handed.lane
            if lane.is_closing or (is_retry and not lane.retries.begin(handed.place())):
                return False
            if not is_retry:
                lane.handed.append(handed)
            self._count(handed, 1)
            return True

    def pass_window(self, lane: Lane, end: Cursor) -> None:
        """Note that all messages of a lane up to `end` were handed over."""
        with self._lock:
            if not lane.is_closing:
                lane.read_to.join(end)
                lane.handed.append(Passed(end))

    def finish(self, handed: InFlight, outcome: Attempt) -> None:
        """Note the outcome of messages; only the first one counts."""
        with self._lock:
            if handed.is_open:
                handed.finished = True
                self._count(handed, -1)
                self.finished += 1
                rows, indexes = handed.chosen
                self._receipts.append((handed.lane, Receipt(rows.of_receipts, indexes, outcome)))
                self.unwritten += len(indexes)

    def release(self, handed: InFlight) -> bool:
        """Give up messages if their queue goes to another instance; False if the queue stays here."""
        with self._lock:
            if not handed.lane.is_closing or not handed.is_open:
                return False
            handed.is_released = True
            handed.lane.retries.out.discard(handed.place())  # no receipt of it will do this
            self._count(handed, -1)
            return True

    def take(self) -> Unwritten:
        """The receipts to write; the caller calls `written` or `put_back` before the next `take`.

        A RETRY whose lane is gone is dropped: the new owner may have done the message, and RETRY would redeliver it.
        """
        with self._lock:
            self._settle()
            self._has_moved, lanes = False, {*self._lanes.values()}
            self._receipts = [it for it in self._receipts if it[1].outcome.state != "RETRY" or it[0] in lanes]
            self.unwritten = sum(len(receipt.indexes) for _, receipt in self._receipts)
            self._at_work, self._receipts = self._receipts, []
            cursors = {queue: lane.cursor.to_json() for queue, lane in self._lanes.items()}
            held = {queue for queue, lane in self._lanes.items() if lane.is_held()}
            return Unwritten([receipt for _, receipt in self._at_work], cursors, held, self.changes)

    def written(self) -> None:
        """Note that the receipts of the last `take` are in the table."""
        with self._lock:
            self.unwritten -= sum(len(receipt.indexes) for _, receipt in self._at_work)
            self._at_work = []

    def put_back(self) -> None:
        """Note that writing failed: the next `take` returns these receipts first."""
        with self._lock:
            self._receipts[:0], self._at_work = self._at_work, []
            self._has_moved = True

    def follow(self, state: assignment.State, me: str, held: Collection[int]) -> bool:
        """Make the lanes those of the queues that this instance owns now; return whether any lane is new.

        `held` has the queues that were owned and held before; any other queue that is owned gets a new lane. After a
        change, or while a lane closes, `has_news` is True.
        """
        mine, due = assignment.owned(state, me), assignment.due(state)
        with self._lock:
            kept = {queue: lane for queue, lane in self._lanes.items() if queue in mine and queue in held}
            first = assignment.first_rounds(state)[-1]
            new = {queue: _lane(mine[queue], first) for queue in mine if queue not in kept}
            for queue, lane in self._lanes.items():
                lane.is_closing |= queue not in kept or due[queue] != me
            has_changed = bool(new) or len(kept) < len(self._lanes)
            self.changes += has_changed
            self._has_moved |= has_changed or any(lane.is_closing for lane in kept.values())
            self._lanes = kept | new
            self._set_due()
            return bool(new)

    def note(self, receipts: Iterable[Waiting]) -> None:
        """Update the retries by receipts that are in the table now."""
        with self._lock:
            for row in receipts:
                if row["queue_id"] in self._lanes:
                    self._lanes[row["queue_id"]].retries.note(row)
            self._set_due()

    def set_waiting(self, receipts: Iterable[Waiting]) -> None:
        """Replace the retries by the table's receipts of waiting messages."""
        with self._lock:
            found: dict[int, list[Waiting]] = {queue: [] for queue in self._lanes}
            for row in receipts:
                if row["queue_id"] in found:
                    found[row["queue_id"]].append(row)
            for queue, rows in found.items():
                self._lanes[queue].retries.replace(rows)
            self._set_due()

    def due(self, now_ms: int, most: int) -> list[tuple[Lane, Waiting]]:
        """Messages whose retry is due, at most `most`; the queues take turns."""
        with self._lock:
            self._set_due()
            lanes = [lane for lane in self._lanes.values() if not lane.is_closing]
            due = [enumerate(lane.retries.due(now_ms, most)) for lane in lanes]
            found = [(turn, lane, row) for lane, rows in zip(lanes, due, strict=True) for turn, row in rows]
            return [(lane, row) for _, lane, row in sorted(found, key=itemgetter(0))[:most]]

    def put_off(self, waiting: Iterable[tuple[Lane, Waiting]], due_ms: int) -> None:
        """Make messages that were due, and could not be read, due at `due_ms` (ms since epoch, UTC)."""
        with self._lock:
            for lane, receipt in waiting:
                lane.retries.put_off(place_of(receipt), due_ms)
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
        """Copy open messages out of windows of which more than half is finished, to free the windows' memory.

        An open message keeps all of its window in memory: sixteen such messages keep 256 MiB. Those of small tables
        are copied into the same new one, since each table takes 16 kB besides its rows.
        """
        with self._lock:
            open_in: dict[Rows, list[InFlight]] = {}
            for each in self._open:
                open_in.setdefault(each.chosen.rows, []).append(each)
            left = {rows for rows in open_in if 2 * rows.open < rows.table.num_rows}
            if not left:
                return
            moved = {rows: some for rows, some in open_in.items() if rows in left or rows.table.nbytes <= _SMALL_BYTES}
            tables = [
                rows.table.take([n for each in some for n in each.chosen.indexes]) for rows, some in moved.items()
            ]
            new, end = Rows(pa.concat_tables(tables)), 0
            for each in chain.from_iterable(moved.values()):
                begin, end = end, end + len(each.chosen.indexes)
                self._count(each, -1)
                each.chosen = Chosen(new, range(begin, end))
                self._count(each, 1)

    def _settle(self) -> None:
        for lane in self._lanes.values():
            self._has_moved |= lane.settle()


def _is_unfinished(each: InFlight | Passed) -> bool:
    return isinstance(each, InFlight) and not each.finished


def _passed(finished: Iterable[InFlight | Passed]) -> Passed:
    """The end of finished messages that follow each other."""
    end, kept_bytes, passed = Cursor(), 0, dict[Rows, list[int]]()
    for each in finished:
        kept_bytes += each.kept_bytes
        if isinstance(each, Passed):
            end.join(each.end)
        else:
            rows, indexes = each.chosen
            passed.setdefault(rows, []).extend(indexes)
    for rows, indexes in passed.items():
        end.advance_to_end(rows.keys.where(np.asarray(indexes)))
    return Passed(end, kept_bytes)


def _lane(kept: Mapping[str, Any] | None, first_round: int) -> Lane:
    cursor = Cursor.of_json(kept) if kept else Cursor()
    return Lane(cursor, cursor.copy(), first_round)
