"""Keeps exceptions of signal handlers out of a Kafka client."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from commitlake.clients.producer.engine import Engine, Outcome, Sent
from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import Encoded

T = TypeVar("T")

HANDS = 4
"""A call that was interrupted goes on in its thread, at most as long as a send may take."""


class ByHand:
    """An engine that the main thread does not enter: Python calls signal handlers there, between any two instructions.

    An exception of one (a time-out by `signal.alarm`, the soft time limit of Celery) may leave a lock of kafka-python
    held, or its buffer torn, and no send would end ever after. So other threads make the main thread's calls; it only
    waits for them, by a lock of the call.

    Args:
        engine: what sends.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pid = os.getpid()
        self._calls = SimpleQueue[Callable[[], None] | None]()
        for number in range(HANDS):
            threading.Thread(target=_serve, args=(self._calls,), name=f"commitlake-hand-{number}", daemon=True).start()
        weakref.finalize(self, _end, self._calls)

    def queues(self, topic: str, timeout_ms: int) -> int:
        """See `Engine`."""
        return self._made(partial(self._engine.queues, topic, timeout_ms))

    def send(self, topic: str, queue: int, record: Encoded, timeout_ms: int) -> Sent:
        """See `Engine`."""
        sent = self._made(partial(self._engine.send, topic, queue, record, timeout_ms))
        return _SentByHand(sent.outcome, partial(self._made, sent.withdraw))

    def flush(self, timeout_s: float) -> bool:
        """See `Engine`."""
        return self._engine.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """See `Engine`."""
        self._engine.close(timeout_s)

    def _made(self, make: Callable[[], T]) -> T:
        if threading.current_thread() is not threading.main_thread() or os.getpid() != self._pid:
            return make()  # a process that was forked has no such threads, and the engine says that it can't be used
        outcome = Outcome[T]()
        self._calls.put(partial(_make, make, outcome))
        try:
            return outcome.result()
        finally:
            del outcome  # which the trace of an error would hold


def _make(make: Callable[[], T], outcome: Outcome[T]) -> None:
    try:
        found = make()
    except BaseException as error:  # told to who waits
        outcome.set_exception(error)
    else:
        outcome.set_result(found)
    finally:
        del outcome


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # a thread that waits keeps nothing alive


def _end(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    """When nobody can call any more: a handler may shut the producer down in the middle of a send."""
    for _ in range(HANDS):
        calls.put(None)


class _SentByHand:
    """See `Sent`."""

    def __init__(self, outcome: Outcome[Position], withdraw: Callable[[], bool]) -> None:
        self.outcome, self.withdraw = outcome, withdraw
