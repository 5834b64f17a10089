"""Keeps exceptions of signal handlers out of a Kafka client."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from commitlake.clients.producer.engine import FORKED, Engine, Queue, Result
from commitlake.errors import FailedSendError
from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import Encoded

T = TypeVar("T")

HANDS = 4
"""Threads. An interrupted call continues in its thread, at most as long as a send may take."""
_LOOK_S = 1.0
_AT_AN_END = "this Python process is ending, and its sending threads are gone; send, or end a transaction, earlier"


class ByHand:
    """An engine that the main thread does not enter: Python runs signal handlers there, between any two instructions.

    An exception of a signal handler (a time-out by `signal.alarm`, Celery's soft time limit) may leave a lock of
    kafka-python held, or its buffer torn; then no send would ever end. So other threads make the main thread's calls.
    The main thread only waits for them, by a lock of the call.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pid = os.getpid()
        self._is_closed = False
        self._calls = SimpleQueue[Callable[[], None] | None]()
        try:
            for number in range(HANDS):
                threading.Thread(target=self._serve, name=f"commitlake-hand-{number}", daemon=True).start()
        except BaseException:  # a signal handler has raised, or no thread can be started
            self._calls.put(None)
            raise

    def send(self, topic: str, queue: Queue, record: Encoded, timeout_ms: int) -> Result[Position]:
        """See `Engine`."""
        if os.getpid() != self._pid:  # a fork has none of the engine's threads
            raise FailedSendError(FORKED)
        return self._made(partial(self._engine.send, topic, queue, record, timeout_ms))

    def flush(self, timeout_s: float) -> bool:
        """See `Engine`."""
        return not sys.is_finalizing() and self._made(partial(self._engine.flush, timeout_s))

    def close(self, timeout_s: float) -> None:
        """See `Engine`."""
        try:
            if not sys.is_finalizing():
                self._made(partial(self._engine.close, timeout_s))
        finally:
            self._is_closed = True
            self._calls.put(None)

    def _made(self, make: Callable[[], T]) -> T:
        if threading.current_thread() is not threading.main_thread() or os.getpid() != self._pid:
            return make()  # a fork has none of these threads
        if sys.is_finalizing():  # called by a finalizer, or at the end of a `with` block in an unclosed generator
            raise FailedSendError(_AT_AN_END)
        outcome = Result[T]()
        self._calls.put(partial(_make, make, outcome))
        try:
            while not outcome.done():
                with suppress(TimeoutError):
                    return outcome.result(_LOOK_S)
                if self._is_closed:  # a signal handler has closed it before the call was queued
                    self._make_left()
            return outcome.result()
        finally:
            del outcome  # the traceback of an error would keep it alive

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # a waiting thread must keep nothing alive
        self._calls.put(None)  # for the next thread

    def _make_left(self) -> None:
        try:
            with suppress(Empty):
                while True:
                    if call := self._calls.get_nowait():
                        call()
        finally:
            self._calls.put(None)  # ends the threads that still make a call


def _make(make: Callable[[], T], outcome: Result[T]) -> None:
    try:
        found = make()
    except BaseException as error:  # the waiting thread raises it
        outcome.set_exception(error)
    else:
        outcome.set_result(found)
    finally:
        del outcome
