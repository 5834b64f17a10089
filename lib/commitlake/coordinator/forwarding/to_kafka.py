"""The streaming query that sends what becomes visible in a topic to Kafka as well: at least once, in order by queue.

A record carries the message's position, by which a reader drops repeats. How far a query came stands in the table
`forwarded`, as a version of the topic table, and never in a checkpoint: a deleted checkpoint repeats nothing. After a
kill the messages of the last seconds come again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import Config
from commitlake.coordinator.forwarding.patience import WAIT, telling
from commitlake.coordinator.forwarding.records import records
from commitlake.errors import StreamError, root_reason
from commitlake.kafka import sink
from commitlake.spark.frames import of_rows
from commitlake.tables import TABLES, Warehouse, topic_table

log = logging.getLogger(__name__)

_SAVE_S = 10.0
_ALL = str((1 << 31) - 1)  # files


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
        self._saving = threading.Lock()
        self._waits = True
        self._query: StreamingQuery | None = None
        self.name = f"to-kafka-{topic}"
        self.failure: Exception | None = None
        """What ended the query; Spark reports it as the text of a stack trace only."""

    def start(self, checkpoint: str, *, available_now: bool) -> StreamingQuery:
        """Start the query where the last one came to.

        Raises:
            StreamError: it can't start.
        """
        self._waits = not available_now
        with self._named():
            stream = self._warehouse.stream(topic_table(self._topic), **self._begin())
            writer = stream.writeStream.queryName(self.name).foreachBatch(self._send)
            writer = writer.option("checkpointLocation", checkpoint)
            interval = f"{self._config.trigger_interval_ms} milliseconds"
            trigger = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=interval)
            self._query = trigger.start()
            return self._query

    def finish(self, query: StreamingQuery) -> None:
        """Wait until all that was there is sent, where the query was started for that.

        Raises:
            StreamError: it failed.
        """
        with self._named():
            query.awaitTermination()

    def save(self) -> None:
        """Save how far the query came, where that is more than is saved."""
        with self._saving:
            version = None if self._query is None else _next_version(self._query.lastProgress)
            if version is not None and version > self._saved:
                row = {"topic": self._topic, "target": self._target, "next_version": version}
                rows = of_rows(self._warehouse.spark, [row], TABLES["forwarded"].schema)
                self._warehouse.append(rows, "forwarded")
                self._saved = version
            self._saved_at = time.monotonic()

    def save_at_times(self) -> None:
        """Save it when that was not done for a while.

        A query that has sent all there is gets no batch, and a version that is not saved may leave the table's log.
        """
        if time.monotonic() - self._saved_at > _SAVE_S:
            self.save()

    def _send(self, messages: DataFrame, _: int) -> None:
        found = records(messages, self._topic, self._target, self._partitions)
        try:
            self.save_at_times()
            with telling(self._config, f"the query {self.name}", self._target):
                sink.write(self._config, found, WAIT if self._waits else {})
        except Exception as error:
            self.failure = error
            raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except PySparkException as error:
            raise StreamError(self.name, root_reason(self.failure or error)) from error

    def _begin(self) -> dict[str, str]:
        """Where to begin: at the version after the last one sent, or at the first row.

        Version by version rows come in the order of their batches. Where that is no longer possible, all rows of the
        table are one batch, which is sorted.
        """
        name = topic_table(self._topic)
        sent = self._warehouse.read("forwarded").where(f"topic = '{self._topic}' AND target = '{self._target}'")
        last = sent.agg({"next_version": "max"}).collect()[0][0]
        # Delta refuses a version that is not there yet. Of one that was sent, all rows come again.
        first = 0 if last is None else min(last, self._warehouse.version(name))
        kept = self._warehouse.keeps_versions(name, first)
        if kept or (kept is None and last is not None):
            self._saved = -1 if last is None else last
            return {"startingVersion": str(first)}
        if last is not None:
            log.warning(
                "all of the topic %s goes to the Kafka topic %s again: its table no longer has all files since version "
                "%d; readers drop repeats by MESSAGE_POSITION",
                *(self._topic, self._target, first),
            )
        return {"maxFilesPerTrigger": _ALL}


def _next_version(progress: Any) -> int | None:
    """The first version of which a row may not have been sent; None while rows of the first snapshot are."""
    if progress is None:
        return None
    end = json.loads(progress.json)["sources"][0]["endOffset"]
    end = json.loads(end) if isinstance(end, str) else end
    return None if end is None or end["isStartingVersion"] else int(end["reservoirVersion"])
