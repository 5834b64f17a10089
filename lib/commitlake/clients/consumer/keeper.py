"""Keeps the promises of one instance, in a thread of its own: writes receipts, moves cursors, shows that it lives."""

from __future__ import annotations

import atexit
import logging
import random
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from commitlake.clients.consumer import assignment
from commitlake.clients.consumer.complaint import Complaint
from commitlake.clients.consumer.group import Group
from commitlake.clients.consumer.lanes import Lanes
from commitlake.clients.consumer.receipts import Receipt, Receipts
from commitlake.clients.consumer.tables import TRANSIENT
from commitlake.errors import ConsumerError
from commitlake.protocol.clock import now_ms

log = logging.getLogger(__name__)

_WRITE_S, _EACH_S = 1.0, 0.05
"""The time between two turns, and how much of it each instance of the group needs: a commit takes 10 to 30 ms."""
_LOOK_S = 10.0
"""How often to look for messages that an administrator sends again."""
_WRITE_SHARE, _TURN_SHARE, _LOOK_SHARE = 0.2, 0.1, 0.02
"""Of the time, at most, that goes into receipts, into changes of the group's state, and into these looks: hundreds of
groups share a machine, and a store may be slow. Receipts come first, each 3 s at least."""
_LONGEST_S = 3.0
_EXPIRE_S = 3_600.0
"""How often to delete old receipts."""
_PATIENCE_S = 10.0
"""How long a store may be away from a consumer that is to end."""


