"""The lock of the JVM that commits, beside that of the Python process: a killed Python leaves its JVM for some seconds.

The lock has a file of its own. Some network file systems make a `flock` out of Java's lock: in one file, Python's
`flock` would then keep out its own JVM. Java's locks are POSIX locks: closing the file anywhere in a process frees that
process's lock. So Python only looks whether the lock is free, and a JVM opens the file only to take it.
"""

from __future__ import annotations

import fcntl
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from commitlake.config.locations import JVM_LOCK
from commitlake.errors import WarehouseError, root_reason
from commitlake.spark.jvm import java

WAIT_S = 30.0
"""How long a start waits for the JVM of a Python that was killed; such a JVM ends within a few seconds."""
_LOOK_S = 0.2
_FOR_EVER_DAYS = 36_500


class JvmLock:
    """The lock of a JVM, for use by the process that has the warehouse's `flock`.

    With the `flock`, no other Python takes the lock between a look and `take`.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory.absolute() / JVM_LOCK
        self._channel: Any = None
        self._kept: Any = None

    @property
    def holder(self) -> str:
        """The process id of the JVM that last took the lock."""
        return self._path.read_text(encoding="utf-8").strip() or "unknown"

    def await_free(self, seconds: float) -> bool:
        """Waits until no JVM holds the lock, at most `seconds`; returns whether it is free."""
        until = time.monotonic() + seconds
        while not (is_free := self.is_free()) and time.monotonic() < until:
            time.sleep(_LOOK_S)
        return is_free

    def is_free(self) -> bool:
        """Whether no JVM holds the lock.

        Raises:
            WarehouseError: the file can't be locked.
        """
        try:
            with self._path.open("r+b") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error
        return True

    def take(self, spark: SparkSession) -> bool:
        """Lets the JVM of a session take the lock, if it is free, until `release` or the end of that JVM.

        Raises:
            WarehouseError: the file can't be locked.
        """
        try:
            channel = java(spark, "java.io.RandomAccessFile")(str(self._path), "rw").getChannel()
            if channel.tryLock() is None:  # taken, by the last call of a Python that was killed just now
                channel.close()
                return False
        except Py4JJavaError as error:
            raise self._unusable(root_reason(error)) from error
        # Java closes an unreferenced channel, and Python's references end with Python: a JVM timer holds one more.
        days, future = (java(spark, f"java.util.concurrent.{name}") for name in ("TimeUnit", "CompletableFuture"))
        self._kept = future().completeOnTimeout(channel, _FOR_EVER_DAYS, days.DAYS)
        self._channel = channel
        self._path.write_text(str(java(spark, "java.lang.ProcessHandle").current().pid()), encoding="utf-8")
        return True

    def release(self) -> None:
        """Frees the lock, if it is held: the JVM of a notebook lives on."""
        if self._channel is not None:
            with suppress(Py4JError, OSError):  # a JVM that is gone holds nothing
                self._channel.close()
                self._kept.cancel(True)
            self._channel = self._kept = None

    def _unusable(self, reason: str) -> WarehouseError:
        return WarehouseError(
            f"warehouse: cannot lock {self._path}: {reason}; choose a file system with locks, or allow it"
        )
