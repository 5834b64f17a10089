"""Starts, watches, kills and stops the instances of the order service."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from commitlake import CommitLakeError
from commitlake.tools.demo import shop

_END_TIMEOUT_S = 20


class DemoError(CommitLakeError):
    """Raised when the demo itself goes wrong."""


class Instance:
    """One shop in a process of its own; it ends when its standard input does, so it can't outlive this process."""

    def __init__(self, name: str, table: Path, kafka: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        self.name = name
        self.reported: Counter[str] = Counter()
        self._tell = tell
        self.is_killed = False
        given = {"name": name, "table": str(table), "kafka": dict(kafka)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", shop.__name__, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the demo, which ends its shops itself
        )
        threading.Thread(target=self._listen, daemon=True).start()

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(0 if error else _END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, *others = line.split()
            self.reported[word] += 1
            if word == "answers":
                self._tell(f"{self.name} answers for {others[0]}: {others[1]}")
            if self.reported["stuck"] == shop.STUCK and not self.is_killed:
                self._kill()

    def _kill(self) -> None:
        """End it with SIGKILL, like a crash."""
        self.is_killed = True
        self._process.kill()
        self._tell(f"killed {self.name} with {shop.STUCK} open transactions")


class Instances:
    """All instances of the order service; the doomed one is killed when its last orders hang.

    Args:
        table: the file of the order table.
        kafka: arguments of their producers.
        tell: called, from a thread, with the kill and with each answer to a check of its transactions.
    """

    def __init__(self, table: Path, kafka: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        self._start = partial(Instance, table=table, kafka=kafka, tell=tell)
        self._stack = ExitStack()
        self._all: dict[str, Instance] = {}

    def __enter__(self) -> Self:
        with self._stack:
            for name in shop.SHOPS:
                self._all[name] = self._stack.enter_context(self._start(name))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def placed(self) -> int:
        """Number of orders that were placed, or that hang."""
        return sum(each.reported["placed"] + each.reported["stuck"] for each in self._all.values())

    @property
    def are_done(self) -> bool:
        """Whether all shops have placed their orders."""
        return all([each.is_done for each in self._all.values()])
