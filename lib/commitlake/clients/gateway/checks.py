"""Forwards the coordinator's checks to connected producers; their answers arrive as `EndTransaction`."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from commitlake.clients.gateway.messages import TransactionHandle, check_command
from commitlake.clients.gateway.producers import Producers
from commitlake.clients.gateway.sessions import Session
from commitlake.clients.producer.check_reader import Calls, CheckAnswerer
from commitlake.clients.producer.link import Done, KafkaLink
from commitlake.clients.producer.on_loop import LoopExecutor
from commitlake.errors import ProducerError
from commitlake.kafka.throttled import ThrottledWarning
from commitlake.protocol.wire import CheckRecord

log = logging.getLogger(__name__)

ANSWER_S = 30.0
"""Wait for an answer. A producer with a checker that is silent for so long counts as UNKNOWN: RocketMQ 5's client for
Java sends nothing when the checker returns UNKNOWN, or fails. Silence of a producer without a checker means nothing."""
_MOST_ASKED = 3
"""Silent producers of one check, after which no further one is asked."""
ASKED = 100
"""Checks of a group that may wait for an answer at a time."""
_MOST_GROUPS = 1_000
"""Limit of groups: each has a Kafka consumer, and clients choose the names."""
MOST_OF_SESSION = 100
"""Groups of one telemetry stream, so that no single client takes all places."""
_STOP_S = 5.0
_SILENT = f"the producer has not answered within {ANSWER_S:.0f} s"


class Checks:
    """Reads the checks of a group only while one of its producers is connected, so a gateway that can ask gets them.

    The offset of a check is committed after its answer, so a gateway that is killed in between loses no check. When all
    producers of a check have disconnected, the coordinator sends it again.
    """

    def __init__(self, link: KafkaLink, producers: Producers, answer_s: float = ANSWER_S) -> None:
        self._link, self._producers, self._answer_s = link, producers, answer_s
        self._groups: dict[str, _Group] = {}
        self._open: dict[str, _Question] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._crowd = ThrottledWarning(log)

    def join(self, session: Session, group: str) -> None:
        """Send checks of the group to this producer, too; does nothing when it gets them already."""
        if session.gone.done() or (group in self._groups and session in self._groups[group].sessions):
            return
        if session.groups >= MOST_OF_SESSION:
            self._crowd.say("checks of %.100s are not asked of a client with %d groups already", group, MOST_OF_SESSION)
            return
        if group not in self._groups:
            if len(self._groups) >= _MOST_GROUPS:
                self._crowd.say("checks of %.100s are not answered here, among %d groups already", group, _MOST_GROUPS)
                return
            executor = LoopExecutor(asyncio.get_running_loop(), ASKED)
            reader = CheckAnswerer(self._link, group, self._answer, executor, self._answer_s)
            try:
                reader.start()
            except RuntimeError as error:  # no thread; the producer's call has succeeded, and its next call tries again
                log.warning("checks of %.100s are not answered here now: %s", group, error)
                return
            self._groups[group] = _Group(reader)
        self._groups[group].sessions[session] = None
        session.groups += 1

    def leave(self, session: Session) -> None:
        """Send no more checks to a producer, and end its stream."""
        session.end()
        for name, group in list(self._groups.items()):
            group.sessions.pop(session, None)
            if not group.sessions:
                self._stop(self._groups.pop(name))

    def answered(self, handle: TransactionHandle) -> None:
        """Note that Kafka has the answer to a check."""
        question = self._open.get(handle.check_id or "")
        if question and not question.answer.done():
            question.answer.set_result(None)

    async def close(self) -> None:
        """Wait until the readers have ended whose groups have no producer any more."""
        if self._stopping:
            await asyncio.wait(self._stopping)

    def _stop(self, group: _Group) -> None:
        stop = partial(group.reader.stop, time.monotonic() + _STOP_S)
        task = asyncio.create_task(asyncio.to_thread(stop))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _answer(self, check: CheckRecord, calls: Calls, done: Done) -> None:
        """Answer a check. A repeated check that arrives meanwhile is not asked again; both are done together."""
        if question := self._open.get(check.check_id):
            question.done.append(done)
            return
        question = self._open[check.check_id] = _Question(asyncio.get_running_loop().create_future(), [done])
        try:
            error = await self._ask(check, question.answer)
        finally:
            del self._open[check.check_id]
        for each in question.done:
            each(error)

    async def _ask(self, check: CheckRecord, answer: asyncio.Future[None]) -> ProducerError | None:
        silent, busy = list[Session](), list[Session]()
        while not answer.done() and len(silent) < _MOST_ASKED and (session := self._next(check, silent + busy)):
            if not session.ask(check_command(check, session.topic_of(check))):
                busy.append(session)  # it reads too slowly and was not asked, so it does not count as silent
                continue
            both = [answer, session.gone]
            heard, _ = await asyncio.wait(both, timeout=self._answer_s, return_when=asyncio.FIRST_COMPLETED)
            if not heard:
                silent.append(session)
        if not answer.done() and any(session.has_checker for session in silent):
            return await self._say_unknown(check)
        return None

    def _next(self, check: CheckRecord, passed: Sequence[Session]) -> Session | None:
        group = self._groups.get(check.producer_group)
        return group.next(passed) if group else None

    async def _say_unknown(self, check: CheckRecord) -> ProducerError | None:
        try:
            await self._producers.end(TransactionHandle.of_check(check), "UNKNOWN", _SILENT)
        except ProducerError as error:
            return error
        return None


class _Question(NamedTuple):
    answer: asyncio.Future[None]
    done: list[Done]


class _Group:
    """The connected producers of one group, which are asked in turn."""

    def __init__(self, reader: CheckAnswerer) -> None:
        self.reader = reader
        self.sessions: dict[Session, None] = {}
        self._turn = itertools.count()

    def next(self, passed: Sequence[Session]) -> Session | None:
        """The next producer that is not in `passed`, with a checker if one has it; None when none is left."""
        left = [session for session in self.sessions if session not in passed]
        best = [session for session in left if session.has_checker] or left
        return best[next(self._turn) % len(best)] if best else None
