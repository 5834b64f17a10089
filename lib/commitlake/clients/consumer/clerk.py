"""One thread of a process writes the receipts of all its groups, in one commit; a few more take their turns.

A thread for each group would wake up each second, and so would hundreds, of which each waits for all others.
"""

from __future__ import annotations

import atexit
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import Protocol

import pyarrow as pa

from commitlake.clients.consumer import tables

_WRITE_S, _EACH_S, _LONGEST_S = 1.0, 0.005, 2.0
"""The time between two commits, at least, for each group, and the most."""
_WRITE_SHARE = 0.2
"""Of the time, at most, that goes into commits."""
_TURN_S = 0.01
"""Of turns, for each group of the process: a commit of a group's state takes some 6 ms of a core."""
_MOST_HELPERS, _IDLE_S = 32, 1.0


class Member(Protocol):
    """An instance of a group. `take` and `written` are called by one thread, `take_turn` by one at a time."""

    def take(self) -> pa.Table | None:
        """Receipts to write; None where there are none. `written` follows."""

    def written(self, error: BaseException | None) -> None:
        """What was taken is in the table, or could not be written."""

    def has_turn(self, pause_s: float) -> bool:
        """Whether to call `take_turn`, which may be done so often."""

    def take_turn(self) -> None:
        """Do what is due with the group's state."""

    def abandon(self) -> None:
        """Leave soon."""

    def close_quietly(self) -> None:
        """Wait until it has left."""


class Clerk:
    """Works for all members of a process that write to one table of receipts, as long as there are any.

    Args:
        appender: of that table.
    """

    def __init__(self, appender: tables.Appender) -> None:
        self._appender = appender
        self._members: dict[Member, None] = {}
        self._at_work: set[Member] = set()
        self._lock, self._news = threading.Lock(), threading.Event()
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._helpers, self._is_tidying = 0, False
        self._write_s = 0.0  # how long the last commit took
        self._thread: threading.Thread | None = None

    def add(self, member: Member) -> None:
        """Work for one more."""
        with self._lock:
            self._members[member] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="commitlake-consumer-receipts", daemon=True)
                self._thread.start()
                atexit.register(self._close_all)

    def remove(self, member: Member) -> None:
        """Work for one less."""
        with self._lock:
            self._members.pop(member, None)
        self._news.set()

    def hurry(self) -> None:
        """Look at once."""
        self._news.set()

    def is_alive(self) -> bool:
        """Whether it works; a fork takes its thread not along."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def _run(self) -> None:
        while self._goes_on():
            self._news.wait(self._pause_s())
            self._news.clear()
            self._write()
            self._give_turns()

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._members:
                self._thread = None
                atexit.unregister(self._close_all)
            return bool(self._members)

    def _pause_s(self) -> float:
        least_s = max(_WRITE_S, min(_LONGEST_S, max(len(self._members) * _EACH_S, self._write_s / _WRITE_SHARE)))
        return least_s * random.uniform(0.9, 1)

    def _write(self) -> None:
        taken = [(member, rows) for member in list(self._members) if (rows := member.take()) is not None]
        if not taken:
            return
        begun, failure = time.monotonic(), None
        try:
            self._appender.append(pa.concat_tables(rows for _, rows in taken))
            if self._appender.is_untidy() and not self._is_tidying:
                self._is_tidying = True
                self._work.put(self._tidy)
        except BaseException as error:
            failure = error
        for member, _ in taken:
            member.written(failure)
        self._write_s = time.monotonic() - begun

    def _tidy(self) -> None:
        with suppress(Exception):  # the next time will do
            self._appender.tidy()
        self._is_tidying = False

    def _give_turns(self) -> None:
        """Let members take their turns beside the next commit; one more helper where those of before take too long."""
        members = list(self._members)
        with self._lock:
            wanted = min(_MOST_HELPERS, 1 + len(self._at_work))
            due = [each for each in members if each not in self._at_work and each.has_turn(len(members) * _TURN_S)]
            self._at_work.update(due)
            for member in due:
                self._work.put(partial(self._take_turn, member))
            if due and self._helpers < wanted:
                with suppress(RuntimeError):  # there may be no more threads
                    threading.Thread(target=self._help, name="commitlake-consumer-turns", daemon=True).start()
                    self._helpers += 1
            is_alone = not self._helpers
        while is_alone and not self._work.empty():
            self._work.get()()

    def _help(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    if self._work.empty():
                        self._helpers -= 1
                        return
                continue
            work()

    def _take_turn(self, member: Member) -> None:
        member.take_turn()
        with self._lock:
            self._at_work.discard(member)

    def _close_all(self) -> None:
        members = list(self._members)
        for member in members:
            member.abandon()
        for member in members:
            member.close_quietly()


@cache
def clerk(appender: tables.Appender) -> Clerk:
    """The one of this process for a table of receipts."""
    return Clerk(appender)
