"""The processes of the demo: coordinators, the audit, instances of the order service. None outlives the demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from commitlake import CommitLakeError
from commitlake.tools.demo import auditor, shop

_STOP_S = 60
_END_TIMEOUT_S = 20
_SHOWN = 2_000


class DemoError(CommitLakeError):
    """Raised when the demo itself goes wrong."""


class _Child:
    """A process that Ctrl-C does not reach: it is for the demo, which ends its processes itself."""

    def __init__(self, command: Sequence[str], **how: Any) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, **how)

    def __enter__(self) -> Self:
        return self

    def kill(self) -> None:
        """End it and its children, such as a JVM, with SIGKILL, like a crash, even where they have outlived it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class CoordinatorProcess(_Child):
    """A coordinator: a command that prints READY once it works, and ends when its standard input does."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            super().__init__(command, stdout=output, stderr=subprocess.STDOUT)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        self.kill()

    def has_said(self, *texts: str) -> bool:
        """Whether it has printed one of these.

        Raises:
            DemoError: it has ended by itself.
        """
        said = self._log.read_text(errors="replace")
        if self._process.poll() is not None:
            msg = f"a coordinator ended with exit code {self._process.returncode}; start the demo again:\n"
            raise DemoError(msg + said[-_SHOWN:])
        return any(text in said for text in texts)


class AuditorProcess(_Child):
    """The audit, with a Java of its own that starts at once; it ends when its standard input does."""

    def __init__(self, warehouse: Path, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-P", "-m", auditor.__name__, str(warehouse)]
        with log.open("wb") as output:
            super().__init__(command, stdout=subprocess.PIPE, stderr=output, text=True)

    def __exit__(self, *_: object) -> None:
        self.kill()

    def audit(self) -> tuple[bool, str]:
        """Return whether all is well, and what it says: its verdict, and before that what it found."""
        said, _ = self._process.communicate("audit\n")
        is_well = self._process.returncode == 0
        return is_well, said.strip() if is_well else f"{said}\n{self._log.read_text(errors='replace')[-_SHOWN:]}"


class Instance(_Child):
    """One shop in a process of its own; it ends when its standard input does, so it can't outlive this process."""

    def __init__(self, name: str, table: Path, kafka: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        self.name = name
        self.reported: Counter[str] = Counter()
        self._tell = tell
        self.killed_at_ms = 0
        given = json.dumps({"name": name, "table": str(table), "kafka": dict(kafka)})
        command = [sys.executable, "-P", "-m", shop.__name__, given]
        super().__init__(command, stdout=subprocess.PIPE, text=True, bufsize=1)
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def placed(self) -> int:
        """Number of orders that it placed, or that hang."""
        return self.reported["placed"] + self.reported["stuck"]

    @property
    def is_done(self) -> bool:
        """Whether it has placed all its orders, or is dead.

        Raises:
            DemoError: it has ended and was not killed.
        """
        code = self._process.poll()
        if code is not None and not self.is_killed:
            msg = f"{self.name} ended with exit code {code}, see above; start the demo again"
            raise DemoError(msg)
        return self.is_killed or self.reported["done"] > 0

    @property
    def is_killed(self) -> bool:
        """Whether it was killed, like by a crash."""
        return self.killed_at_ms > 0

    def rush(self) -> None:
        """Let its last orders come."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it was killed
            self._process.stdin.write("rush\n")

    def __exit__(self, kind: object, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # what `rush` wrote to one that was killed
            self._process.stdin.close()
        try:
            self._process.wait(0 if kind else _END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, *others = line.split()
            self.reported[word] += 1
            if word == "answers":
                self._tell(f"{self.name} answers for {others[0]}: {others[1]}")
            if self.reported["stuck"] == shop.STUCK and not self.is_killed:
                self.killed_at_ms = round(time.time() * 1_000)
                self.kill()
                self._tell(f"killed {self.name} with {shop.STUCK} open transactions")


@contextmanager
def instances(table: Path, kafka: Mapping[str, Any], tell: Callable[[str], None]) -> Iterator[list[Instance]]:
    """Start the instances of the order service, and end them; the doomed one is killed when its last orders hang.

    Threads tell of the kill, and of each answer to a check of the killed one's transactions.
    """
    with ExitStack() as started:
        yield [started.enter_context(Instance(name, table, kafka, tell)) for name in shop.SHOPS]
