"""The coordination query: input rows through the state machine, to batches."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import Config
from commitlake.coordination.input_table import InputTable
from commitlake.coordination.state import join_and_time
from commitlake.statemachine.model import Rules


def rules(config: Config) -> Rules:
    """The timing rules of a configuration."""
    timing = config.transaction
    return Rules(
        timeout_ms=timing.timeout_ms,
        check_interval_ms=timing.check_interval_ms,
        check_repeat_ms=timing.check_repeat_ms,
        check_max=timing.check_max,
        retention_ms=timing.retention_ms,
        op_park_ms=timing.op_park_time_ms,
    )


def start(
    config: Config, inputs: InputTable, write: Callable[[DataFrame, int], None], checkpoint: str
) -> StreamingQuery:
    """Starts the query. It has no clock: it runs a batch as soon as `inputs` has rows, and none without.

    Args:
        config: the timing rules.
        inputs: what it reads.
        write: carries out a batch.
        checkpoint: a directory for this run.
    """
    events = join_and_time(inputs.stream(), rules(config))
    writer = events.writeStream.queryName("coordination").foreachBatch(write).outputMode("append")
    return writer.option("checkpointLocation", checkpoint).start()
