"""Deletes old rows of topic tables, by whole files: `topics.retention` (contract 3).

A commit that only removes files disturbs no reader: a stream with `ignoreDeletes` goes on. One that rewrote a file
would show the rows that stay as new ones. So a row goes once every row of its file is old.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from pyspark.sql import functions as F

from commitlake.protocol.clock import as_datetime, now_ms
from commitlake.tables import Warehouse, topic_table

WINDOWS = 20
"""Files of a queue that compaction makes of a topic with a retention: so its rows stay a twentieth longer, or two."""
MOST_FILES = 1_000
"""Files that one commit removes; the next run goes on."""
_OLD = (
    "CAST(get_json_object(stats, '$.maxValues.visible_at') AS TIMESTAMP) < timestamp_millis({}L) AND "
    "coalesce(CAST(get_json_object(stats, '$.maxValues.batch_id') AS BIGINT), -1) <= {}"
)
"""SQL on Delta's entry of a file: all its rows are old, and of complete batches. A start completes only a later one."""
_PLACE = (
    "queue_id",
    "IF(batch_id IS NULL, source_queue, NULL) AS source_queue",
    "coalesce(batch_id, source_offset) AS last",
)


def delete_old_files(
    warehouse: Warehouse, topic: str, before_ms: int, pause: Callable[[], AbstractContextManager[object]]
) -> int:
    """Removes files of a topic whose rows all became visible before a time; returns how many, at most `MOST_FILES`.

    Rows in the table `maintenance` come first. By these an audit knows which rows may be gone, and a consumer which it
    has missed.

    Args:
        warehouse: the tables.
        topic: the topic, which has a table.
        before_ms: ms since epoch, UTC.
        pause: a context in which no batch runs: a table's property changes, and an append beside that would fail.
    """
    warehouse.allow_changes(topic, pause)
    condition = _OLD.format(before_ms, warehouse.newest_batch())
    note = partial(_note, warehouse, topic, before_ms)
    return warehouse.remove_files(topic_table(topic), condition, MOST_FILES, note)


def _note(warehouse: Warehouse, topic: str, before_ms: int, files: list[str]) -> None:
    """Notes the last rows that may be gone, by queue, in place of the notes about earlier ones."""
    in_files = F.col("_metadata.file_name").isin(files)
    gone = warehouse.read(topic_table(topic)).where(in_files).selectExpr(*_PLACE)
    noted = warehouse.read("maintenance").where(F.col("topic") == topic).select("queue_id", "source_queue", "last")
    last = gone.unionByName(noted).groupBy("queue_id", "source_queue").agg(F.max("last").alias("last"))
    now = now_ms()
    same = {"topic": topic, "visible_before": as_datetime(before_ms), "maintained_at": as_datetime(now)}
    warehouse.add([{**row.asDict(), **same} for row in last.collect()], "maintenance")
    warehouse.table("maintenance").delete(f"topic = '{topic}' AND maintained_at < timestamp_millis({now}L)")
