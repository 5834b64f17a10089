"""Committed messages, one after the other, without Spark: `commitlake.consume`."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from commitlake import config as configuration
from commitlake.clock import now_ms
from commitlake.config import Config
from commitlake.consumer import receipts as receipt_table
from commitlake.consumer.filters import Filter
from commitlake.consumer.group import Group
from commitlake.consumer.keeper import Keeper
from commitlake.consumer.lanes import Lane
from commitlake.consumer.message import ReceivedMessage
from commitlake.consumer.receipts import Outcome, Receipt, Receipts
from commitlake.consumer.retries import Waiting
from commitlake.consumer.rows import Rows, place_of, place_texts
from commitlake.consumer.topic import Topic, Window
from commitlake.errors import ConsumerError, WarehouseError
from commitlake.protocol.durations import Duration, duration_ms
from commitlake.reading.table import Options, location
from commitlake.spark.process import Stop, stopped_by_signals

log = logging.getLogger(__name__)

MOST_OPEN = 10_000
"""Messages that were handed over and are not finished."""
_LOOK_S, _LOOKS_A_WARNING = 0.01, 3_000
Start = str | int | datetime
_NAMED = {"first": 0, "newest": None}


def consume(
    conf: configuration.Conf,
    topic: str,
    *,
    group: str,
    tags: str | None = None,
    where: str | None = None,
    start: Start = "first",
    follow: bool = True,
    poll: Duration = "1s",
    lease: Duration = "15s",
    storage_options: Options = None,
) -> Consumer:
    """Read the committed messages of a topic for a group of consumers.

    At least once: a message comes again when its instance ends before `done` was called and written, which takes up to
    a second. Instances of a group share the topic by queue.

    Args:
        conf: the coordinator's configuration, the path of one, or its keys and values; of them
            `warehouse` and `receipts` count.
        topic: the topic.
        group: the group; each group gets all messages.
        tags: tags joined by `||`; None or `*` for all.
        where: an SQL condition on properties, for example `region = 'eu' AND amount > 10`.
        start: where a group begins that has never read the topic: `first`, `newest`, or a time (ms since epoch, UTC, or
            an aware datetime).
        follow: wait for new messages; else end behind the last one that is there.
        poll: how often to look for new messages.
        lease: an instance that gives no sign for so long loses its queues.
        storage_options: of deltalake, for object stores.

    Returns:
        What iterates over the messages, until SIGTERM, SIGINT or `stop()`.

    Raises:
        ConfigError: a configuration key is unknown or its value is not allowed.
        ConsumerError: an argument can't be used.
    """
    return Consumer(
        configuration.of(conf), topic, group, Filter(tags, where), start, follow, poll, lease, storage_options
    )


class Consumer:
    """One instance of a group. See `consume`."""

    def __init__(
        self,
        conf: Config,
        topic: str,
        group: str,
        wanted: Filter,
        start: Start,
        follow: bool,
        poll: Duration,
        lease: Duration,
        options: Options,
    ) -> None:
        self.topic, self.group = topic, _checked_group(group)
        self._wanted, self._follow, self._options = wanted, follow, options
        self._start_ms = _start_ms(start)
        self._poll_s, self._lease_s = seconds("poll", poll), seconds("lease", lease)
        self._place = location(conf.warehouse, f"topics/{topic}")
        self._receipts_at = conf.receipts_place
        self._stop = Stop()
        self._keeper: Keeper | None = None
        self._is_entered = False

    def stop(self) -> None:
        """End the iteration; may be called in any thread."""
        self._stop.set()

    def close(self) -> None:
        """Write what is finished and leave the group; the end of the iteration does it too."""
        self._stop.set()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Hand messages over, until told to stop.

        Raises:
            ConsumerError: the group's tables can't be written.
            WarehouseError: the topic can't be read.
        """
        with stopped_by_signals(self._stop):
            try:
                topic = self._open()
                if topic is not None:
                    yield from self._messages(topic, self._join(topic))
            finally:
                if not self._is_entered:  # else messages may be finished until the end of the block
                    self.close()

    def finish(
        self, message: ReceivedMessage, state: str, due_ms: int | None = None, remark: str | None = None
    ) -> None:
        """Note what became of a message."""
        if self._keeper is None:
            return  # the iteration has ended: the message comes again
        outcome = Outcome(state, message.attempt, message.round, due_ms, remark, now_ms())
        self._keeper.lanes.finish(message, Receipt(message.rows, message.row, outcome))

    def retry(self, message: ReceivedMessage, after: Duration, most: int, remark: str | None) -> None:
        """Note that a message is to come again, or no more after `most` attempts."""
        due = now_ms() + int(seconds("after", after) * 1_000)
        if message.attempt >= most:
            self.finish(message, "DEAD", remark=remark)
        else:
            self.finish(message, "RETRY", due, remark)

    def _open(self) -> Topic | None:
        """The topic, once it has a table."""
        while not self._stop.is_set():
            try:
                return Topic(self._place, self._options)
            except WarehouseError:
                if not self._follow:
                    raise
                time.sleep(self._poll_s)
        return None

    def _join(self, topic: Topic) -> Keeper:
        group = Group(f"{self._receipts_at}/groups", self.group, self.topic, self._options)
        kept = Receipts(f"{self._receipts_at}/receipts", self.group, self.topic, self._options)
        name = f"{receipt_table.INSTANCE}-{uuid.uuid4().hex[:8]}"
        first = group.read() or self._first_state(topic)
        self._keeper = Keeper(group, kept, name, self._lease_s, first, topic.queues())
        return self._keeper

    def _first_state(self, topic: Topic) -> dict[str, Any]:
        if self._start_ms == 0:
            return {"members": {}, "queues": {}}
        ends = topic.ends(self._start_ms)
        return {"members": {}, "queues": {str(q): {"owner": None, "cursor": c.to_json()} for q, c in ends.items()}}

    def _messages(self, topic: Topic, keeper: Keeper) -> Iterator[ReceivedMessage]:
        lanes: dict[int, Lane] = {}
        while not self._stop.is_set():
            yield from self._again(topic, keeper)
            before, lanes = lanes, keeper.lanes.reading()
            for queue in lanes:
                if lanes[queue] is not before.get(queue):
                    topic.begin(queue)
            window = topic.next({queue: lane.read_to for queue, lane in lanes.items()}) if lanes else None
            if window is not None:
                yield from self._handed_over(topic, keeper, window, lanes)
            elif not topic.refresh():
                keeper.queues = topic.queues()
                if not self._follow and keeper.is_settled() and not keeper.retries.is_due(now_ms()):
                    return
                self._wait(keeper, self._poll_s)

    def _handed_over(
        self, topic: Topic, keeper: Keeper, window: Window, lanes: Mapping[int, Lane]
    ) -> Iterator[ReceivedMessage]:
        """Messages of a window; the lanes go on behind it only where all of its queue's were handed over."""
        rows = Rows(self._wanted.keep(window.rows))
        for row, queue in enumerate(rows.table["queue_id"].to_pylist()):
            message = ReceivedMessage(self, rows, row)
            self._wait_for_room(keeper)
            if self._stop.is_set():
                return
            if keeper.lanes.hand_over(queue, lanes[queue], message):
                yield message
            if keeper.retries.is_due(now_ms()):
                yield from self._again(topic, keeper)
        for queue, end in window.ends.items():
            lanes[queue].read_to.join(end)
            keeper.lanes.hand_over(queue, lanes[queue], end)

    def _again(self, topic: Topic, keeper: Keeper) -> Iterator[ReceivedMessage]:
        """Messages whose next attempt is due."""
        due = keeper.retries.take_due(now_ms())
        if not due:
            return
        table = topic.find(due)
        rows, receipts = Rows(table), _by_text(due)
        for row, text in enumerate(place_texts(table)):
            receipt = receipts[str(text)]
            keeper.lanes.hand_again()
            yield ReceivedMessage(self, rows, row, receipt["attempt"] + 1, receipt["round"])

    def _wait_for_room(self, keeper: Keeper) -> None:
        """Wait while too much is open, or while nobody can tell whether this instance still owns its queues."""
        looks = 0
        while (keeper.lanes.open >= MOST_OPEN or keeper.is_late()) and not self._stop.is_set():
            keeper.raise_if_failed()
            looks += 1
            if looks % _LOOKS_A_WARNING == 0:
                log.warning("%d messages are handed over and not finished; call done() or retry()", keeper.lanes.open)
            time.sleep(_LOOK_S)
        keeper.raise_if_failed()

    def _wait(self, keeper: Keeper, wait_s: float) -> None:
        until = time.monotonic() + wait_s
        while time.monotonic() < until and not self._stop.is_set() and not keeper.retries.is_due(now_ms()):
            keeper.raise_if_failed()
            time.sleep(min(0.05, wait_s))


