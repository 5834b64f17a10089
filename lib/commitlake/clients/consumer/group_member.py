"""One instance in its group: prepares receipts, moves cursors, shows signs of life. A `Clerk` says when."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from commitlake.clients.consumer import assignment
from commitlake.clients.consumer.group import Group
from commitlake.clients.consumer.lanes import Lanes
from commitlake.clients.consumer.receipts import Receipts, Unwritten, table_of
from commitlake.clients.consumer.tables import TRANSIENT
from commitlake.errors import ConsumerError
from commitlake.kafka.throttled import ThrottledWarning
from commitlake.protocol.clock import now_ms
from commitlake.reading.table import LATELY_S

log = logging.getLogger(__name__)

_EACH_S = 0.05
"""Time between two commits of receipts, for each instance of the group: a commit takes 10 to 30 ms."""
_LOOK_S = 10.0
"""How often to look for messages that an administrator sends again."""
_TURN_SHARE, _LOOK_SHARE = 0.1, 0.02
"""The largest shares of time for changes of the group's state, and for these looks: a store may be slow."""
_EXPIRE_S = 3_600.0
"""How often to delete old receipts."""
_PATIENCE_S = 10.0
"""How long a consumer that must end retries a store that is away."""
_TROUBLE = "the consumer can't write its receipts and its place; retrying: %s"


