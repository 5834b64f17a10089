"""Streaming queries that send the visible messages of topics to Kafka as well: at least once, in order by queue.

A record carries the message's position, by which a reader drops repeats. The query's position is a version of the topic
table, kept in the table `forwarded` and never in a checkpoint: a deleted checkpoint repeats nothing. After a kill the
messages of the last seconds come again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import Config
from commitlake.coordinator.coordination.check_requests import own_headers, present, property_headers
from commitlake.errors import ConfigError, KafkaError, StreamError, root_reason
from commitlake.kafka import sink, topics
from commitlake.kafka.topics import is_there
from commitlake.protocol import headers
from commitlake.protocol.topic_names import path_name
from commitlake.spark.callbacks import held_weakly
from commitlake.tables import Warehouse, topic_table

log = logging.getLogger(__name__)

_SAVE_S = 10.0
_FIRST_PAUSE_S = 10.0
_LONGEST_PAUSE_S = 600.0
_ALL = str((1 << 31) - 1)  # files
_LONGEST_MS = str((1 << 31) - 1)  # 24 days
_WAIT = {"kafka.delivery.timeout.ms": _LONGEST_MS, "kafka.max.block.ms": _LONGEST_MS}
"""Kafka's client retries in order. After its default of two minutes it gives a record up, and an error ends the query.
Later records of the queue could then stand before that one."""
_OUTAGE_FIRST_S = 10.0
_OUTAGE_EACH_S = 60.0
_TEXTS = {
    headers.REAL_TOPIC: "topic",
    headers.REAL_QID: "queue_id",
    headers.UNIQ_KEY: "message_id",
    headers.TRANSACTION_ID: "transaction_id",
    headers.PGROUP: "producer_group",
    headers.TAGS: "tags",
    headers.KEYS: "keys",
    headers.POSITION: "position",
    headers.BATCH_ID: "batch_id",
}
_ORDER = ("queue_id", "batch_id", "source_queue", "source_offset", "source_index")


class ToKafka:
    """Forwards one topic.

    Args:
        warehouse: the tables.
        config: says where Kafka is, and how often to look.
        topic: the topic, whose table exists.
        target: the Kafka topic.
        partitions: how many the Kafka topic has.
        scratch: makes the checkpoint of a query.
        waits: go on for ever, also while Kafka is away; else send all messages that are there, then end.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        config: Config,
        topic: str,
        target: str,
        partitions: int,
        scratch: Callable[[str], str],
        *,
        waits: bool,
    ) -> None:
        self._warehouse, self._config = warehouse, config
        self.topic, self._target, self._partitions = topic, target, partitions
        self._scratch, self._waits = scratch, waits
        self._saved = -1
        self._saved_at = time.monotonic()
        self._saving = threading.Lock()
        self._query: StreamingQuery | None = None
        self._started_at, self._again_at, self._pause_s = 0.0, 0.0, _FIRST_PAUSE_S
        self.name = f"to-kafka-{topic}"
        self._failure: Exception | None = None
        """The error that ended the query; Spark reports only the text of its stack trace."""

    @property
    def has_failed(self) -> bool:
        """Whether the query has failed and waits for its next start."""
        return self._query is None and self._again_at > 0

    def tick(self) -> None:
        """Save the query's position from time to time; start the query when it does not run."""
        try:
            if self._query is None:
                if time.monotonic() >= self._again_at:
                    self.start()
            elif not self._query.isActive:
                self.finish()
                self._pause(StreamError(self.name, "it was stopped"))
            else:
                self._quietly(self.save_at_times)
        except Exception as error:  # one topic's failure stops its own forwarding only
            self._pause(error)

    def _pause(self, error: Exception) -> None:
        """Pauses this topic while others go on; after a long run the pauses begin again with the shortest.

        A query that ran for long had no trouble with the failure before it.
        """
        now = time.monotonic()
        self._quietly(self.save)
        self._query, is_new = None, now - self._started_at > _LONGEST_PAUSE_S
        self._pause_s = _FIRST_PAUSE_S if is_new else min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._again_at = now + self._pause_s
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        reason = root_reason(self._failure or cause)
        log.error(
            "%s has ended; all else goes on, and it is tried again in %.0f s: %s", self.name, self._pause_s, reason
        )

    def start(self) -> None:
        """Start the query at the position of the last one.

        Raises:
            StreamError: the query can't start.
        """
        self._failure, self._started_at = None, time.monotonic()
        checkpoint = self._scratch(f"to-kafka/{path_name(self.topic)}")
        with self._named():
            stream = self._warehouse.stream(topic_table(self.topic), **self._begin())
            writer = stream.writeStream.queryName(self.name).foreachBatch(held_weakly(self._send))
            writer = writer.option("checkpointLocation", checkpoint)
            interval = f"{self._config.trigger_interval_ms} milliseconds"
            trigger = writer.trigger(processingTime=interval) if self._waits else writer.trigger(availableNow=True)
            self._query = trigger.start()

    def finish(self) -> None:
        """Wait until the query has ended. Without `waits` it ends when all messages that were there are sent.

        Raises:
            StreamError: the query failed.
        """
        with self._named():
            if self._query is not None:
                self._query.awaitTermination()

    def stop(self) -> None:
        """End the query, and save its position."""
        if self._query is not None:
            self._quietly(self._query.stop)
            self._quietly(self.save)

    def _quietly(self, work: Callable[[], None]) -> None:
        """Logs a failure only: when a save fails, the messages of the last seconds go to Kafka again."""
        try:
            work()
        except Exception as error:  # the JVM may be gone
            log.debug("%s: %s", self.name, error)

    def save(self) -> None:
        """Save the query's position, if it is beyond the saved one."""
        with self._saving:
            version = None if self._query is None else _next_version(self._query.lastProgress)
            if version is not None and version > self._saved:
                row = {"topic": self.topic, "target": self._target, "next_version": version}
                self._warehouse.add([row], "forwarded")
                self._saved = version
            self._saved_at = time.monotonic()

    def save_at_times(self) -> None:
        """Save the query's position when the last save is 10 s ago.

        Ticks do so too: a query that has sent everything gets no batch, and an old version may leave the table's log.
        """
        if time.monotonic() - self._saved_at > _SAVE_S:
            self.save()

    def _send(self, messages: DataFrame, _: int) -> None:
        found = _records(messages, self.topic, self._target, self._partitions)
        try:
            self.save_at_times()
            with _warning_of_outage(self._config, f"the query {self.name}", self._target):
                sink.write(self._config, found, _WAIT if self._waits else {})
        except Exception as error:
            self._failure = error
            raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except PySparkException as error:
            raise StreamError(self.name, root_reason(self._failure or error)) from error

    def _begin(self) -> dict[str, str]:
        """Where to begin: at the version after the last one sent, or at the first row.

        Version by version, rows come in the order of their batches. When that is no longer possible, all rows of the
        table are one batch, which is sorted.
        """
        name = topic_table(self.topic)
        sent = self._warehouse.read("forwarded").where(f"topic = '{self.topic}' AND target = '{self._target}'")
        last = sent.agg({"next_version": "max"}).collect()[0][0]
        # Delta refuses a version that is not there yet. Then the newest one, which was sent, comes again.
        first = 0 if last is None else min(last, self._warehouse.version(name))
        kept = self._warehouse.keeps_versions(name, first)
        if kept or (kept is None and last is not None):
            self._saved = -1 if last is None else last
            return {"startingVersion": str(first)}
        if last is not None:
            log.warning(
                "all of the topic %s goes to the Kafka topic %s again: its table no longer has all files since version "
                "%d; readers drop repeats by MESSAGE_POSITION",
                *(self.topic, self._target, first),
            )
        return {"maxFilesPerTrigger": _ALL}


