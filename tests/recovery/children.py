"""Coordinators in processes of their own, which end or are held up in the middle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.lake import Lake

CHILD = Path(__file__).with_name("coordination_child.py")
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}


def killed_at(lake: Lake, step: str, moment: str, nth: int = 1, **changes: object) -> subprocess.CompletedProcess[str]:
    """Runs a coordinator in a process of its own that kills itself at a step."""
    return Prepared(lake, **changes).run(step=step, moment=moment, nth=nth)


def command(lake: Lake, **changes: object) -> list[str]:
    """The command of `coordination_child`, which reads its plan from its input."""
    settings = {**lake.settings, **{key.replace("_", ".", 1): value for key, value in changes.items()}}
    return [sys.executable, str(CHILD), json.dumps(settings)]


class Prepared:
    """A coordinator whose JVM is up, some 10 s of its life, and that waits to be told what to do."""

    def __init__(self, lake: Lake, **changes: object) -> None:
        self._process = subprocess.Popen(
            command(lake, **changes),
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, **plan: object) -> subprocess.CompletedProcess[str]:
        """Works off what is there, up to where the plan ends it."""
        _, said = self._process.communicate(json.dumps(plan), timeout=240)
        return subprocess.CompletedProcess(self._process.args, self._process.returncode, stderr=said)

    def drop(self) -> None:
        """Ends it before it has begun."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class Child:
    """A coordinator in a process of its own that goes on until it fails or is told to stop."""

    def __init__(self, lake: Lake, said: Path, **plan: object) -> None:
        self._said = said
        with said.open("w") as file:
            self.process = subprocess.Popen(
                command(lake),
                env=ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        with self.process.stdin as told:
            told.write(json.dumps({"stays": True, **plan}).encode())

    @property
    def said(self) -> str:
        return self._said.read_text()

    def is_paused(self) -> bool:
        """Whether it has stopped itself; fails when it has ended instead."""
        assert self.process.poll() is None, self.said[-4_000:]
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.said[-4_000:]
        return "READY" in self.said

    def go_on(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def end(self, seconds: float = 90) -> int:
        """Waits for the end; returns the exit code."""
        return self.process.wait(seconds)

    def error(self) -> str:
        """The one line that tells why it ended."""
        return next((line for line in self.said.splitlines() if line.startswith("error: ")), self.said[-4_000:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.end()


def delete_checkpoints(lake: Lake) -> None:
    shutil.rmtree(lake.root / "checkpoints", ignore_errors=True)
