"""A broker that hangs: it takes connections and bytes, and answers nothing; or that is killed."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.polling import wait_for

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


class UnsteadyBroker(EmbeddedBroker):
    """A broker that can go away for a while."""

    def freeze(self, seconds: float) -> None:
        """It answers nobody for some time."""
        with paused(self):
            time.sleep(seconds)

    def crash(self, seconds: float = 0) -> None:
        """It is killed, and starts again on its log: some 10 s, as it waits for its own old session.

        Args:
            seconds: how long nobody starts it.
        """
        self.kill()
        time.sleep(seconds)
        self.restart()

    def kill(self) -> None:
        """It is gone until `restart`."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)  # it leads the group of its JVM
        wait_for(self._is_gone, 10)

    def _is_gone(self) -> bool:
        """Whether its port is free: the kill of a JVM takes some moments."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", self.port))
                return True
        return False