def _next_version(progress: Any) -> int | None:
    """The first version that may have unsent rows; None while rows of the first snapshot are being sent."""
    if progress is None:
        return None
    end = json.loads(progress.json)["sources"][0]["endOffset"]
    end = json.loads(end) if isinstance(end, str) else end
    return None if end is None or end["isStartingVersion"] else int(end["reservoirVersion"])


def _records(messages: DataFrame, topic: str, target: str, partitions: int) -> DataFrame:
    """Kafka records of rows of a topic table, in the topic's order within each queue.

    A queue is always in the same of the target's `partitions`.
    """
    own = own_headers(_TEXTS)
    place = F.concat_ws("-", "source", "source_queue", "source_offset", "source_index")
    in_order = messages.repartition(partitions, "queue_id").sortWithinPartitions(*_ORDER)
    return in_order.withColumns({"topic": F.lit(topic), "position": place}).select(
        F.lit(target).alias("topic"),
        F.pmod("queue_id", F.lit(partitions)).alias("partition"),
        F.col("sharding_key").alias("key"),
        F.col("body").alias("value"),
        F.concat(property_headers(own), present(own)).alias("headers"),
        F.concat(F.lit(f"the message {topic} at "), "position").alias("name"),
    )


@contextmanager
def _warning_of_outage(config: Config, what: str, target: str) -> Iterator[None]:
    """Warns once a minute while `what` takes long because Kafka is away: records wait in the client, in order."""
    done = threading.Event()
    threading.Thread(target=_tell, args=(config, what, target, done), name=f"commitlake-{target}", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _tell(config: Config, what: str, target: str, done: threading.Event) -> None:
    begun, wait_s = time.monotonic(), _OUTAGE_FIRST_S
    while not done.wait(wait_s):
        wait_s, reason = _OUTAGE_EACH_S, _trouble(config, target)
        if reason and not done.is_set():
            log.warning("%s waits for %.0f s, and goes on in order: %s", what, time.monotonic() - begun, reason)


def _trouble(config: Config, target: str) -> str:
    try:
        return "" if is_there(config, target) else f"the Kafka topic {target} is not there; create it"
    except KafkaError as error:
        return str(error)


class Forwarders:
    """Starts the queries that forward topics, and restarts each that ends; a failure of one ends no other."""

    def __init__(self) -> None:
        self._all: list[ToKafka] = []
        self._lock = threading.Lock()
        self._stopped = False

    def start(
        self,
        warehouse: Warehouse,
        config: Config,
        scratch: Callable[[str], str],
        *,
        available_now: bool,
    ) -> None:
        """Start a query for each topic of `topics.to_kafka`; with `available_now` each runs to its end before the next.

        Raises:
            ConfigError: a topic can have no table.
            KafkaError: a Kafka topic is missing and can't be created.
            StreamError: with `available_now`: a query failed. All other queries have run to their end.
        """
        wanted = config.topics.to_kafka
        if not wanted:
            return
        partitions = topics.ensure_targets(config)
        _refuse_unfit(warehouse, wanted)
        warehouse.add_topics(wanted)
        for topic in wanted:  # a column that comes later would end the query that reads the table
            warehouse.ensure_topic(topic)
        self._all = [
            ToKafka(warehouse, config, topic, target, partitions[target], scratch, waits=not available_now)
            for topic, target in wanted.items()
        ]
        if available_now:
            self._finish()
        else:
            self.tick()

    def _finish(self) -> None:
        failed: list[StreamError] = []
        for each in self._all:
            try:
                with self._lock:
                    if self._stopped:
                        return
                    each.start()
                each.finish()
            except StreamError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def tick(self) -> None:
        """Start the queries that do not run, and save the positions of the others."""
        for each in self._all:
            with self._lock:
                if not self._stopped:
                    each.tick()

    def failed(self) -> dict[str, bool]:
        """Whether the forwarding of each topic has failed and waits for its next start."""
        return {each.topic: each.has_failed for each in self._all}

    def stop(self) -> None:
        """End all queries, and save their positions."""
        with self._lock:
            self._stopped = True
        for each in self._all:
            each.stop()


def _refuse_unfit(warehouse: Warehouse, topics: Iterable[str]) -> None:
    known = warehouse.listed_topics()
    unfit = sorted(topic for topic in set(topics) - known if not warehouse.may_hold(topic, known))
    if unfit:
        msg = f"topics.to_kafka: {unfit} can have no tables of their own in {warehouse.root}; take others"
        raise ConfigError(msg)