def seconds(name: str, given: object) -> float:
    """The length of a duration such as `5m`, 300 or a `timedelta`.

    Raises:
        ConsumerError: it is none.
    """
    ms = duration_ms(given)
    if not ms:
        msg = f"{name}: {given!r} is not allowed; give a text such as 500ms, 10s or 5m, seconds above 0, or a timedelta"
        raise ConsumerError(msg)
    return ms / 1_000


def _start_ms(given: Start) -> int | None:
    """Ms since epoch, UTC: 0 for the first message, None for the newest."""
    if given in _NAMED:
        return _NAMED[str(given)]
    if isinstance(given, datetime):
        if given.tzinfo is None:
            msg = f"start: {given!r} has no time zone; give one, for example datetime.now(UTC)"
            raise ConsumerError(msg)
        return int(given.timestamp() * 1_000)
    if isinstance(given, int) and given >= 0:
        return given
    msg = f"start: {given!r} is not allowed; give 'first', 'newest', ms since epoch (UTC) or an aware datetime"
    raise ConsumerError(msg)


def _checked_group(group: str) -> str:
    if not isinstance(group, str) or not 1 <= len(group) <= 255:
        msg = f"group: {group!r:.100} is not allowed; give a name of 1 to 255 characters"
        raise ConsumerError(msg)
    return group


def _by_text(receipts: list[Waiting]) -> dict[str, Waiting]:
    return {"-".join(map(str, place_of(row))): row for row in receipts}
