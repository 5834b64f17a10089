"""The coordination query: input rows through the state machine, to batches."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import Config
from commitlake.coordination.input_table import InputTable
from commitlake.coordination.state import join_and_time
from commitlake.statemachine.model import Rules


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
    events = join_and_time(inputs.stream(), Rules.of(config.transaction))
    writer = events.writeStream.queryName("coordination").foreachBatch(write).outputMode("append")
    return writer.option("checkpointLocation", checkpoint).start()
