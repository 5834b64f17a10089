"""A broker that hangs: it takes connections and bytes, and answers nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from commitlake.kafka.embedded import EmbeddedBroker


@contextmanager
def paused(broker: EmbeddedBroker, seconds: float | None = None) -> Iterator[None]:
    """Hangs until the end of the block, or for so many seconds."""
    assert broker._process is not None
    pid = broker._process.pid  # of the session of its watch and its JVM
    os.killpg(pid, signal.SIGSTOP)
    time.sleep(0.3)  # until all its threads have stopped; one answered yet
    timer = threading.Timer(seconds, os.killpg, (pid, signal.SIGCONT)) if seconds else None
    try:
        if timer:
            timer.start()
        yield
    finally:
        if timer:
            timer.cancel()
        os.killpg(pid, signal.SIGCONT)