class Keeper:
    """Takes this instance's turns in its group.

    It knows neither the consumer nor the messages that people hold, so that these end when nobody holds them.

    Args:
        group: the group's state.
        receipts: the group's receipts.
        me: name of this instance.
        lease_s: silence after which others take its queues.
        first: the state when the group has none, with the topic's `table`.
        queues: the queues of the topic.
        is_patient: wait for a store that is away, for as long as it takes.
        retention_ms: age at which receipts of messages that are done are deleted; 0: never.
    """

    def __init__(
        self,
        group: Group,
        receipts: Receipts,
        me: str,
        lease_s: float,
        first: assignment.State,
        queues: Collection[int],
        is_patient: bool,
        retention_ms: int,
    ) -> None:
        self.lanes, self.queues, self.is_closed = Lanes(), queues, False
        self._group, self._receipts, self._me, self._lease_s, self._first = group, receipts, me, lease_s, first
        self._is_patient, self._retention_ms = is_patient, retention_ms
        self._expire_at = time.monotonic() + random.uniform(0.1, 0.2) * _EXPIRE_S
        self._watch = assignment.Watch(lease_s)
        self._is_settled, self._known = False, set[int]()
        self._gone: set[str] = set()
        self._beat_at = self._alive_at = self._last_turn = self._last_look = -float("inf")
        self._write_s = self._change_s = self._look_s = 0.0  # how long the last one took
        self._owes_turn = False
        self._members: Mapping[str, float] = {}
        self._trouble = Complaint(log)
        self._failure: Exception | None = None
        self._close, self._is_draining, self._is_abandoned = threading.Event(), False, False
        self._try(self._turn, is_patient=is_patient)  # the thread goes on where it fails
        self._thread = threading.Thread(target=self._run, name=f"commitlake-consumer-{me}", daemon=True)
        self._thread.start()
        atexit.register(self._close_quietly)

    def is_late(self) -> bool:
        """Whether others may have taken the queues meanwhile; the next turn tells."""
        return time.monotonic() - self._alive_at > self._lease_s

    def is_settled(self) -> bool:
        """Whether each queue has an instance that reads it: this one, or another that has shown that it lives."""
        return self._is_settled

    def raise_if_failed(self) -> None:
        """Raise the error that ended the thread."""
        if self._failure is not None:
            msg = f"the consumer can't write what it did: {self._failure}; what was not written comes again"
            raise ConsumerError(msg) from self._failure

    def drain(self) -> None:
        """Leave the group once nothing is open."""
        self._is_draining = True

    def abandon(self) -> None:
        """Leave the group soon: nobody holds a message any more. Takes no lock, so a finalizer may call it."""
        self._is_abandoned = True

    def close(self) -> None:
        """Write what is finished, and leave the group.

        Raises:
            ConsumerError: that was not possible.
        """
        self._close.set()
        self._thread.join()
        self.raise_if_failed()

    def _close_quietly(self) -> None:
        try:
            self.close()
        except ConsumerError as error:
            log.error("%s", error)

    def _run(self) -> None:
        try:
            while not self._close.wait(self._pause_s()) and not self._is_abandoned:
                if self._is_draining and self.lanes.open == 0:
                    break
                if self._has_turn():
                    self._try(self._turn, is_patient=self._is_patient)
                elif self.lanes.has_news():
                    self._try(self._write_only, is_patient=self._is_patient)
                if self._retention_ms and time.monotonic() > self._expire_at:
                    self._expire()
            self._trouble = Complaint(log)  # patience begins now, not with an outage of before
            while not self._try(self._leave, is_patient=False):
                time.sleep(0.5)
        except Exception as error:  # whatever it is, the iterator and `close` tell it
            self._failure = error
        self.is_closed = True
        atexit.unregister(self._close_quietly)

    def _pause_s(self) -> float:
        busy_s = min(_LONGEST_S, self._write_s / _WRITE_SHARE)
        return max(_WRITE_S, len(self._members) * _EACH_S, busy_s) * random.uniform(0.9, 1)

    def _has_turn(self) -> bool:
        is_quiet = not (self._owes_turn or self.lanes.has_news() or set(self.queues) - self._known)
        pause_s = min(self._change_s / _TURN_SHARE, self._lease_s / 3)
        if is_quiet:  # who stands by looks more seldom, and not at the same moment as the others
            pause_s = self._lease_s / 5 if self._me in self._members else self._lease_s / 3 * random.uniform(1, 1.2)
        return time.monotonic() - self._last_turn > pause_s

    def _try(self, step: Any, *, is_patient: bool) -> bool:
        """Do it; whether the store let it. One that is away is tried again."""
        try:
            step()
        except TRANSIENT as error:
            self._trouble.say("cannot write what group and consumer did, and try again: %s", error)
            if not is_patient and self._trouble.lasts_s() > _PATIENCE_S:
                raise
            return False
        self._trouble.end()
        return True

    def _turn(self) -> None:
        """Write receipts, then the cursors behind them; see who lives; read what is due to this instance."""
        cursors, held = self._write()
        queues, alive_at, was_member = set(self.queues), 0.0, False
        self._last_turn, self._owes_turn = time.monotonic(), False
        kept: set[int] = set()

        def to(before: assignment.State | None) -> assignment.State:
            nonlocal alive_at, was_member
            self._group.refuse_other_table(before, self._first["table"])
            state = {"table": self._first["table"], **(before or self._first)}
            mine, places = (held, cursors) if self._follows(state) else (set(), {})
            kept.clear()
            kept.update(mine & assignment.owned(state, self._me).keys())
            was_member, alive_at = self._me in state["members"], self._show_life(state["members"])
            return assignment.turn(state, self._me, self._gone, queues, mine, places, self._lease_s)

        state = self._group.change(to)
        self._change_s = time.monotonic() - self._last_turn
        if self._me in state["members"] and not was_member:
            self._group.beats.show(self._me)
        for name in self._gone - state["members"].keys():
            self._group.beats.end(name)
        has_new, self._owes_turn = self.lanes.follow(state, self._me, kept), not assignment.is_balanced(state, self._me)
        self._receipts.first_rounds = assignment.first_rounds(state)
        self._alive_at, self._known, self._members = alive_at, queues, state["members"]
        if has_new or time.monotonic() - self._last_look > max(_LOOK_S, self._look_s / _LOOK_SHARE):
            begun = time.monotonic()
            self.lanes.set_waiting(self._receipts.waiting())
            self._last_look = time.monotonic()
            self._look_s = self._last_look - begun
        owners = {int(queue): share["owner"] for queue, share in state["queues"].items()}
        self._is_settled = all(map(self._reads, map(owners.get, queues)))

    def _reads(self, owner: str | None) -> bool:
        return owner is not None and (owner == self._me or self._watch.has_seen_alive(owner))

    def _follows(self, state: assignment.State) -> bool:
        """Whether the lanes are of this reading; after a rewind those of before must move no cursor.

        Who owns a queue does not tell: a turn may fail after its commit, and before the lanes are new.
        """
        return assignment.first_rounds(state) == self._receipts.first_rounds

    def _write(self) -> tuple[dict[int, Any], set[int]]:
        """Write receipts; the cursors that hold now, and the queues that must be kept."""
        receipts, cursors, held = self.lanes.take()
        begun = time.monotonic()
        try:
            self.lanes.note(self._receipts.write(self._still_mine(receipts)))
        except BaseException:
            self.lanes.put_back(receipts)
            raise
        self.lanes.written(receipts)
        self._write_s = time.monotonic() - begun
        return cursors, held

    def _write_only(self) -> None:
        """Write receipts; the cursors behind them wait for the next turn."""
        self._owes_turn = True
        self._write()
        self._show_life(self._members)

    def _still_mine(self, receipts: list[Receipt]) -> list[Receipt]:
        """Without what puts messages off whose queues others took while this process stood still: they have them now.

        Theirs may be done already, and a RETRY of the same attempt would bring it once more.
        """
        if not self.is_late():
            return receipts
        mine = assignment.owned(self._group.read() or self._first, self._me)
        return [each for each in receipts if each.outcome.state != "RETRY" or each.queue_id in mine]

    def _show_life(self, members: Mapping[str, float]) -> float:
        """Show that this member lives, and see who else does, each time a third of the lease is over; when that was.

        Others may take its queues a lease after that, not after a turn that shows nothing. Who stands by shows nothing.
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
            self._receipts.expire(now_ms() - self._retention_ms)
        except TRANSIENT as error:  # for example when others write at the same moment
            log.info("receipts are not deleted before the next hour: %s", error)

    def _leave(self) -> None:
        cursors, _ = self._write()

        def to(before: assignment.State | None) -> assignment.State:
            state = before or self._first
            return assignment.leave(state, self._me, cursors if self._follows(state) else {})

        self._group.change(to)
        self._group.beats.end(self._me)
