"""A thread pool for calls of the application, which may hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

IDLE_S = 10.0
"""A thread without work ends after this time: a process may have hundreds of pools, each for a rare burst."""


class DaemonPool(Executor):
    """A pool whose threads end with the process. At exit Python would wait for those of ThreadPoolExecutor for ever."""

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._open = 0  # calls that wait or run
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()  # a signal handler may enter while the main thread holds it
        self.is_shut = False

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Run a call in a thread.

        Raises:
            RuntimeError: the pool was shut down, or no thread can be started; the call is not made.
        """
        future: Future[Any] = Future()
        with self._lock:
            if self.is_shut:
                msg = f"the pool {self._name} was shut down"
                raise RuntimeError(msg)
            if len(self._threads) <= self._open and len(self._threads) < self._most:
                self._add_thread()
            self._open += 1
            self._work.put((future, partial(call, *args, **named)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and wait for the running ones, however long they take."""
        self.stop(threading.TIMEOUT_MAX if wait else 0, cancel_futures=cancel_futures)

    def stop(self, timeout_s: float, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and wait for the running ones, for at most `timeout_s`."""
        for future in self._shut(takes_back=cancel_futures):
            future.cancel()
        until = time.monotonic() + timeout_s
        for thread in filter(threading.Thread.is_alive, list(self._threads)):  # a signal handler may interrupt a start
            thread.join(min(threading.TIMEOUT_MAX, max(0.0, until - time.monotonic())))

    def refuse(self, error: Callable[[], Exception]) -> None:
        """Take no more calls, and wait for none; calls that have not begun fail with `error()`.

        A cancellation would look to the waiting task like its own.
        """
        for future in self._shut(takes_back=True):
            if future.set_running_or_notify_cancel():
                future.set_exception(error())

    def _add_thread(self) -> None:
        """Called before the call is queued: a call that was reported as not made must not run later."""
        thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            self._threads.append(thread)
            thread.start()
        except BaseException as error:  # also one of a signal handler
            self._leave(thread)
            if not (isinstance(error, RuntimeError) and self._threads):  # else the other threads take the call
                raise

    def _leave(self, thread: threading.Thread) -> None:
        with suppress(ValueError):
            self._threads.remove(thread)

    def _shut(self, *, takes_back: bool) -> list[Future[Any]]:
        """Let threads end. With `takes_back`, remove the calls that have not begun from the queue and return them."""
        with self._lock:
            self.is_shut = True
            waiting = list(self._waiting()) if takes_back else []
            self._work.put(None)
        return waiting

    def _waiting(self) -> Iterator[Future[Any]]:
        with suppress(Empty):
            while True:
                if taken := self._work.get_nowait():
                    yield taken[0]

    def _serve(self) -> None:
        while (taken := self._take()) is not None:
            future, call = taken
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # the waiting caller gets whatever the application raises
                    future.set_exception(error)
            del taken, future, call  # a thread that waits for work must keep nothing alive
            with self._lock:
                self._open -= 1

    def _take(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """The next call; None when the thread must end."""
        while True:
            with suppress(Empty):
                if taken := self._work.get(timeout=0 if self.is_shut else IDLE_S):
                    return taken
            with self._lock:  # so that a call is seen whose `submit` was interrupted by a signal handler's shutdown
                if self._work.empty():
                    self._leave(threading.current_thread())
                    if self.is_shut:
                        self._work.put(None)  # wakes the next thread
                    return None
