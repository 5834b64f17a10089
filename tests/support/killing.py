"""Processes that are killed: those a test starts, and coordinators in which something goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from tests.support.lake import Lake
from tests.support.polling import wait_for

from commitlake.config.locations import JVM_LOCK

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}"}
KILLED, TOO_LONG = "killed", "did not end"
_UP_S, _END_S = 120, 400


def python(
    *words: str, check: bool = False, timeout: float = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python with words of a command line, to its end."""
    command, own = [sys.executable, *words], {**ENVIRONMENT, **environment}
    return subprocess.run(command, env=own, capture_output=True, text=True, check=check, timeout=timeout)


def kill(process: subprocess.Popen[Any]) -> None:
    """Kills a process that leads a group, and all else in that group, such as its JVM; harmless when it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Run:
    """A process in a group of its own that runs one coordinator after the other, each with its plan.

    For plans see `coordinator_child`. Its JVM takes some 10 s to come up; until then it takes no plan.
    """

    def __init__(self, settings: Mapping[str, object], logs: Path) -> None:
        self._log, self._from = logs / f"coordinator-{uuid.uuid4()}.log", 0
        with self._log.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.coordinator_child", json.dumps(settings)],
                env=ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid, self.jvm = self._process.pid, 0

    def begin(self, **plan: Any) -> Self:
        """Hands the next plan over, once the JVM is up."""
        self._from = 0
        wait_for(lambda: self.is_gone() or self.said("JVM"), _UP_S, lambda: self.output[-2_000:])
        self.jvm, self._from = int(self.said("JVM") or 0), self._log.stat().st_size
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{json.dumps(plan)}\n".encode())
            self._process.stdin.flush()
        return self

    @property
    def output(self) -> str:
        """What it has printed since its plan."""
        return self._log.read_bytes()[self._from :].decode(errors="replace")

    def said(self, word: str) -> str | None:
        """What follows a word at the begin of a line; None where no line has it."""
        lines = (line for line in self.output.splitlines() if line.split(" ")[0] == word)
        return next((line.removeprefix(word).strip() or word for line in lines), None)

    def is_gone(self) -> bool:
        return self._process.poll() is not None

    def has_ended(self) -> bool:
        """Whether the coordinator has."""
        return self.is_gone() or self.said("ENDED") is not None

    def is_ready(self) -> bool:
        """Whether all its queries run; fails when it has ended instead."""
        assert not self.has_ended(), self.output[-4_000:]
        return self.said("READY") is not None

    def is_held_up(self) -> bool:
        """Whether it has stopped itself; fails when it has ended instead."""
        assert not self.has_ended(), self.output[-4_000:]
        return _state(self.pid) == "T"

    def kill(self, target: str) -> None:
        self._signal(target, signal.SIGKILL)

    def freeze(self, seconds: float) -> None:
        """SIGSTOP to all of it, and SIGCONT after some time."""
        self._signal("both", signal.SIGSTOP)
        time.sleep(seconds)
        self.go_on()

    def go_on(self) -> None:
        self._signal("both", signal.SIGCONT)

    def stop(self) -> None:
        if not self.has_ended():
            self._signal("python", signal.SIGTERM)

    def _signal(self, target: str, number: int) -> None:
        if self.is_gone():
            return
        if target == "both":
            os.killpg(self.pid, number)
        elif target == "python":
            self._process.send_signal(number)
        else:
            with suppress(ProcessLookupError):
                os.kill(self.jvm, number)

    def end(self, seconds: float = _END_S) -> str:
        """How the coordinator ended: `clean`, `KILLED`, the line with its error, or `TOO_LONG`."""
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() > deadline:
                self._give_up()
                return TOO_LONG
            time.sleep(0.05)
        how = self.said("ENDED") or (KILLED if self._process.returncode == -signal.SIGKILL else self._last_line())
        if how != "clean" and not self.has_jvm():
            self._signal("both", signal.SIGKILL)  # only Python is left, which can start no coordinator any more
            self._process.wait()
        return how

    def _give_up(self) -> None:
        self._signal("python", signal.SIGUSR1)  # it writes where each thread is to its log
        time.sleep(1)
        self._signal("both", signal.SIGKILL)
        self._process.wait()

    def has_jvm(self) -> bool:
        return _state(self.jvm) not in ("", "Z")

    def _last_line(self) -> str:
        lines = self.output.splitlines() or [""]
        return next((line for line in lines if line.startswith("error: ")), lines[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """A JVM that outlives its Python ends by itself."""
        kill(self._process)


def _state(process: int) -> str:
    """The letter that says what a process does; none where there is no process."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


class Runs:
    """Processes one after another; while the faults of one may kill it, the JVM of the next comes up.

    On 2 cores that takes a third less time.
    """

    def __init__(self, settings: Mapping[str, object], logs: Path) -> None:
        self._settings, self._logs = settings, logs
        self._current: Run | None = None
        self._spare: Run | None = None

    def next(self, *, kills: bool) -> Run:
        """The one that takes the next plan; `kills` says whether another has to follow this one."""
        if self._current is None or self._current.is_gone():
            self._current, self._spare = self._spare or Run(self._settings, self._logs), None
        if kills and self._spare is None:
            self._spare = Run(self._settings, self._logs)
        return self._current

    def killed_at(self, step: str, moment: str, nth: int = 1, *, is_last: bool = False, **plan: Any) -> str:
        """Works off what is there, up to a write at which it kills itself; returns how it ended, for an assert."""
        return _killed_at(self.next(kills=not is_last), step, moment, nth, **plan)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for run in (self._current, self._spare):
            if run is not None:
                run.__exit__()


def killed_at(lake: Lake, step: str, moment: str, nth: int = 1, **changes: object) -> str:
    """Runs a coordinator that kills itself at a step (`faults.WriteFault`); returns how it ended."""
    with Run(lake.changed(**changes), lake.root) as run:
        return _killed_at(run, step, moment, nth)


def _killed_at(run: Run, step: str, moment: str, nth: int, **plan: Any) -> str:
    how = run.begin(writes=[{"step": step, "moment": moment, "nth": nth}], **plan).end()
    if how == KILLED:
        wait_for(lambda: not run.has_jvm())  # it dies some moments after Python, and writes until then
    return how


def delete_checkpoints(lake: Lake) -> None:
    shutil.rmtree(lake.root / "checkpoints", ignore_errors=True)


def cut_checkpoints(lake: Lake) -> None:
    """Leaves the first bytes of each file of Spark's checkpoints: offsets, commits, and the state."""
    for file in (lake.root / "checkpoints").rglob("*"):
        if file.is_file():
            os.truncate(file, min(3, file.stat().st_size))


_HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@contextmanager
def held(warehouse: Path) -> Iterator[None]:
    """Its lock is taken by another process."""
    command = [sys.executable, "-c", _HOLDER, str(warehouse / JVM_LOCK)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.kill()