class GroupMember:
    """Syncs this instance with its group.

    It refers neither to the consumer nor to its messages, so that these are collected when the application drops them.

    Args:
        group: the group's state, which all instances change.
        receipts: the group's receipts.
        me: name of this instance.
        lease_s: others take its queues after so many seconds without a sign of life.
        first: state of a group that has none yet; its `table` is the id of the topic's table.
        queues: queues of the topic.
        lanes: where this instance's messages are.
        is_patient: retry a store that is away for as long as it takes.
        retention_ms: age at which receipts of done messages are deleted; 0: never.
    """

    def __init__(
        self,
        group: Group,
        receipts: Receipts,
        me: str,
        lease_s: float,
        first: assignment.State,
        queues: Collection[int],
        lanes: Lanes,
        is_patient: bool,
        retention_ms: int,
    ) -> None:
        self.lanes, self.queues, self.closed = lanes, queues, threading.Event()
        self._group, self.receipts, self._me, self._lease_s, self._first = group, receipts, me, lease_s, first
        self._is_patient, self._retention_ms = is_patient, retention_ms
        self._expire_at = time.monotonic() + random.uniform(0.1, 0.2) * _EXPIRE_S
        self._watch = assignment.Watch(lease_s)
        self._settled, self._known = set[int](), set[int]()
        self._gone: set[str] = set()
        self._beat_at = self._alive_at = self._synced_at = self._last_look = -float("inf")
        self._change_s = self._look_s = 0.0  # duration of the last change, and of the last look
        self._moved_at, self._pause_s = -float("inf"), 0.0
        self._owes_sync = self._has_written = False
        self._writing = threading.Lock()  # held from `take` until the receipts are written
        self._written = Unwritten([], {}, set(), 0)  # the last one that was written, without its receipts
        self._wrote_at = -float("inf")
        self._members: Mapping[str, float] = {}
        self._trouble, self._unwritten = self._warning(), self._warning()
        self._leaves_since: ThrottledWarning | None = None
        self._failure: BaseException | None = None
        self._is_draining, self._is_abandoned = False, False
        self._try(self._sync, is_patient=is_patient)  # after a failure the clerk retries

    def is_late(self) -> bool:
        """Whether other instances may have taken the queues, since the lease is over; the next sync shows it."""
        return time.monotonic() - self._alive_at > self._lease_s

    def is_settled(self) -> bool:
        """Whether each queue has an owner: this instance, or another one whose sign of life this one has seen."""
        return self._settled.issuperset(self.queues)

    def raise_if_failed(self) -> None:
        """Raise the error that ended the work."""
        if self._failure is not None:
            msg = f"the consumer can't write its receipts: {self._failure}; what has none will be redelivered"
            raise ConsumerError(msg) from self._failure

    def drain(self) -> None:
        """Leave the group once no message is open."""
        self._is_draining = True

    def abandon(self) -> None:
        """Leave the group with the next sync, even if messages are open. Takes no lock, so a finalizer may call it."""
        self._is_abandoned = True

    def is_sync_due(self, pause_s: float) -> bool:
        """Whether a sync is due; one each `pause_s` may commit cursors."""
        if self.closed.is_set():  # since the clerk made its list of members
            return False
        if self._has_to_leave() or self.is_late():
            return True
        is_quiet = not (self._owes_sync or self._has_written or self.lanes.has_news() or set(self.queues) - self._known)
        self._pause_s = min(max(pause_s, self._change_s / _TURN_SHARE), self._lease_s)
        pause_s = min(self._pause_s, self._lease_s / 3)
        if is_quiet:  # instances without a queue look less often, and not all at the same moment
            pause_s = self._lease_s / 5 if self._me in self._members else self._lease_s / 3 * random.uniform(1, 1.2)
        return time.monotonic() - self._synced_at > pause_s

    def sync(self) -> None:
        """Sync with the group, or leave it where that is due."""
        try:
            if self._has_to_leave():
                self._leaves_since = self._leaves_since or self._warning()  # `_PATIENCE_S` counts from here
                self._trouble = self._leaves_since
                if self._try(self._leave, is_patient=False):
                    self.end()
                return
            self._try(self._sync, is_patient=self._is_patient)
            if self._retention_ms and time.monotonic() > self._expire_at:
                self._expire()
        except BaseException as error:  # the iterator and `close` raise it, whatever it is
            self.end(error)

    def _warning(self) -> ThrottledWarning:
        """A warning of an outage, shared by all groups of the process that write to the same store."""
        return ThrottledWarning(log, self.receipts.appender)

    def _has_to_leave(self) -> bool:
        return self._is_abandoned or (self._is_draining and self.lanes.open == 0)

    def end(self, failure: BaseException | None = None) -> None:
        """Stop all work; the iterator and `close` raise a failure."""
        self._failure = self._failure or failure
        self.closed.set()
        self.lanes.wake()

    def _try(self, step: Any, *, is_patient: bool) -> bool:
        """Run a step; False when the store failed and the step is to be retried."""
        try:
            step()
        except TRANSIENT as error:
            self._trouble.say(_TROUBLE, error)
            if not is_patient and self._trouble.lasts_s() > _PATIENCE_S:
                raise
            return False
        self._trouble.end()
        return True

    def _sync(self) -> None:
        """Move the cursors behind written receipts, see which members live, take the queues due to this instance."""
        queues, kept, alive_at, was_member = set(self.queues), set[int](), 0.0, False
        self._synced_at, self._owes_sync = time.monotonic(), False
        if moves := self._synced_at - self._moved_at > self._pause_s:
            self._moved_at, self._has_written = self._synced_at, False
        _, cursors, held, changes = self._written
        if changes != self.lanes.changes:  # the cursors are of other lanes, so release no queue before the next write
            cursors, held = {}, self.lanes.queues()

        def to(before: assignment.State | None) -> assignment.State:
            nonlocal kept, alive_at, was_member
            self._group.refuse_other_table(before, self._first["table"])
            state = {"table": self._first["table"], **(before or self._first)}
            mine, places = (held, cursors) if self._follows(state) else (set(), {})
            kept = mine & assignment.owned(state, self._me).keys()
            was_member, alive_at = self._me in state["members"], self._show_life(state["members"])
            if not (moves or self._gone) and assignment.is_balanced(state, self._me):
                places = {}  # commit no cursors: it is too early, and no queue goes to another instance
            return assignment.rebalance(state, self._me, self._gone, queues, mine, places, self._lease_s)

        state = self._group.change(to)
        self._change_s = time.monotonic() - self._synced_at
        if self._me in state["members"] and not was_member:
            self._group.beats.show(self._me)
        for name in self._gone - state["members"].keys():
            self._group.beats.end(name)
        has_new, self._owes_sync = self.lanes.follow(state, self._me, kept), not assignment.is_balanced(state, self._me)
        self.receipts.first_rounds = assignment.first_rounds(state)
        self._alive_at, self._known, self._members = alive_at, queues, state["members"]
        if has_new or time.monotonic() - self._last_look > max(_LOOK_S, self._look_s / _LOOK_SHARE):
            self._read_waiting(None if has_new else time.monotonic() - LATELY_S)
        owners = {int(queue): share["owner"] for queue, share in state["queues"].items()}
        alive = {name for name in state["members"] if name == self._me or self._watch.has_seen_alive(name)}
        self._settled = {queue for queue in queues if owners.get(queue) in alive}

    def _read_waiting(self, after_s: float | None) -> None:
        """Read which messages wait for a retry; not during a write, and from no snapshot older than the last write."""
        with self._writing:
            begun = time.monotonic()
            self.lanes.set_waiting(self.receipts.waiting(after_s and max(after_s, self._wrote_at)))
        self._last_look = time.monotonic()
        self._look_s = self._last_look - begun

    def _follows(self, state: assignment.State) -> bool:
        """Whether no rewind came since the lanes began: lanes of before a rewind must move no cursor.

        The owner of a queue does not show it: a sync may fail between its commit and the new lanes.
        """
        return assignment.first_rounds(state) == self.receipts.first_rounds

    def take(self) -> Unwritten | None:
        """Receipts to write; None when there are none, or it is too early. The caller calls `written`.

        Nothing is taken while others may have the queues: the next sync shows which queues are lost.
        """
        is_early = time.monotonic() - self._wrote_at < 0.9 * len(self._members) * _EACH_S
        if is_early or self.closed.is_set() or self.is_late() or not self.lanes.has_news():
            return None
        if not self._writing.acquire(blocking=False):
            return None
        taken = self.lanes.take()
        if taken.receipts:
            return taken
        self.written(taken)
        return None

    def written(self, taken: Unwritten, error: BaseException | None = None) -> None:
        """Note that the receipts of `take` are in the table, or that writing them failed with `error`."""
        try:
            if error is None:
                self._note(taken)
            else:
                self._put_back(error)
        except BaseException as failure:
            self.end(failure)
        finally:
            self._writing.release()

    def _note(self, taken: Unwritten) -> None:
        self._unwritten.end()
        self._wrote_at = time.monotonic()
        self.lanes.note(self.receipts.not_simple(taken.receipts))
        before, self._written = self._written, taken._replace(receipts=[])  # before `_has_written`: a sync may follow
        self._has_written |= taken[1:] != before[1:]
        self.lanes.written()

    def _put_back(self, error: BaseException) -> None:
        self.lanes.put_back()
        self._unwritten.say(_TROUBLE, error)
        is_patient = self._is_patient or self._has_to_leave() or self._unwritten.lasts_s() < _PATIENCE_S
        if not (isinstance(error, TRANSIENT) and is_patient):
            self.end(error)

    def _show_life(self, members: Mapping[str, float]) -> float:
        """Each third of a lease show that this member lives, and look which others do; return when that was last.

        A lease after that time others may take the queues. An instance that stands by shows no sign of life.
        """
        now = time.monotonic()
        if now - self._beat_at > self._lease_s / 3:
            if self._me in members:
                self._group.beats.show(self._me)
            self._beat_at = now
            beats = self._group.beats.seen()
            others = {name: beats.get(name) for name in members if name != self._me}
            self._gone = self._watch.gone(others, time.monotonic(), members)
        return self._beat_at

    def _expire(self) -> None:
        self._expire_at = time.monotonic() + random.uniform(0.9, 1.1) * _EXPIRE_S
        try:
            self.receipts.expire(now_ms() - self._retention_ms)
        except TRANSIENT as error:  # for example because another instance writes at the same moment
            log.info("receipts are not deleted before the next hour: %s", error)

    def _leave(self) -> None:
        if self.is_late():
            self._sync()
        self._writing.acquire()
        taken = self.lanes.take()
        try:
            if taken.receipts:
                self.receipts.append(table_of([(self.receipts, taken.receipts)]))
        except BaseException as error:
            self.written(taken, error)
            raise
        self.written(taken)

        def to(before: assignment.State | None) -> assignment.State:
            state = before or self._first
            return assignment.leave(state, self._me, taken.cursors if self._follows(state) else {})

        self._group.change(to)
        self._group.beats.end(self._me)
