"""How a job begins and ends: signals, errors, exit codes, and what it says on the terminal."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from commitlake.errors import CommitLakeError

# `submit` gives the directory in which a driver leaves its process id and finds a stop that came before.
MEETING_PLACE = "COMMITLAKE_LAUNCH_DIR"
# Spark hands the driver's output through a pipe, so only `submit` sees whether a terminal is at its end.
TERMINAL = "COMMITLAKE_TERMINAL_COLUMNS"
STOPPED = 130

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(job: Callable[[Sequence[str]], int | None], exit_when_stopped: int = STOPPED) -> NoReturn:
    """Run `job` with the command line's arguments and exit with what it returns; None is 0.

    A `CommitLakeError` becomes one short text and exit code 1, never a stack trace. SIGTERM and SIGINT raise
    KeyboardInterrupt, which becomes `exit_when_stopped`, unless the job has called `stop_on_signals`.
    """
    _log_to_terminal()
    try:
        for number in _SIGNALS:
            signal.signal(number, _interrupt)
        _meet_launcher()
        code = job(sys.argv[1:]) or 0
    except KeyboardInterrupt:
        code = exit_when_stopped
    except CommitLakeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = 1
    sys.exit(code)


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set from now on, however often they come."""
    stop = threading.Event()
    for number in _SIGNALS:
        signal.signal(number, lambda *_: stop.set())
    return stop


def terminal_columns() -> int:
    """Return the width of the terminal that shows this job's output, 0 when there is none."""
    return int(os.environ.get(TERMINAL, "0"))


def _interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt once: Ctrl-C arrives twice, from the terminal and from the launcher."""
    for number in _SIGNALS:
        # Not SIG_IGN: Python prints an error about a signal that came before it was ignored.
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def _meet_launcher() -> None:
    """Tell the launcher where to send signals; spark-submit starts its children deaf to them."""
    place = os.environ.get(MEETING_PLACE)
    if place:
        Path(place, "pid.part").write_text(str(os.getpid()))
        Path(place, "pid.part").replace(Path(place, "pid"))
        if Path(place, "stop").exists():
            raise KeyboardInterrupt


def _log_to_terminal() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"))
    package = logging.getLogger("commitlake")
    package.addHandler(handler)
    package.setLevel(os.environ.get("COMMITLAKE_LOG", "WARNING").upper())
    # kafka-python logs each attempt to connect as an error; what matters reaches the user as a KafkaError.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
