"""Threads for calls of the application, which may hang."""

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
"""After so long without work a thread ends: a process may have hundreds of pools, each for a rare burst."""


class DaemonPool(Executor):
    """A pool whose threads end with the process; Python waits at its end for those of a ThreadPoolExecutor, for ever.

    Args:
        threads: how many calls may run at a time.
        name: what the threads' names begin with.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._open = 0  # calls that wait or run
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()  # a signal handler may come back while the main thread has it
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
        """Take no more calls, and wait for those under way, however long they take."""
        self.stop(threading.TIMEOUT_MAX if wait else 0, cancel_futures=cancel_futures)

    def stop(self, timeout_s: float, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and wait for those under way for at most `timeout_s`."""
        for future in self._shut(takes_back=cancel_futures):
            future.cancel()
        until = time.monotonic() + timeout_s
        for thread in filter(threading.Thread.is_alive, list(self._threads)):  # a signal handler may stop a start
            thread.join(min(threading.TIMEOUT_MAX, max(0.0, until - time.monotonic())))

    def refuse(self, error: Callable[[], Exception]) -> None:
        """Take no more calls, and wait for none; those that have not begun fail.

        Args:
            error: makes the error of each of them. A cancellation would look to who waits like one of his own task.
        """
        for future in self._shut(takes_back=True):
            if future.set_running_or_notify_cancel():
                future.set_exception(error())

    def _add_thread(self) -> None:
        """Before a call waits for it: a call that is told as not made must not be made later."""
        thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            self._threads.append(thread)
            thread.start()
        except BaseException as error:  # also one of a signal handler
            self._leave(thread)
            if not (isinstance(error, RuntimeError) and self._threads):  # else the others have one call more
                raise

    def _leave(self, thread: threading.Thread) -> None:
        with suppress(ValueError):
            self._threads.remove(thread)

    def _shut(self, *, takes_back: bool) -> list[Future[Any]]:
        """Lets threads end, and returns what is taken back of the calls that have not begun."""
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
                except BaseException as error:  # whatever the application raises is told to who waits
                    future.set_exception(error)
            del taken, future, call  # a thread that waits for work keeps nothing alive
            with self._lock:
                self._open -= 1

    def _take(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """The next call; None when there is none, and the thread is to end."""
        while True:
            with suppress(Empty):
                if taken := self._work.get(timeout=0 if self.is_shut else IDLE_S):
                    return taken
            with self._lock:  # so that a call comes that a signal handler's shutdown came before
                if self._work.empty():
                    self._leave(threading.current_thread())
                    if self.is_shut:
                        self._work.put(None)  # wakes the next thread
                    return None
