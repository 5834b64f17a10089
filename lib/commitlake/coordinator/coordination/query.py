"""The coordination query: it puts input rows through the state machine, and hands out batches of events."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import Config
from commitlake.config.rules import rules_of
from commitlake.coordinator.coordination.input_table import InputTable
from commitlake.coordinator.coordination.state import join_and_time


def start(
    config: Config, inputs: InputTable, write: Callable[[DataFrame, int], None], checkpoint: str
) -> StreamingQuery:
    """Starts the query, which has no clock: it runs a batch as soon as `inputs` has rows, and none without rows.

    Args:
        config: the timing rules.
        inputs: the table that it reads.
        write: carries out a batch.
        checkpoint: a directory for this run.
    """
    events = join_and_time(inputs.stream(), rules_of(config.transaction))
    writer = events.writeStream.queryName("coordination").foreachBatch(write).outputMode("append")
    return writer.option("checkpointLocation", checkpoint).start()
