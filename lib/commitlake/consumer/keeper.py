"""Keeps the promises of one instance, in a thread of its own: writes receipts, moves cursors, shows that it lives."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from commitlake.consumer import shares
from commitlake.consumer.group import Group
from commitlake.consumer.lanes import Lanes
from commitlake.consumer.receipts import Receipts
from commitlake.consumer.retries import Retries
from commitlake.consumer.rows import place_of
from commitlake.errors import ConsumerError

log = logging.getLogger(__name__)

_WRITE_S = 1.0
_LOOK_S = 10.0
"""How often to look for messages that an administrator sends again."""


class Keeper:
    """Takes this instance's turns in its group.

    Args:
        group: the group's state.
        receipts: the group's receipts.
        me: name of this instance.
        lease_s: silence after which others take its queues.
        first: the state when the group has none.
        queues: the queues of the topic.
    """

    def __init__(
        self, group: Group, receipts: Receipts, me: str, lease_s: float, first: shares.State, queues: Collection[int]
    ) -> None:
        self.lanes, self.retries, self.queues = Lanes(), Retries(), queues
        self._group, self._receipts, self._me, self._lease_s, self._first = group, receipts, me, lease_s, first
        self._watch = shares.Watch(lease_s)
        self._unread: set[int] = set(queues)
        self._known: set[int] = set()
        self._begin = self._last_turn = self._last_look = time.monotonic()
        self._others = True
        self._failure: Exception | None = None
        self._ended = threading.Event()
        self._turn()
        self._thread = threading.Thread(target=self._run, name=f"commitlake-consumer-{me}", daemon=True)
        self._thread.start()

    def is_late(self) -> bool:
        """Whether others may have taken the queues meanwhile; the next turn tells."""
        return time.monotonic() - self._last_turn > self._lease_s

    def is_settled(self) -> bool:
        """Whether each queue has an instance that reads it: this one, or another that has shown that it lives."""
        all_live = not self._others or time.monotonic() - self._begin > 2 * self._lease_s
        return all_live and not self._unread

    def raise_if_failed(self) -> None:
        """Raise the error that ended the thread."""
        if self._failure is not None:
            msg = f"the consumer can't write what it did: {self._failure}; what was not written comes again"
            raise ConsumerError(msg) from self._failure

    def close(self) -> None:
        """Write what is finished, and leave the group."""
        self._ended.set()
        self._thread.join()
        if self._failure is None:
            receipts, cursors, _ = self.lanes.take()
            self._receipts.write(receipts)
            self._group.change(lambda state: shares.leave(state or self._first, self._me, cursors))

    def _run(self) -> None:
        try:
            while not self._ended.wait(_WRITE_S):
                is_quiet = not self.lanes.has_news() and not set(self.queues) - self._known
                # Idle, a sign of life is enough: a commit a second would make 86 400 versions a day.
                if not is_quiet or time.monotonic() - self._last_turn > self._lease_s / 5:
                    self._turn()
        except Exception as error:  # whatever it is, the iterator tells it
            self._failure = error

    def _turn(self) -> None:
        """Write receipts, then the cursors behind them; see who lives; read what is due to this instance."""
        receipts, cursors, held = self.lanes.take()
        self._note(self._receipts.write(receipts))

        def to(kept: shares.State | None) -> shares.State:
            state = kept or self._first
            others = {name: beat for name, beat in state["members"].items() if name != self._me}
            gone = self._watch.gone(others, time.monotonic())
            self._others = bool(others.keys() - gone)
            return shares.turn(state, self._me, gone, self.queues, held, cursors)

        queues = set(self.queues)
        state = self._group.change(to)
        has_new = self.lanes.follow(state, self._me, held)
        self._last_turn = time.monotonic()
        if has_new or time.monotonic() - self._last_look > _LOOK_S:
            self._last_look = time.monotonic()
            self.retries.replace(self._receipts.waiting(), self.lanes.reading())
        self._known = queues
        self._unread = queues - {int(queue) for queue, share in state["queues"].items() if share["owner"]}

    def _note(self, written: Iterable[Mapping[str, Any]]) -> None:
        for row in written:
            if row["state"] == "RETRY" and row["queue_id"] in self.lanes.reading():
                self.retries.add(row)
            else:
                self.retries.end(place_of(row))
