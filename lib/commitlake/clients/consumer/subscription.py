"""Hands the messages of one topic over to one instance of a group."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from commitlake.clients.consumer import missing
from commitlake.clients.consumer.clerk import clerk
from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.filters import Filter
from commitlake.clients.consumer.group import Group
from commitlake.clients.consumer.group_member import GroupMember
from commitlake.clients.consumer.lanes import InFlight, Lane, Lanes
from commitlake.clients.consumer.message import MessageBatch, Outcomes, ReceivedMessage
from commitlake.clients.consumer.missed import missed
from commitlake.clients.consumer.plan import Window
from commitlake.clients.consumer.receipts import INSTANCE, Receipts
from commitlake.clients.consumer.retries import NEVER, Waiting
from commitlake.clients.consumer.rows import Chosen, Rows, place_of, place_texts, position_of
from commitlake.clients.consumer.tables import TRANSIENT
from commitlake.clients.consumer.topic import Topic
from commitlake.config import Config
from commitlake.errors import WarehouseError
from commitlake.kafka.throttled import ThrottledWarning
from commitlake.protocol.clock import now_ms
from commitlake.reading.catalog import described, location
from commitlake.reading.table import Options
from commitlake.spark.process import Stop

log = logging.getLogger(__name__)

MOST_OPEN, MOST_OPEN_BYTES = 10_000, 64 << 20
"""Limits of the messages that were handed over and are not finished, and of the bytes of their rows."""
MOST_UNWRITTEN = 250_000
"""Messages with an unwritten receipt, some 450 bytes each, while the store of receipts is away or slow."""
MOST_KEPT_BYTES = 512 << 20
"""Bytes of messages that are finished behind an open one; a restart reads them again."""
MOST_WAITING = 50_000
"""Messages that wait for their next attempt, some 5 kB each: a handler whose database is away fails for all."""
_LOOK_S, _LATE_S, _STALLED_S = 0.01, 0.5, 5.0
_AGAIN_MOST = 1_000
"""Retries that are looked up together; less than `MOST_OPEN`, since a batch is handed over as a whole."""
_PUT_OFF_MS = 2_000
"""Pause before a retry is looked up again whose row could not be read: the snapshot was older, or the store away."""


class ReadOptions(NamedTuple):
    """How a topic is read: the tables of the topic and of the consumers are where `conf` says.

    A new group begins at `start_ms`, ms since epoch, UTC; 0 for the first message, None for the newest. Others take the
    queues after `lease_s` without a sign of life.
    """

    conf: Config
    group: str
    wanted: Filter
    start_ms: int | None
    follow: bool
    lease_s: float
    options: Options


class Subscription:
    """One topic, read by one member of a group, until `stop` is set."""

    def __init__(self, topic: str, plan: ReadOptions, stop: Stop) -> None:
        self.topic = topic
        self._plan, self._stop = plan, stop
        self._table: Topic | None = None
        self._member: GroupMember | None = None
        self._lanes: dict[int, Lane] = {}
        self._empty: dict[int, Lane] | None = None
        """The lanes in which the last look found no row; None when it found one, or did not take place."""
        self._crowd, self._behind = ThrottledWarning(log), ThrottledWarning(log)
        key = plan.conf.warehouse, topic  # one warning of an outage for all groups of the process
        self._trouble = ThrottledWarning(log, key)
        # A separate warning: a retry whose row can't be read holds up no new message.
        self._again_trouble = ThrottledWarning(log, (*key, "again"))
        self._is_unbounded = False
        self.has_read = False
        """Whether the last look found rows, wanted or not."""

    def join(self) -> bool:
        """Become a member of the group; False when the topic has no table yet.

        Raises:
            WarehouseError: there is no table, and `follow` is False; or the table was created again.
            ConsumerError: the consumers' tables can't be created.
        """
        if self._member is not None:
            return True
        plan = self._plan
        try:
            self._table = table = Topic(*location(plan.conf, f"topics/{self.topic}", plan.options))
        except WarehouseError as error:
            if not plan.follow:
                raise
            self._trouble.say("%s; the consumer keeps looking", error)
            return False
        self._trouble.end()
        if not plan.follow and not table.queues():
            log.warning("%s", missing.no_row(table.place))
        place = plan.conf.receipts_place
        group = Group(place, plan.group, self.topic, plan.options)
        first = {"table": table.id, **(group.read() or self._first_state(table))}
        group.refuse_other_table(first, table.id)
        kept = Receipts(f"{place}/receipts", plan.group, self.topic, plan.options)
        name = f"{INSTANCE}-{uuid.uuid4().hex[:8]}"
        own = first, table.queues(), Lanes(self._stop.wake)
        member = GroupMember(group, kept, name, plan.lease_s, *own, plan.follow, plan.conf.receipts_retention_ms)
        self._outcomes = Outcomes(plan.group, self.topic, member)
        self._clerk = clerk(kept.appender)
        self._clerk.add(member)
        self._member = member  # last: where no thread can be started, the next call tries again
        return True

    def begin(self) -> None:
        """Without `follow`, go to the topic's newest version, where the iteration that begins now ends.

        A later look would find more without end in a topic that grows as fast as it is read.
        """
        if self._table is not None and not self._plan.follow:
            self._read(self._table.refresh, None, self._trouble)

    def is_at_end(self) -> bool:
        """Whether no message is left to hand over, as far as this instance knows."""
        member = self._joined
        is_settled = member.is_settled()  # asked first: a sync may add queues that were not looked at yet
        return (
            is_settled
            and self._empty == member.lanes.reading()
            and member.lanes.due_ms > now_ms()
            and not member.is_late()
        )

    def is_due(self) -> bool:
        """Whether a retry is due. Raises the error that ended the member."""
        if self._member is None:
            return False
        self._member.raise_if_failed()
        return self._member.lanes.due_ms <= now_ms() and not self._member.is_late()

    def due_in_s(self) -> float:
        """Seconds until `is_due` should be asked again, unless `wake` comes first."""
        if self._member is None or self._member.is_late():
            return _LATE_S
        return max(_LOOK_S, (self._member.lanes.due_ms - now_ms()) / 1_000)

    def raise_if_failed(self) -> None:
        """Raise the error that ended the member."""
        if self._member is not None:
            self._member.raise_if_failed()

    def leave(self, *, at_once: bool) -> None:
        """Leave the group: at once, or once all messages that were handed over are finished.

        Raises:
            ConsumerError: receipts could not be written.
        """
        if self._member is None:
            return
        if at_once or self._member.lanes.open == 0:
            self._clerk.close(self._member)
        else:
            self.drain()

    def drain(self) -> None:
        """Leave the group once no message is open."""
        if self._member is not None:
            self._member.drain()

    def messages(self) -> Iterator[ReceivedMessage]:
        """Messages whose retry is due, then the next window of new messages."""
        yield from self._messages_again()
        window = self._next_window()
        if window is None:
            return
        rows, lanes = Rows(self._plan.wanted.keep(window.rows)), self._lanes
        member, stop = self._joined, self._stop
        for row, queue in enumerate(rows.table["queue_id"].to_pylist()):
            if self._is_full() or member.is_late():
                self._wait_for_room()
            if stop.is_set():
                return
            handed = InFlight(lanes[queue], Chosen(rows, (row,)), round=lanes[queue].round)
            if member.lanes.hand_over(handed):
                yield ReceivedMessage(self._outcomes, handed)
            if member.lanes.due_ms < NEVER and self.is_due():
                yield from self._messages_again()
        self._pass(window, lanes)

    def batches(self) -> Iterator[MessageBatch]:
        """The same messages as Arrow tables."""
        for _, same in groupby(self._again(), lambda part: (part.attempt, part.round)):
            parts = [part for part in same if self._hand_again(part)]
            if parts:
                rows = parts[0].chosen.rows
                yield self._batch(parts, rows.table.take([part.chosen.indexes[0] for part in parts]))
        self._wait_for_room()
        window = self._next_window()
        if window is None or self._stop.is_set():
            return
        rows, lanes = Rows(self._plan.wanted.keep(window.rows)), self._lanes
        ids = rows.table["queue_id"].to_numpy()
        parts = [
            InFlight(lanes[queue], Chosen(rows, np.flatnonzero(ids == queue).tolist()), round=lanes[queue].round)
            for queue in np.unique(ids).tolist()
        ]
        parts = [part for part in parts if self._joined.lanes.hand_over(part)]
        self._pass(window, lanes)  # before `yield`: the caller may continue in another loop
        if parts:
            chosen = np.sort(np.concatenate([part.chosen.indexes for part in parts]))
            whole = len(chosen) == rows.table.num_rows
            yield self._batch(parts, rows.table if whole else rows.table.take(chosen))

    @property
    def _joined(self) -> GroupMember:
        assert self._member is not None, "join comes first"
        return self._member

    def _first_state(self, topic: Topic) -> dict[str, Any]:
        ends = {} if self._plan.start_ms == 0 else topic.ends(self._plan.start_ms)
        return {"members": {}, "queues": {str(q): {"owner": None, "cursor": c.to_json()} for q, c in ends.items()}}

    def _batch(self, handed: list[InFlight], table: pa.Table) -> MessageBatch:
        assert self._table is not None
        return MessageBatch(self._outcomes, handed, table.cast(self._table.schema))

    def _next_window(self) -> Window | None:
        """The next rows of the queues of this instance; None when there are none now."""
        topic, member = self._table, self._joined
        self._empty, self.has_read = None, False
        member.raise_if_failed()
        if topic is None or member.is_late():
            return None
        member.lanes.shrink()
        before, self._lanes = self._lanes, member.lanes.reading()
        begun = {queue: lane.cursor for queue, lane in self._lanes.items() if lane is not before.get(queue)}
        for queue in begun:
            topic.begin(queue)
        if begun:
            self._tell_missed(begun)
        crowded = self._crowded()
        cursors = {queue: lane.read_to for queue, lane in self._lanes.items() if queue not in crowded}
        window: Window | None = self._read(lambda: self._window(topic, cursors), None, self._trouble)
        member.queues = topic.queues()
        self._empty, self.has_read = (self._lanes, False) if window is None else (None, True)
        return window

    def _tell_missed(self, cursors: Mapping[int, Cursor]) -> None:
        """Report what `topics.retention` deleted before the group had read it, where the store can be read."""
        with suppress(WarehouseError, *TRANSIENT):
            place = location(self._plan.conf, "maintenance", self._plan.options)
            for each in missed(place.uri, self.topic, cursors, place.options):
                text = "topics.retention deleted rows of %s that the group %r had not read: %s"
                log.warning(text, self.topic, self._plan.group, each)

    def _crowded(self) -> set[int]:
        """Queues that are not read further: too much is finished behind an open message, or too many messages wait.

        Without `follow` all queues are read on, since the caller waits for the end.
        """
        lanes = self._joined.lanes
        if self._plan.follow and (waiting := lanes.waiting()) >= MOST_WAITING:
            text = "%d messages of %s wait for their next attempt; the consumer reads no new one"
            self._behind.say(text, waiting, self.topic)
            return set(self._lanes)
        crowded = lanes.crowded(MOST_KEPT_BYTES) if self._plan.follow else []
        for queue, position in crowded:
            text = "queue %d of %s is not read further until message %s is done: too much is finished behind it"
            self._behind.say(text, queue, self.topic, position)
        return {queue for queue, _ in crowded}

    def _window(self, topic: Topic, cursors: Mapping[int, Any]) -> Window | None:
        window = topic.next(cursors) if cursors else None
        if window is None and self._plan.follow and topic.refresh(of_late=True) and cursors:
            window = topic.next(cursors)
        return window

    def _read(self, step: Callable[[], Any], otherwise: Any, trouble: ThrottledWarning) -> Any:
        """Read from the topic. With `follow`, a failing store gives `otherwise`, and the read is retried later."""
        try:
            found = step()
        except TRANSIENT as error:
            if not self._plan.follow:
                place = described(self._plan.conf, f"topics/{self.topic}")
                msg = f"can't read the topic {self.topic} at {place}: {error}; restart when it can be read"
                raise WarehouseError(msg) from error
            trouble.say("can't read the topic %s; retrying: %s", self.topic, error)
            return otherwise
        trouble.end()
        return found

    def _pass(self, window: Window, lanes: Mapping[int, Lane]) -> None:
        """Note that all messages of a window were handed over; not called when the iteration was left before."""
        for queue, end in window.ends.items():
            self._joined.lanes.pass_window(lanes[queue], end)

    def _messages_again(self) -> Iterator[ReceivedMessage]:
        for each in self._again():
            if self._hand_again(each):
                yield ReceivedMessage(self._outcomes, each)

    def _hand_again(self, handed: InFlight) -> bool:
        """Note the redelivery of a message, right before the caller gets it; False when the message keeps waiting."""
        if self._stop.is_set() or self._joined.is_late():
            return False
        return self._joined.lanes.hand_over(handed, is_retry=True)

    def _again(self) -> list[InFlight]:
        """Messages whose next attempt is due; the caller passes each to `_hand_again`.

        The wait for room comes first: in the middle of a batch it would wait for messages that nobody has yet.
        """
        topic, lanes = self._table, self._joined.lanes
        if topic is None or not self.is_due():
            return []
        self._wait_for_room()
        due = {position_of(place_of(row)): (lane, row) for lane, row in lanes.due(now_ms(), _AGAIN_MOST)}
        if self._stop.is_set() or not due:
            return []
        rows, found = Rows(self._find(topic, [row for _, row in due.values()])), list[InFlight]()
        texts = place_texts(rows.table).tolist()
        for row, text in enumerate(texts):
            lane, receipt = due[text]
            found.append(InFlight(lane, Chosen(rows, (row,)), receipt["attempt"] + 1, receipt["round"]))
        lanes.put_off([due[text] for text in due.keys() - set(texts)], now_ms() + _PUT_OFF_MS)
        return found

    def _find(self, topic: Topic, due: list[Waiting]) -> pa.Table:
        """Rows of messages; if the snapshot lacks some, from the newest version."""

        def find() -> pa.Table:
            found = topic.find(due)
            return topic.find(due) if found.num_rows < len(due) and topic.refresh() else found

        return self._read(find, topic.schema.empty_table(), self._again_trouble)

    def _wait_for_room(self) -> None:
        """Wait while too much is open, or while this instance can't tell whether it still owns its queues.

        Without `follow` the limit of open messages is lifted after `_STALLED_S`, if no message was finished: a caller
        that takes all messages before it finishes the first must reach the end, too.
        """
        member, begun = self._joined, time.monotonic()
        lanes, before = member.lanes, member.lanes.finished
        while (self._is_full() or member.is_late()) and not self._stop.is_set():
            member.raise_if_failed()
            if self._has_most_open() and time.monotonic() - begun > _STALLED_S:
                text = "%d messages of %s are handed over and not finished; call done() or retry()"
                self._crowd.say(text, lanes.open, self.topic)
                if not self._plan.follow and lanes.finished == before:
                    self._is_unbounded = True
                begun, before = time.monotonic(), lanes.finished
            time.sleep(_LOOK_S)

    def _is_full(self) -> bool:
        is_full = self._has_most_open() and not self._is_unbounded
        return is_full or self._joined.lanes.unwritten >= MOST_UNWRITTEN

    def _has_most_open(self) -> bool:
        lanes = self._joined.lanes
        return lanes.open >= MOST_OPEN or lanes.open_bytes >= MOST_OPEN_BYTES
