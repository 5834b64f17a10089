"""The streaming query that sends what becomes visible in a topic to Kafka as well: at least once, in order by queue.

A record carries the message's position, by which a reader drops repeats. How far a query came stands in the table
`forwarded`, as a version of the topic table, and never in a checkpoint: a deleted checkpoint repeats nothing. After a
kill the messages of the last seconds come again.
"""

from __future__ import annotations

import json
import time
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import Config
from commitlake.forwarding.records import records
from commitlake.kafka.clients import spark_options, spark_sink_limits
from commitlake.spark.frames import of_rows
from commitlake.tables import TABLES, Warehouse, topic_table

_SAVE_S = 10.0


class ToKafka:
    """Forwards one topic.

    Args:
        warehouse: the tables.
        config: says where Kafka is, and how often to look.
        topic: the topic, whose table exists.
        target: the Kafka topic.
        partitions: how many the Kafka topic has.
    """

    def __init__(self, warehouse: Warehouse, config: Config, topic: str, target: str, partitions: int) -> None:
        self._warehouse, self._config = warehouse, config
        self._topic, self._target, self._partitions = topic, target, partitions
        self._saved = -1
        self._saved_at = time.monotonic()
        self._query: StreamingQuery | None = None

    def start(self, checkpoint: str, *, available_now: bool) -> StreamingQuery:
        """Start the query where the last one came to."""
        stream = self._warehouse.stream(topic_table(self._topic), **self._begin())
        writer = stream.writeStream.queryName(f"to-kafka-{self._topic}").foreachBatch(self._send)
        writer = writer.option("checkpointLocation", checkpoint)
        interval = f"{self._config.trigger_interval_ms} milliseconds"
        trigger = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=interval)
        self._query = trigger.start()
        return self._query

    def save(self) -> None:
        """Save how far the query came, where that is more than is saved."""
        version = None if self._query is None else _next_version(self._query.lastProgress)
        if version is not None and version > self._saved:
            row = {"topic": self._topic, "target": self._target, "next_version": version}
            rows = of_rows(self._warehouse.spark, [row], TABLES["forwarded"].schema)
            self._warehouse.append(rows, "forwarded")
            self._saved = version
        self._saved_at = time.monotonic()

    def _send(self, messages: DataFrame, _: int) -> None:
        if time.monotonic() - self._saved_at > _SAVE_S:
            self.save()
        options = spark_options(self._config.kafka) | spark_sink_limits()
        found = records(messages, self._topic, self._target, self._partitions)
        found.write.format("kafka").options(**options).save()

    def _begin(self) -> dict[str, str]:
        """Where to begin: at the version after the last one sent, or at the first row."""
        name = topic_table(self._topic)
        sent = self._warehouse.read("forwarded").where(f"topic = '{self._topic}' AND target = '{self._target}'")
        last = sent.agg({"next_version": "max"}).collect()[0][0]
        if last is not None:
            self._saved = last
            newest = self._warehouse.version(name)
            # Delta refuses a version that is not there yet. Of one that was sent, all rows come again.
            return {"startingVersion": str(min(last, newest))}
        # Version by version rows come in the order of their batches; a snapshot gives them by file.
        return {"startingVersion": "0"} if self._warehouse.keeps_first_version(name) else {}


def _next_version(progress: Any) -> int | None:
    """The first version of which a row may not have been sent; None while rows of the first snapshot are."""
    if progress is None:
        return None
    end = json.loads(progress.json)["sources"][0]["endOffset"]
    end = json.loads(end) if isinstance(end, str) else end
    return None if end is None or end["isStartingVersion"] else int(end["reservoirVersion"])
