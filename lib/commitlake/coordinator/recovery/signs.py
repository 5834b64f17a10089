"""Files beside the tables by which coordinators and commands see each other: a sign of life, and a request to stop.

The sign decides nothing: epochs do (`fencing`). A live coordinator that is taken for dead ends as soon as it commits.
Or it ends when it finds another's sign in place of its own, and then a newer epoch. A standby compares each sign with
the one before, by its own clock; no other machine's clock counts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from commitlake.config import Config
from commitlake.config.locations import SIGN_OF_LIFE
from commitlake.coordinator.recovery.fencing import describe_self
from commitlake.spark.files import FileSystem

log = logging.getLogger(__name__)

_BEATS = 3
"""Signs within the time after which a standby takes over: two may be late."""
_LOOK_S = 0.5


class Heartbeat:
    """The file `_coordinator`: a coordinator's sign of life off local disks, for a standby that waits until it is gone.

    Args:
        spark: any session of the application.
        config: says where the file is, and how long a standby waits.
        epoch: number of this start; 0 for a standby, which only looks.
    """

    def __init__(self, spark: SparkSession, config: Config, epoch: int = 0) -> None:
        self._own = f"{describe_self(epoch)}, sign "
        self._files = FileSystem(spark, config.signs_at)
        self._after_s = config.standby_after_ms / 1_000
        self._seen: tuple[str | None, float] = None, 0.0
        """The sign that was read last, and when it was first read."""

    @contextmanager
    def beating(self, meet_other: Callable[[], None]) -> Iterator[None]:
        """Writes signs of life while the context lasts, then deletes the last one: after a clean stop nobody waits.

        `meet_other` is called when the last sign is not this coordinator's any more.
        """
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(ended, meet_other), name="commitlake-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with suppress(Py4JError, OSError):
                if not self._others():
                    self._files.delete(SIGN_OF_LIFE)

    def _others(self) -> str:
        """The sign in the file unless it is this coordinator's: another's, or "none"; else empty."""
        found = self._files.read(SIGN_OF_LIFE) or "none"
        return "" if found.startswith(self._own) else found

    def _beat(self, ended: threading.Event, meet_other: Callable[[], None]) -> None:
        others = ""
        for number in count():
            try:
                before, others = others, self._others() if number else ""
                if others:
                    meet_other()
                if others in (before, "none"):  # a sign of a live coordinator is never overwritten
                    self._files.write(SIGN_OF_LIFE, f"{self._own}{number}")
            except Exception as error:  # the file system may be away; the beats go on
                log.debug("no sign of life: %s", error)
            if ended.wait(self._after_s / _BEATS):
                return

    def await_silence(self) -> None:
        """Waits until no coordinator gives signs."""
        lives = self.lives()
        log.warning("standing by for %s", self._seen[0] or "nobody")
        while lives:
            time.sleep(_LOOK_S)
            lives = self.lives()

    def lives(self) -> bool:
        """Whether there is a sign, and it has changed lately, as far as this object has looked."""
        found, now = self._read(), time.monotonic()
        if found != self._seen[0]:
            self._seen = found, now
        return found is not None and now - self._seen[1] < self._after_s

    def _read(self) -> str | None:
        try:
            return self._files.read(SIGN_OF_LIFE)
        except (Py4JError, OSError) as error:
            log.debug("cannot read the sign of life: %s", error)
            return ""


LOOK_S = 2.0
"""Pause between two looks, each a request of the store."""
_FILE = "_stop"


class StopMark:
    """The file `_stop`: a request to stop, which reaches a coordinator where no signal does.

    YARN restarts a driver that a signal has ended. A coordinator that has found the request ends with exit code 0, so
    YARN does not. The request names the coordinator, so that it stops no other one.

    Args:
        spark: any session of the application.
        config: says where the file is.
    """

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self._files = FileSystem(spark, config.signs_at)

    def leave(self, named: str) -> None:
        """Asks a coordinator to stop, by host, pid and epoch."""
        self._files.write(_FILE, named)

    def clear(self, named: str) -> None:
        """Takes this request away."""
        if self._files.read(_FILE) == named:
            self._files.delete(_FILE)

    def names_me(self, first_epoch: int, epoch: int) -> bool:
        """Whether this process is asked, which began with one epoch and is at another; False if the store is away."""
        try:
            asked = self._files.read(_FILE)
        except (Py4JError, OSError) as error:
            log.debug("cannot look for a request to stop: %s", error)
            return False
        return asked is not None and asked in map(describe_self, range(first_epoch, epoch + 1))
