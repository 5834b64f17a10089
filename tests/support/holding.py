"""A process that holds a warehouse as a coordinator's JVM does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commitlake.config.locations import JVM_LOCK

_HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@contextmanager
def held(warehouse: Path) -> Iterator[None]:
    """Its lock is taken by another process."""
    command = [sys.executable, "-c", _HOLDER, str(warehouse / JVM_LOCK)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.kill()
