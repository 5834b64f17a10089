"""A request to stop that is left beside the tables: it reaches a coordinator where no signal does.

YARN and Kubernetes restart a driver that a signal has ended. A coordinator that has found the mark ends with exit
code 0, so they do not.
"""

from __future__ import annotations

import logging

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from commitlake.config import Config
from commitlake.config.locations import STOP_MARK
from commitlake.spark.files import FileSystem

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""Pause between two looks: one request of a store for each."""


class StopMark:
    """The file `_stop`. A start deletes it, so it stops the coordinator that runs, and no other.

    Args:
        spark: any session of the application.
        config: says where the file is.
    """

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self._files = FileSystem(spark, config.signs_at)

    def leave(self) -> None:
        """Asks the coordinator that runs to stop."""
        self._files.write(STOP_MARK, "")

    def clear(self) -> None:
        """Takes an older request away."""
        if self._files.exists(STOP_MARK):
            self._files.delete(STOP_MARK)

    def is_left(self) -> bool:
        """Whether a request is there; False while the file system is away."""
        try:
            return self._files.exists(STOP_MARK)
        except Py4JError as error:
            log.debug("cannot look for a request to stop: %s", error)
            return False
