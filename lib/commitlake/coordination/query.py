"""The coordination query: narrow rows of all message tables, through the state machine, to batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import Config
from commitlake.coordination import input_rows
from commitlake.coordination.state import join_and_time
from commitlake.statemachine.model import Rules
from commitlake.tables import Warehouse

log = logging.getLogger(__name__)

STREAMED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "half": input_rows.half_rows,
    "op": input_rows.op_rows,
    "delayed": input_rows.delayed_rows,
    "reentries": input_rows.reentry_rows,
    "epochs": input_rows.epoch_rows,
}
"""The tables that coordination reads, and what it makes of them."""

_ALL_NEW = {"maxFilesPerTrigger": str(1 << 30), "skipChangeCommits": "true"}
"""A batch takes all that has landed: ops must come before deadlines, and a limit could leave some behind."""


def rules(config: Config) -> Rules:
    """The timing rules of a configuration."""
    timing = config.transaction
    return Rules(
        timing.timeout_ms, timing.check_interval_ms, timing.check_max, timing.retention_ms, timing.op_park_time_ms
    )


def read(warehouse: Warehouse, opened: str, versions: Mapping[str, int]) -> DataFrame:
    """All input rows: those that a rebuild left at the path `opened`, then each table's commits from its version on."""
    first = warehouse.spark.readStream.format("delta").options(**_ALL_NEW).load(opened)
    streams = [make(warehouse.stream(name, versions[name], **_ALL_NEW)) for name, make in STREAMED.items()]
    return input_rows.union([input_rows.reentry_rows(first), *streams])


def start(
    config: Config, rows: DataFrame, write: Callable[[DataFrame, int], None], checkpoint: str, *, available_now: bool
) -> StreamingQuery:
    """Starts the query; `write` carries out a batch."""
    # With no-data batches a processing-time timeout makes a batch at every trigger, so "available now" would never end.
    rows.sparkSession.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(not available_now).lower())
    writer = join_and_time(rows, rules(config)).writeStream.queryName("coordination").foreachBatch(write)
    writer = writer.option("checkpointLocation", checkpoint).outputMode("append")
    interval = f"{config.trigger_interval_ms} milliseconds"
    return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=interval)).start()
