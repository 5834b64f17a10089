"""Programs as users start them: `./spark-submit.sh run` in a process group of its own, and tools of other languages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.killing import ROOT, kill
from tests.support.polling import wait_for


class Program:
    """A command in a process group of its own, and its output so far."""

    def __init__(self, command: Sequence[str], **how: Any) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, **how
        )
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line


class Coordinator(Program):
    """`./spark-submit.sh run` in `place`, without the PYSPARK_PYTHON that a session of this process sets."""

    def __init__(
        self,
        place: Path,
        *arguments: str,
        heap: str = "1g",
        spark_args: str = "",
        master: str = "local[2]",
        **settings: object,
    ) -> None:
        self.warehouse = place / "warehouse"
        given = {"warehouse": self.warehouse, "checkpoints": place / "checkpoints", **settings}
        pairs = [part for key, value in given.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]
        environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
        super().__init__(
            [str(ROOT / "spark-submit.sh"), "run", *arguments, *pairs, "--master", master],
            cwd=foreign_modules(place),
            env={**environment, "COMMITLAKE_SPARK_ARGS": f"--conf spark.driver.memory={heap} {spark_args}"},
        )

    def ready(self, seconds: float = 300) -> dict[str, str]:
        """Waits for READY; returns what stands after it."""
        wait_for(lambda: "READY" in self.said or self.process.poll() is not None, seconds, lambda: self.said)
        assert "READY" in self.said, self.said
        line = next(line for line in self.said.splitlines() if "READY" in line)
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    def until(self, done: Callable[[], object], seconds: float) -> None:
        """Waits until something is so; fails when it ends before."""

        def is_done() -> object:
            assert self.process.poll() is None, self.said[-4_000:]
            return done()

        wait_for(is_done, seconds, lambda: self.said[-4_000:])

    def stop(self) -> None:
        """Stops it as a supervisor does: no batch is left incomplete."""
        os.kill(self.process.pid, signal.SIGTERM)
        assert self.end() == 0, self.said[-4_000:]

    def end(self, seconds: float = 120) -> int:
        """Waits for the end; returns the exit code."""
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def group(self) -> list[str]:
        """The processes of its group that still live, by their command lines; the broker has a session of its own."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
                command = (stat.parent / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            is_alive = fields[0] != "Z"
            if is_alive and (int(fields[2]) == self.process.pid or str(self.warehouse) in command):
                found.append(command)
        return found


@contextmanager
def coordinator(place: Path, *arguments: str, **given: Any) -> Iterator[Coordinator]:
    """A `Coordinator` that is gone when the test is over, whatever happened."""
    running = Coordinator(place, *arguments, **given)
    try:
        yield running
    finally:
        kill(running.process)
        running.end()


FOREIGN = ("commitlake", "kafka", "yaml", "numpy", "queue", "typer")


def foreign_modules(place: Path) -> Path:
    """A working directory whose modules have names of others; no process of CommitLake runs one of them."""
    here = place / "here"
    here.mkdir(exist_ok=True)
    for name in FOREIGN:
        (here / f"{name}.py").write_text("raise SystemExit(f'the file {__file__} of the working directory was run')")
    return here


def fetch(*command: str, cwd: Path | None = None) -> None:
    """Lets a tool fetch packages; skips the test where the tool is not there, or can't reach its registry."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} can't fetch: {done.stderr[-200:]}")
