"""Starts, watches, kills and ends the instances of the order service."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from commitlake.config import KafkaConfig
from commitlake.demo import shop
from commitlake.errors import CommitLakeError

_END_TIMEOUT_S = 20
_SEND_TIMEOUT_MS = 15_000  # a loaded machine is slow, and nobody waits


class DemoError(CommitLakeError):
    """Raised when the demo itself goes wrong."""


class Instance:
    """One shop in a process of its own, ended by the end of its standard input: it can't outlive this process."""

    def __init__(self, name: str, table: Path, kafka: KafkaConfig, on_kill: Callable[[], None]) -> None:
        self.name = name
        self.told: Counter[str] = Counter()
        self._on_kill = on_kill
        self.is_killed = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", shop.__name__, json.dumps(_arguments(name, table, kafka))],
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
        return self.is_killed or self.told["done"] > 0

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
            self.told[line.strip()] += 1
            if self.told["stuck"] == shop.STUCK and not self.is_killed:
                self._kill()

    def _kill(self) -> None:
        """End it as a crash would, with SIGKILL."""
        self.is_killed = True
        self._process.kill()
        self._on_kill()


class Instances:
    """All instances of the order service; the doomed one is killed once it hangs with all it shall hang with.

    Args:
        table: the file of the order table.
        kafka: where they send.
        on_kill: called, from a thread, after the kill.
    """

    def __init__(self, table: Path, kafka: KafkaConfig, on_kill: Callable[[], None]) -> None:
        self._start = partial(Instance, table=table, kafka=kafka, on_kill=on_kill)
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
        """Orders placed, or begun by a shop that hangs."""
        return sum(each.told["placed"] + each.told["stuck"] for each in self._all.values())

    @property
    def are_done(self) -> bool:
        """Whether no more orders come."""
        return all([each.is_done for each in self._all.values()])


def _arguments(name: str, table: Path, kafka: KafkaConfig) -> dict[str, object]:
    link = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "topic_prefix": kafka.topic_prefix,
        "options": dict(kafka.options),
        "send_msg_timeout": _SEND_TIMEOUT_MS,
        "start_timeout": 60_000,
    }
    return {"name": name, "table": str(table), "kafka": link}
