"""Calls a handler for each message: `Consumer.run`. A handler's coroutine is awaited on an event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from queue import SimpleQueue

from commitlake.clients import tracing
from commitlake.clients.consumer.arguments import seconds, whole
from commitlake.clients.consumer.lines import Lines
from commitlake.clients.consumer.message import ReceivedMessage
from commitlake.errors import ArgumentError, described
from commitlake.kafka.throttled import ThrottledWarning
from commitlake.protocol.durations import Duration
from commitlake.spark.process import STOPPED, Stop

log = logging.getLogger(__name__)

Handler = Callable[[ReceivedMessage], object]
PAUSES = ("10s", "30s", "1m", "2m", "3m", "4m", "5m", "6m", "7m", "8m", "9m", "10m", "20m", "30m", "1h", "2h")
"""Pauses before the second attempt, the third, and so on, as in RocketMQ."""
_LONGEST_REMARK = 500
_LOOK_S, _TURNS_TO_RELEASE = 0.05, 20
_SAY_S = 0.5
"""Wait after a stop, before the log names the running handlers."""
_LONG_LINE = 1_000
"""Messages of one key that cause a warning; no more are handed over when 10 000 are open (`subscription.MOST_OPEN`)."""


class Runner:
    """Calls a handler, in threads, with the messages of a consumer; see `Consumer.run`. `stop` ends the run."""

    def __init__(
        self,
        handler: Handler,
        threads: int,
        max_attempts: int,
        pauses: Sequence[Duration],
        ordered: bool,
        stop: Stop,
    ) -> None:
        if not pauses:
            msg = f"pauses: {pauses!r} is not allowed; give at least one, such as 1s"
            raise ArgumentError(msg)
        self._pauses_s = [seconds("pauses", pause) for pause in pauses]
        self._threads, self._most = whole("threads", threads), whole("max_attempts", max_attempts)
        self._handler, self._ordered, self._stop = handler, ordered, stop
        self._lines = Lines()
        self._room = threading.Semaphore(2 * threads)
        self._failure: BaseException | None = None
        self._at_work: set[ReceivedMessage] = set()
        self._work: SimpleQueue[tuple[Hashable, ReceivedMessage] | None] = SimpleQueue()
        self._is_over = threading.Event()
        self._crowd = ThrottledWarning(log)

    def run(self, messages: Iterable[ReceivedMessage]) -> None:
        """Handle the consumer's messages until none is left or `stop` is set, then wait for the running calls.

        Messages that were handed over, but not begun before the stop, are redelivered.
        """
        clock = threading.Thread(target=self._look_again, name="commitlake-runner", daemon=True)
        clock.start()
        for number in range(self._threads):  # at exit Python would wait for ThreadPoolExecutor's threads, however long
            threading.Thread(target=self._serve, name=f"commitlake-handler-{number}", daemon=True).start()
        try:
            self._hand_over(messages)
            self._is_over.set()
            clock.join()
            self._wait_for_calls()
        except KeyboardInterrupt:
            if self._stop.is_set():  # this is the second signal, which needs no traceback
                log.warning("a second signal ends the run without %s, to be redelivered", self._at_work_told())
                raise SystemExit(STOPPED) from None
            raise
        finally:
            self._stop.set()
            self._is_over.set()
            for _ in range(self._threads):
                self._work.put(None)
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        while (taken := self._work.get()) is not None:
            try:
                self._work_on(*taken)
            except BaseException as error:
                self._fail(error)
            finally:
                self._room.release()

    def _hand_over(self, messages: Iterable[ReceivedMessage]) -> None:
        try:
            for message in messages:
                key = _key(message) if self._ordered else None
                if key is None or self._lines.join(key, message):
                    self._begin(key, message)
            while self._lines.is_busy() and not self._stop.is_set():  # what waits for longer is redelivered later
                time.sleep(_LOOK_S)
        except Exception as error:  # raised when the running calls have returned
            self._fail(error)

    def _begin(self, key: Hashable, message: ReceivedMessage) -> None:
        """Queue a message for the threads, once one of the places is free; not after a stop."""
        while not self._stop.is_set():
            if self._room.acquire(timeout=_LOOK_S):
                self._work.put((key, message))
                return

    def _wait_for_calls(self) -> None:
        """Wait until all places are free again; after a stop, log which handlers still run."""
        left, told_at = 2 * self._threads, None
        while left:
            left -= self._room.acquire(timeout=_LOOK_S)
            if self._stop.is_set() and self._at_work and told_at is None:
                told_at = time.monotonic() + _SAY_S
            if told_at and time.monotonic() > told_at:
                text = "waiting for the handlers of %s; a second signal ends the run without them"
                log.warning(text, self._at_work_told())
                told_at = float("inf")

    def _at_work_told(self) -> str:
        first, *others = [*map(repr, list(self._at_work))] or ["no message"]
        return f"{first} and {len(others)} more" if others else first

    def _work_on(self, key: Hashable, message: ReceivedMessage | None) -> None:
        """Handle a message, and those behind it in its line.

        One that fails in a line stays open, and so do all behind it: another instance gets them in order, too.
        """
        while message is not None and not self._stop.is_set():
            remark = self._call(message)
            failed = message.attempt if key is None else self._lines.failed(key) + 1
            pause_s = self._pauses_s[min(failed, len(self._pauses_s)) - 1]
            if remark is not None and key is None:
                message.retry(pause_s, self._most, remark)
            elif remark is not None and failed < self._most:
                self._lines.pause(key, pause_s)
                return
            elif remark is not None:
                message.retry(max_attempts=1, remark=remark)  # a dead letter
            message = None if key is None else self._lines.passed(key)

    def _call(self, message: ReceivedMessage) -> str | None:
        """Call the handler; None when the message is finished, else the reason for a retry."""
        self._at_work.add(message)
        try:
            found = self._handler(message)
        except Exception as error:  # a handler may raise anything; the message is retried
            told = described(error)
            log.warning("the handler failed at %r: %s", message, told)
            return None if message.finished else told[:_LONGEST_REMARK]
        finally:
            self._at_work.discard(message)
        if inspect.isgenerator(found) or inspect.isasyncgen(found):
            raise _not_called(found)
        if not message.finished:
            message.done()
        return None

    def _fail(self, error: BaseException) -> None:
        """End the run: after SystemExit or another BaseException of a handler, or a defect. The message stays open."""
        self._failure = self._failure or error
        self._stop.set()

    def _look_again(self) -> None:
        """Queue messages of lines whose retry is due, and release those whose queue goes to another instance."""
        try:
            for turn in count():
                if self._is_over.wait(_LOOK_S):
                    return
                if turn % _TURNS_TO_RELEASE == 0:
                    self._lines.release()
                for key, message in self._lines.due():
                    self._begin(key, message)
                for line in self._lines.stuck(_LONG_LINE):
                    text = "%d messages wait behind %r, which failed %d times; other keys may stall too"
                    self._crowd.say(text, len(line.messages) - 1, line.messages[0], line.failed)
        except BaseException as error:
            self._fail(error)


def _key(message: ReceivedMessage) -> Hashable:
    """The topic and the sharding key, else the keys, by which messages are ordered; None for a message with neither."""
    key = message.sharding_key or message.keys
    return None if key is None else (message.topic, key)


def traced(handler: Handler, group: str) -> Handler:
    """A handler whose calls are spans, each in the trace of its message; the handler itself when tracing is off."""
    if not tracing.is_on():
        return handler

    def call(message: ReceivedMessage) -> object:
        ids = message.message_id, message.transaction_id
        with tracing.processing(group, message.topic, *ids, message.attempt, message.properties):
            return handler(message)

    return call


@contextmanager
def awaiting(handler: Handler, loop: asyncio.AbstractEventLoop | None) -> Iterator[Handler]:
    """The handler as threads call it: a call returns when the work, awaited or not, has ended.

    Coroutines are awaited on `loop`; without one on an own loop, which starts with the first coroutine.

    Raises:
        ArgumentError: `handler` is not callable, or a generator function.
    """
    if not callable(handler) or inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise _not_called(handler)
    own = _OwnLoop()

    def call(message: ReceivedMessage) -> object:
        found = handler(message)
        if isinstance(found, Future):  # the handler gave the work to a pool of its own
            return found.result()
        if not inspect.isawaitable(found):
            return found
        return asyncio.run_coroutine_threadsafe(_awaited(found), loop or own.get()).result()

    try:
        yield call
    finally:
        own.end()


def _not_called(given: object) -> ArgumentError:
    """The error for a handler whose call does nothing, so that messages would count as done without any work."""
    return ArgumentError(f"handler: {given!r:.200} would handle nothing; give a function or a coroutine function")


async def _awaited(found: Awaitable[object]) -> object:
    return await found


class _OwnLoop:
    """An event loop in a thread of its own, from the first `get` to `end`, which cancels the tasks that are left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._begun is None:
                self._begun = Future()
                threading.Thread(target=asyncio.run, args=[self._serve()], name="commitlake-loop", daemon=True).start()
        return self._begun.result()[0]

    async def _serve(self) -> None:
        is_over = asyncio.Event()
        assert self._begun is not None
        self._begun.set_result((asyncio.get_running_loop(), is_over))
        await is_over.wait()

    def end(self) -> None:
        if self._begun is not None:
            loop, is_over = self._begun.result()
            loop.call_soon_threadsafe(is_over.set)
