"""A coordinator's sign of life off local disks, for a standby that waits until it is gone.

The sign decides nothing: epochs do (`fencing`). A coordinator that is taken for dead and is not ends as soon as it
commits. A standby compares what it reads with what it read before, by its own clock; no other machine's clock counts.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from commitlake.config import Config
from commitlake.config.locations import SIGN_OF_LIFE
from commitlake.spark.files import FileSystem

log = logging.getLogger(__name__)

_BEATS = 3
"""Signs within the time after which a standby takes over: two may be late."""
_LOOK_S = 0.5
_SELF = f"host {socket.gethostname()}, pid {os.getpid()}"


class Heartbeat:
    """The file `_coordinator` in the warehouse; of a warehouse in a catalog, in this warehouse's checkpoints.

    Args:
        spark: any session of the application.
        config: says where, and how long a standby waits.
    """

    def __init__(self, spark: SparkSession, config: Config) -> None:
        is_catalog = config.warehouse.startswith("schema:")
        self._files = FileSystem(spark, config.scratch if is_catalog else config.warehouse)
        self._after_s = config.standby_after_ms / 1_000

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Gives signs of life, and takes the last one away: after a clean stop nobody waits."""
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(ended,), name="commitlake-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with suppress(Py4JError):
                if (self._files.read(SIGN_OF_LIFE) or "").startswith(_SELF):
                    self._files.delete(SIGN_OF_LIFE)

    def _beat(self, ended: threading.Event) -> None:
        for number in count():
            try:
                self._files.write(SIGN_OF_LIFE, f"{_SELF}, sign {number}")
            except Exception as error:  # the file system may be away; the beats go on all the same
                log.debug("no sign of life: %s", error)
            if ended.wait(self._after_s / _BEATS):
                return

    def await_silence(self) -> None:
        """Waits until no coordinator gives signs."""
        last, since = self._read(), time.monotonic()
        log.warning("standing by for %s", last or "nobody")
        while last is not None and time.monotonic() - since < self._after_s:
            time.sleep(_LOOK_S)
            found = self._read()
            if found != last:
                last, since = found, time.monotonic()

    def _read(self) -> str | None:
        try:
            return self._files.read(SIGN_OF_LIFE)
        except Py4JError as error:
            log.debug("cannot read the sign of life: %s", error)
            return ""
