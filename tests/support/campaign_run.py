"""Coordinators of the campaign from the outside: start, freeze, kill, stop; and the broker that goes away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.killing import ENVIRONMENT, kill
from tests.support.polling import wait_for

from commitlake.kafka.embedded import EmbeddedBroker

_UP_S = 120
TOO_LONG = "did not end"


class Run:
    """A coordinator in a process group of its own; it waits for its plan."""

    def __init__(self, settings: Mapping[str, object], log: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", "tests.support.campaign_child", json.dumps(settings)]
        with log.open("w") as file:
            self._process = subprocess.Popen(
                command,
                env=ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Hands the plan over, once the JVM is up."""
        wait_for(lambda: self.has_ended() or self.said("JVM"), _UP_S, lambda: self.output[-2_000:])
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            stdin.write(json.dumps(plan).encode())

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def said(self, word: str) -> str | None:
        """What follows a word at the begin of a line; None where no line has it."""
        lines = (line for line in self.output.splitlines() if line.split(" ")[0] == word)
        return next((line.removeprefix(word).strip() or word for line in lines), None)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self, target: str) -> None:
        """SIGKILL to `python`, `jvm` or `both`."""
        self._signal(target, signal.SIGKILL)

    def freeze(self, seconds: float) -> None:
        """SIGSTOP to all of it, and SIGCONT after some time."""
        self._signal("both", signal.SIGSTOP)
        time.sleep(seconds)
        self._signal("both", signal.SIGCONT)

    def stop(self) -> None:
        """Asks for a clean end."""
        self._signal("python", signal.SIGTERM)

    def _signal(self, target: str, number: int) -> None:
        if self.has_ended():
            return
        if target == "both":
            os.killpg(self._process.pid, number)
        elif target == "python":
            self._process.send_signal(number)
        elif jvm := self.said("JVM"):
            os.kill(int(jvm), number)

    def end(self, seconds: float) -> str:
        """How it ended: `clean`, `killed`, the line with its error, or `TOO_LONG`."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._signal("python", signal.SIGUSR1)  # it writes where each thread is to its log
            time.sleep(1)
            self._signal("both", signal.SIGKILL)
            self._process.wait()
            return TOO_LONG
        if code == 0:
            return "clean"
        return "killed" if code == -signal.SIGKILL else self.error()

    def error(self) -> str:
        """The line with the error, or the last one."""
        lines = self.output.splitlines() or [""]
        return next((line for line in lines if line.startswith("error: ")), lines[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """A JVM that outlives Python ends by itself; what it writes until then is a part of the campaign."""
        kill(self._process)


class Runs:
    """Coordinators one after another; while one runs the JVM of the next comes up."""

    def __init__(self, settings: Mapping[str, object], logs: Path) -> None:
        self._settings, self._logs, self._count = settings, logs, 0
        self._next: Run | None = None

    def next(self, *, is_last: bool = False) -> Run:
        """The next one, which waits for its plan."""
        run = self._next or self._prepared()
        self._next = None if is_last else self._prepared()
        return run

    def _prepared(self) -> Run:
        self._count += 1
        return Run(self._settings, self._logs / f"run-{self._count}.log")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._next:
            self._next.__exit__()


class UnsteadyBroker(EmbeddedBroker):
    """A broker that can go away for a while."""

    def freeze(self, seconds: float) -> None:
        """It answers nobody for some time."""
        self._to_all(signal.SIGSTOP)
        time.sleep(seconds)
        self._to_all(signal.SIGCONT)

    def crash(self) -> None:
        """It is killed, and starts again on its log: some 10 s, as it waits for its own old session."""
        self._to_all(signal.SIGKILL)
        self.restart()

    def _to_all(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)  # it leads the group of its JVM
