"""How a process begins and ends: signals, errors, exit codes, and the terminal that shows its output."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

from commitlake.config import databricks
from commitlake.config.terminal import escape_other_letters
from commitlake.errors import CommitLakeError, root_reason
from commitlake.spark import log_lines

log = logging.getLogger(__name__)
PROGRESS = logging.getLogger("commitlake.progress")
"""Tells the steps of a start. Only its lines of level INFO are shown unless COMMITLAKE_LOG says otherwise."""

# A directory of `submit`: the driver writes its process id and its error there, and finds a stop that came before it.
MEETING_PLACE = "COMMITLAKE_LAUNCH_DIR"
# Spark passes the driver's output, errors included, through one pipe: only `submit` sees whether a terminal shows it.
TERMINAL = "COMMITLAKE_TERMINAL_COLUMNS"
STOPPED = 130

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(job: Callable[[Sequence[str]], int | None], exit_when_stopped: int = STOPPED) -> NoReturn:
    """Run `job` with the command line's arguments and exit with the code it returns; None is 0.

    SIGTERM and SIGINT exit with `exit_when_stopped`, unless the job has called `stop_on_signals`.
    """
    with short_errors(), exit_on_signals(exit_when_stopped):
        sys.exit(job(sys.argv[1:]))


@contextmanager
def short_errors() -> Iterator[None]:
    """Log to the terminal; an error becomes one short text and exit code 1. COMMITLAKE_LOG=DEBUG shows its stack."""
    for stream in (sys.stdout, sys.stderr):
        escape_other_letters(stream)
    try:
        _log_to_terminal()
        yield
    except Exception as error:
        text = str(error)
        if not isinstance(error, CommitLakeError):
            text = f"{type(error).__name__}: {root_reason(error)}; COMMITLAKE_LOG=DEBUG shows where"
        log.debug("what has ended it", exc_info=True)
        told = log_lines.error(text)
        _print_error(told)
        sys.exit(told if databricks.is_here() else 1)  # there a run shows the exit, not what was printed


def is_driver() -> bool:
    """Whether this is Spark's driver: spark-submit runs it, started by `submit` or by hand; or Databricks runs it."""
    return databricks.is_here() or any(name in os.environ for name in (MEETING_PLACE, "PYSPARK_GATEWAY_PORT"))


@contextmanager
def exit_on_signals(code: int) -> Iterator[None]:
    """Exit with `code` on SIGTERM and SIGINT, even on one that `submit` got before this process started.

    Inside the block they raise KeyboardInterrupt, which py4j handles: it drops the connection that waits for an answer.
    """
    try:
        _handle(_interrupt)
        if _meet_launcher():
            raise KeyboardInterrupt
        yield
    except KeyboardInterrupt:
        sys.exit(code)


class Stop:
    """A flag for signal handlers.

    Not a `threading.Event`: the code that the signal interrupts may hold the event's lock, and `set` would wait for it
    for ever. Such code is, for example, the handler of another signal that came just before. A `put` of this queue may
    run inside another.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._news: SimpleQueue[None] = SimpleQueue()

    def set(self, *_: object) -> None:
        """Set the flag."""
        self._is_set = True
        self.wake()

    def wake(self) -> None:
        """End the current `wait`, or the next one."""
        if self._news.empty():  # one is enough, also where nobody ever waits
            self._news.put(None)

    def wait(self, seconds: float) -> None:
        """Wait until the flag is set, somebody calls `wake`, or the time is over."""
        if not self._is_set:
            with suppress(Empty):
                self._news.get(timeout=seconds)
                while True:
                    self._news.get_nowait()

    def is_set(self) -> bool:
        """Whether a signal has come."""
        return self._is_set


def stop_on_signals() -> Stop:
    """Return a flag that SIGTERM and SIGINT set from now on, however often they come."""
    stop = Stop()
    _handle(stop.set)
    return stop


def _handle(handler: Callable[..., None]) -> None:
    """Sets the handler of both signals, where Python allows it; a platform may run a job outside the main thread."""
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, handler)


@contextmanager
def stopped_by_signals(stop: Stop) -> Iterator[None]:
    """Let the first SIGTERM or SIGINT set `stop`; the second one goes to the handler that was there before.

    Outside the main thread, where Python allows no handlers, signals keep their handlers. Blocks may overlap, with one
    flag or several: a signal sets all flags, and the last block to end restores the handlers. If that block
    ends in another thread than it began in, the next signal restores them, and goes to the handler of before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _STOPS.add(stop)
    try:
        yield
    finally:
        _STOPS.discard(stop)


class _StopsOfSignals:
    """The flags that the next signal sets; one handler for all."""

    def __init__(self) -> None:
        self._stops: list[Stop] = []
        self._before: dict[signal.Signals, Any] = {}

    def add(self, stop: Stop) -> None:
        self._stops.append(stop)
        if not self._before and not stop.is_set():
            self._before = {number: signal.signal(number, self._set_all) for number in _SIGNALS}

    def discard(self, stop: Stop) -> None:
        if stop in self._stops:  # not in the child of a fork
            self._stops.remove(stop)
        if not self._stops and threading.current_thread() is threading.main_thread():
            self._restore()

    def forget(self) -> None:
        """Restores the handlers in the child of a fork, where nobody waits for a flag."""
        self._stops.clear()
        self._restore()

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            if signal.getsignal(number) == self._set_all:  # if not, other code has set its own since
                signal.signal(number, handler)

    def _set_all(self, number: int, _: object) -> None:
        self._restore()
        if not self._stops:
            signal.raise_signal(number)
        for stop in list(self._stops):
            stop.set()


_STOPS = _StopsOfSignals()
os.register_at_fork(after_in_child=_STOPS.forget)


def terminal_columns() -> int:
    """Return the width of the terminal that shows this process's output, 0 when there is none."""
    if TERMINAL in os.environ:
        return int(os.environ[TERMINAL])
    return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0


def _interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt once: Ctrl-C arrives twice, from the terminal and from `submit`."""
    for number in _SIGNALS:
        # Not SIG_IGN: Python prints an error about a signal that came before it was ignored.
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def _meet_launcher() -> bool:
    """Write the process id for `submit`, which sends signals to it; return whether one has come already."""
    place = os.environ.get(MEETING_PLACE)
    if place is None:
        return False
    Path(place, "pid.part").write_text(str(os.getpid()))
    Path(place, "pid.part").replace(Path(place, "pid"))
    return Path(place, "stop").exists()


def _print_error(text: str) -> None:
    place = os.environ.get(MEETING_PLACE)
    if place and Path(place).is_dir():
        Path(place, "error").write_text(text, encoding="utf-8")
    else:
        sys.stderr.write(text)


def _log_to_terminal() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(log_lines.formatter())
    package = logging.getLogger("commitlake")
    package.addHandler(handler)
    package.setLevel(os.environ.get("COMMITLAKE_LOG", "WARNING").upper())
    PROGRESS.setLevel(logging.NOTSET if "COMMITLAKE_LOG" in os.environ else logging.INFO)
    # kafka-python logs each attempt to connect as an error; what matters reaches the user as a KafkaError.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    # py4j logs a stack trace of an error in a query's function, though that ends the query and is reported as its
    # error. py4j logs another one of a call that a signal interrupts.
    if not package.isEnabledFor(logging.DEBUG):
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_is_no_signal)


def _is_no_signal(record: logging.LogRecord) -> bool:
    return not record.exc_info or record.exc_info[0] is not KeyboardInterrupt
