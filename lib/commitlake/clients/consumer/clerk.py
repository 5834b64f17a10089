"""One thread of a process writes the receipts of all its groups in one commit; helpers sync its members with groups.

With a thread for each group, hundreds would wake up each second, race for the next version of one log, and wait for
each other.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
import time
from contextlib import suppress
from functools import cache

from deltalake.exceptions import DeltaError

from commitlake.clients.consumer import tables
from commitlake.clients.consumer.group_member import GroupMember
from commitlake.clients.consumer.receipts import Unwritten, table_of
from commitlake.clients.daemon_pool import DaemonPool
from commitlake.errors import ConsumerError

log = logging.getLogger(__name__)

_WRITE_S, _EACH_S, _LONGEST_S = 1.0, 0.005, 2.0
"""Time between two commits of receipts: the least, the addition for each group, and the longest."""
_WRITE_SHARE = 0.2
"""The largest share of time for these commits."""
_SYNC_S = 0.02
"""Time between two commits of a group's cursors, for each group of the process: a commit takes some 6 ms of a core."""
_HELPERS = 16
_ALIVE_S = 1.0
_NAMES = "commitlake-consumer-receipts", "commitlake-syncs"


class Clerk:
    """Serves all members of a process that write to one table of receipts, as long as there are any."""

    def __init__(self, appender: tables.Appender) -> None:
        self._appender = appender
        self._members: set[GroupMember] = set()
        self._at_work: set[GroupMember] = set()
        self._lock, self._news = threading.Lock(), threading.Event()
        self._helpers = DaemonPool(_HELPERS, _NAMES[1])
        self._write_s = 0.0  # how long the last commit took
        self._thread: threading.Thread | None = None
        atexit.register(self._close_all, os.getpid())

    def add(self, member: GroupMember) -> None:
        """Serve a member, too; starts the thread if it does not run."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=_NAMES[0], daemon=True)
                thread.start()  # if this fails, the next `add` starts it; the thread waits for this lock
                self._thread = thread
            self._members.add(member)

    def close(self, member: GroupMember) -> None:
        """Let a member write its receipts and leave its group.

        Raises:
            ConsumerError: the store did not allow it.
        """
        member.abandon()
        self._news.set()
        if not threading.current_thread().name.startswith(_NAMES):  # garbage collection closes a consumer in any thread
            while not member.closed.wait(_ALIVE_S) and self._is_alive():
                pass
        member.raise_if_failed()

    def _is_alive(self) -> bool:
        """Whether the thread runs; after a fork it does not."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def _run(self) -> None:
        try:
            while self._goes_on():
                self._news.wait(self._pause_s())
                self._news.clear()
                self._write()
                self._start_syncs()
        except BaseException as error:  # the iterators and `close` raise it, whatever it is
            with self._lock:
                self._thread = None
            for member in list(self._members):
                member.end(error)

    def _goes_on(self) -> bool:
        with self._lock:
            self._members = {each for each in self._members if not each.closed.is_set()}
            if not self._members:
                self._thread = None
            return bool(self._members)

    def _pause_s(self) -> float:
        wanted_s = max(len(self._members) * _EACH_S, self._write_s / _WRITE_SHARE)
        return max(_WRITE_S, min(_LONGEST_S, wanted_s)) * random.uniform(0.9, 1)

    def _write(self) -> None:
        found = [(member, taken) for member in list(self._members) if (taken := member.take()) is not None]
        begun = time.monotonic()
        if found:
            self._append(found)
        self._write_s = time.monotonic() - begun
        if self._appender.wants_tidying():
            with suppress(RuntimeError):  # no thread can be started
                self._helpers.submit(self._appender.tidy)

    def _append(self, found: list[tuple[GroupMember, Unwritten]]) -> None:
        failure = None
        try:
            self._appender.append(table_of((member.receipts, taken.receipts) for member, taken in found))
        except BaseException as error:  # the iterators and `close` raise it, whatever it is
            failure = error
        if len(found) > 1 and not isinstance(failure, DeltaError | OSError | None):
            for each in found:  # the store did not fail, so the error may concern one group alone
                self._append([each])
        else:
            for member, taken in found:
                member.written(taken, failure)

    def _start_syncs(self) -> None:
        """Let helpers run the syncs that are due, while the next receipts are written."""
        members = list(self._members)
        for member in members:
            if member not in self._at_work and member.is_sync_due(len(members) * _SYNC_S):
                self._at_work.add(member)
                try:
                    self._helpers.submit(self._sync, member)
                except RuntimeError:  # no thread can be started
                    self._sync(member)

    def _sync(self, member: GroupMember) -> None:
        member.sync()
        self._at_work.discard(member)
        if member.closed.is_set():  # the thread may have nothing left to do
            self._news.set()

    def _close_all(self, pid: int) -> None:
        if pid == os.getpid():
            for member in (members := list(self._members)):
                member.abandon()
            for member in members:
                try:
                    self.close(member)
                except ConsumerError as error:
                    log.error("%s", error)
            self._helpers.shutdown()


@cache
def clerk(appender: tables.Appender) -> Clerk:
    """This process's clerk for a table of receipts."""
    return Clerk(appender)
