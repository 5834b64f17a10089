"""Deletes old rows of topic tables, by whole files: `topics.retention` (contract 3).

A commit that only removes files disturbs no reader: a stream with `ignoreDeletes` goes on. One that rewrote a file
would show the rows that stay as new ones. So a row goes once every row of its file is old.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.protocol.clock import as_datetime, now_ms
from commitlake.tables import Warehouse, topic_table
from commitlake.tables.creation import properties_of

WINDOWS = 20
"""Files of a queue that compaction makes of a topic with a retention: so its rows stay a twentieth longer, or two."""
_APPEND_ONLY = "delta.appendOnly"
Times = npt.NDArray[np.int64]
_PLACE = (
    "queue_id",
    "IF(batch_id IS NULL, source_queue, NULL) AS source_queue",
    "coalesce(batch_id, source_offset) AS at",
)


def whole_files_before(first: Times, last: Times, cut: int) -> int:
    """The latest time, at most `cut`, before which only whole files lie.

    Args:
        first: the lowest time of each file.
        last: the highest one.
        cut: a time; all are ms since epoch, UTC.
    """
    while (split := (first < cut) & (last >= cut)).any():
        cut = int(first[split].min())
    return cut


def complete_until(warehouse: Warehouse) -> int:
    """When the newest complete landing and batch ended, ms since epoch, UTC.

    A start may still look for the rows of what came later.
    """
    ends = [
        warehouse.read(name).agg(F.max(F.unix_millis("completed_at"))).collect()[0][0]
        for name in ("positions", "batches")
    ]
    return min((int(end) for end in ends if end is not None), default=0)


def delete_old_rows(
    warehouse: Warehouse, topic: str, before_ms: int, pause: Callable[[], AbstractContextManager[object]]
) -> int:
    """Deletes the rows of a topic that became visible before a time; returns how many.

    Rows in the table `maintenance` come first. By these an audit knows which rows may be gone, and a consumer which it
    has missed.

    Args:
        warehouse: the tables.
        topic: the topic, which has a table.
        before_ms: ms since epoch, UTC.
        pause: a context in which no batch runs: a table's property changes, and an append beside that would fail.
    """
    name = topic_table(topic)
    rows = warehouse.read(name)
    cut = _cut(rows, before_ms)
    is_old = f"visible_at < timestamp_millis({cut})"
    gone = rows.where(is_old).selectExpr(*_PLACE).groupBy("queue_id", "source_queue")
    found = [row.asDict() for row in gone.agg(F.max("at").alias("last"), F.count("*").alias("count")).collect()]
    if not found:
        return 0
    count = sum(int(row.pop("count")) for row in found)
    same = {"topic": topic, "visible_before": as_datetime(cut), "maintained_at": as_datetime(now_ms())}
    warehouse.add([{**row, **same} for row in found], "maintenance")
    table: Any = warehouse.table(name)
    if properties_of(table).get(_APPEND_ONLY) == "true":
        with pause():
            warehouse.set_property(name, _APPEND_ONLY, "false")
    warehouse.guard.check()
    table.delete(is_old)
    return count


def _cut(rows: DataFrame, before_ms: int) -> int:
    ends = F.min("visible_at").alias("first"), F.max("visible_at").alias("last")
    each = rows.groupBy("_metadata.file_path").agg(*ends)
    found = each.selectExpr("unix_millis(first) AS first", "unix_millis(last) AS last").toArrow()
    return whole_files_before(found["first"].to_numpy(), found["last"].to_numpy(), before_ms)
