"""Processes that are killed: those a test starts, and coordinators that end or are held up at one of their writes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.support.lake import Lake

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}"}


def kill(process: subprocess.Popen[Any]) -> None:
    """Kills a process that leads a group, and all else in that group, such as its JVM; harmless when it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def jvm_of(python: int) -> int:
    """The process id of the JVM that a Python process has started."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, _, fields = stat.read_text().partition(" (java) ")
            if fields and int(fields.split()[1]) == python:
                return int(number)
    msg = f"no JVM among the children of {python}"
    raise AssertionError(msg)


def killed_at(lake: Lake, step: str, moment: str, nth: int = 1, **changes: object) -> subprocess.CompletedProcess[str]:
    """Runs a coordinator in a process of its own that kills itself at a step; for the arguments see `Plan`."""
    with Prepared(lake.changed(**changes)) as child:
        return child.run(step=step, moment=moment, nth=nth)


def command(settings: Mapping[str, object]) -> list[str]:
    """The command of `coordination_child`, which reads its plan from its input."""
    return [sys.executable, "-m", "tests.support.coordination_child", json.dumps(settings)]


class Prepared:
    """A coordinator whose JVM is up, some 10 s of its life, and that waits for its plan."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._process = subprocess.Popen(
            command(settings),
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, **plan: object) -> subprocess.CompletedProcess[str]:
        """Works off what is there, up to where the plan ends it."""
        _, output = self._process.communicate(json.dumps(plan), timeout=400)
        return subprocess.CompletedProcess(self._process.args, self._process.returncode, stderr=output)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        kill(self._process)


class Successive:
    """Coordinators one after another; while one runs, the JVM of the next comes up: a third less time on 2 cores."""

    def __init__(self, lake: Lake) -> None:
        self._settings = lake.settings
        self._next: Prepared | None = None

    def run(self, *, is_last: bool = False, **plan: object) -> subprocess.CompletedProcess[str]:
        """Runs the next one; with `is_last` none is prepared to follow it."""
        with self._next or Prepared(self._settings) as child:
            self._next = None if is_last else Prepared(self._settings)
            return child.run(**plan)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._next:
            self._next.__exit__()


class Child:
    """A coordinator in a process of its own that goes on until it fails or gets SIGTERM."""

    def __init__(self, lake: Lake, log: Path, **plan: object) -> None:
        self._log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command(lake.settings),
                env=ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        with self.process.stdin as stdin:
            stdin.write(json.dumps({"stays": True, **plan}).encode())

    @property
    def output(self) -> str:
        return self._log.read_text()

    def is_paused(self) -> bool:
        """Whether it has stopped itself; fails when it has ended instead."""
        assert self.process.poll() is None, self.output[-4_000:]
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.output[-4_000:]
        return "READY" in self.output

    def go_on(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def end(self, seconds: float = 120) -> int:
        """Waits for the end; returns the exit code."""
        return self.process.wait(seconds)

    def error(self) -> str:
        """The one line that says why it ended."""
        return error_line(self.output)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        kill(self.process)


def error_line(output: str) -> str:
    """The line with the error; all the rest of the output where there is none."""
    return next((line for line in output.splitlines() if line.startswith("error: ")), output[-4_000:])


def delete_checkpoints(lake: Lake) -> None:
    shutil.rmtree(lake.root / "checkpoints", ignore_errors=True)
