"""Coordinators of the campaign from the outside: start, freeze, kill, stop; and the broker that goes away."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.support.killing import ENVIRONMENT, kill
from tests.support.polling import wait_for

from commitlake.kafka.embedded import EmbeddedBroker

_UP_S = 120
TOO_LONG = "did not end"


class Run:
    """A process in a group of its own that runs one coordinator after the other, each with its plan."""

    def __init__(self, settings: Mapping[str, object], log: Path) -> None:
        self._log, self._from = log, 0
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
        """Hands the next plan over, once the JVM is up."""
        self._from = 0
        wait_for(lambda: self.is_gone() or self.said("JVM"), _UP_S, lambda: self.output[-2_000:])
        self._jvm, self._from = int(self.said("JVM") or 0), self._log.stat().st_size
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{json.dumps(plan)}\n".encode())
            self._process.stdin.flush()

    @property
    def output(self) -> str:
        """What it has printed since its plan."""
        return self._log.read_bytes()[self._from :].decode(errors="replace")

    def said(self, word: str) -> str | None:
        """What follows a word at the begin of a line; None where no line has it."""
        lines = (line for line in self.output.splitlines() if line.split(" ")[0] == word)
        return next((line.removeprefix(word).strip() or word for line in lines), None)

    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def has_ended(self) -> bool:
        """Whether the coordinator has."""
        return self.is_gone() or self.said("ENDED") is not None

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
        if not self.has_ended():
            self._signal("python", signal.SIGTERM)

    def _signal(self, target: str, number: int) -> None:
        if self.is_gone():
            return
        if target == "both":
            os.killpg(self._process.pid, number)
        elif target == "python":
            self._process.send_signal(number)
        else:
            with suppress(ProcessLookupError):
                os.kill(self._jvm, number)

    def end(self, seconds: float) -> str:
        """How the coordinator ended: `clean`, `killed`, the line with its error, or `TOO_LONG`."""
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() > deadline:
                self._give_up()
                return TOO_LONG
            time.sleep(0.05)
        how = self.said("ENDED") or ("killed" if self._process.returncode == -signal.SIGKILL else self._last_line())
        if how != "clean" and not self._has_jvm():
            self._signal("both", signal.SIGKILL)  # only Python is left, which can start no coordinator any more
            self._process.wait()
        return how

    def _give_up(self) -> None:
        self._signal("python", signal.SIGUSR1)  # it writes where each thread is to its log
        time.sleep(1)
        self._signal("both", signal.SIGKILL)
        self._process.wait()

    def _has_jvm(self) -> bool:
        with suppress(OSError):
            return Path(f"/proc/{self._jvm}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    def _last_line(self) -> str:
        lines = self.output.splitlines() or [""]
        return next((line for line in lines if line.startswith("error: ")), lines[-1])

    def close(self) -> None:
        """Ends it, where it still runs."""
        kill(self._process)


class Runs:
    """Processes one after another; while the faults of one may kill it, the JVM of the next comes up."""

    def __init__(self, settings: Mapping[str, object], logs: Path) -> None:
        self._settings, self._logs, self._count = settings, logs, 0
        self._current: Run | None = None
        self._spare: Run | None = None

    def next(self, *, kills: bool) -> Run:
        """The one that takes the next plan; `kills` says whether this plan may kill it."""
        if self._current is None or self._current.is_gone():
            self._current, self._spare = self._spare or self._prepared(), None
        if kills and self._spare is None:
            self._spare = self._prepared()
        return self._current

    def _prepared(self) -> Run:
        self._count += 1
        return Run(self._settings, self._logs / f"process-{self._count}.log")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """A JVM that outlives its Python ends by itself; what it writes until then is a part of the campaign."""
        for run in (self._current, self._spare):
            if run is not None:
                run.close()


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
        wait_for(self._is_gone, 10)
        self.restart()

    def _is_gone(self) -> bool:
        """Whether its port is free: the kill of a JVM takes some moments."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", self.port))
                return True
        return False

    def _to_all(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)  # it leads the group of its JVM
