"""The coordinator in a process of its own: it is killed in the middle of the story, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from commitlake.tools.demo.instances import DemoError

_STOP_S = 60
_SHOWN = 2_000


class CoordinatorProcess:
    """Runs a command that prints READY once it works.

    Args:
        command: must end when its standard input does, so it can't outlive the demo.
        log: the file for its output.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self._log = list(command), log
        self._log.write_bytes(b"")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        self.kill()

    def start(self) -> None:
        """Start it; its output follows that of the one before."""
        self._begin = self._log.stat().st_size
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that `kill` reaches its JVM too, and Ctrl-C is for the demo
            )

    def kill(self) -> None:
        """End Python and its JVM with SIGKILL, like a crash, even where they have outlived the command."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def is_ready(self) -> bool:
        """Whether it has printed READY since its last start.

        Raises:
            DemoError: it has ended by itself.
        """
        said = self._log.read_bytes()[self._begin :].decode(errors="replace")
        if self._process.poll() is not None:
            msg = f"the coordinator ended with exit code {self._process.returncode}; start the demo again:\n"
            raise DemoError(msg + said[-_SHOWN:])
        return "READY" in said
