"""Cleanup of a table's Delta log, which Delta itself does only at midnight, and in the middle of a commit."""

from __future__ import annotations

import logging
from typing import Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JError

log = logging.getLogger(__name__)


def forget(table: DeltaTable, keep_ms: int) -> None:
    """Deletes commits older than `keep_ms` from the log, as far as a checkpoint covers them.

    Each poll of a stream, and each append of Delta's writer, lists the whole log. With a commit every 2 s that takes
    1.5 s for the 43 000 of a day, and 0.1 s for those of an hour. Another vendor's Delta may lack this method; there
    the log stays as it is.
    """
    context: Any = table.toDF().sparkSession.sparkContext
    jvm = context._jvm
    try:
        none, minute = _object(jvm.scala, "None"), _object(jvm.org.apache.spark.sql.delta, "TruncationGranularity")
        found = table._jdt.deltaLog()
        found.cleanUpExpiredLogs(found.update(False, none, none), none, _some_long(context, keep_ms), minute.MINUTE())
    except (Py4JError, TypeError) as error:
        log.debug("the log is left to Delta: %s", error)


def _object(package: Any, name: str) -> Any:
    """A singleton of Scala."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _some_long(context: Any, number: int) -> Any:
    """An `Option[Long]`: py4j would make an `Integer` of a small number."""
    longs = context._gateway.new_array(context._jvm.long, 1)
    longs[0] = number
    return context._jvm.scala.Predef.wrapLongArray(longs).headOption()
