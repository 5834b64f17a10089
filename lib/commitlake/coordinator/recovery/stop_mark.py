"""A request to stop that is left beside the tables: it reaches a coordinator where no signal does.

YARN restarts a driver that a signal has ended. A coordinator that has found the request ends with exit code 0, so YARN
does not. The request names the coordinator, so that it stops no other one.
"""

from __future__ import annotations

import logging

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from commitlake.config import Config
from commitlake.coordinator.recovery.fencing import describe_self
from commitlake.spark.files import FileSystem

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""Pause between two looks, each a request of the store."""
_FILE = "_stop"


class StopMark:
    """The file `_stop`.

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
