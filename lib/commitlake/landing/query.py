"""Landing: every record of the four Kafka topics comes to stand in one Delta table, exactly once."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from commitlake import clock
from commitlake.config import Config
from commitlake.errors import IdentityError
from commitlake.kafka.clients import spark_options, spark_source_limits
from commitlake.kafka.topics import beginning_offsets
from commitlake.landing import judge, kafka_identity, landed_rows, positions
from commitlake.landing.positions import Intent, Offsets, Spans
from commitlake.spark import checkpoints
from commitlake.tables import Warehouse

log = logging.getLogger(__name__)

Write = Callable[[DataFrame, int], None]
"""What a streaming query calls with a batch and its number."""

MAX_OFFSETS_PER_TRIGGER = 400_000
"""Records in one batch at most: some 4 s of work on 2 cores, so that a backlog lands in steps."""
_WRITERS = 4
_EPOCH_BITS = 32
"""Ids that begin anew have the epoch above; at 1 000 landings a second those of the next one are 49 days away."""


class Landing:
    """The streaming query from Kafka to the tables.

    Args:
        spark: The session.
        config: The configuration, with the address of the broker.
        warehouse: The tables, created before.
        on_topics: Called after a batch that brought new topics, with all topics.
        guard: Wraps what carries out a batch, for example to let none begin while all stops.
        epoch: Number of the coordinator's start.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        warehouse: Warehouse,
        on_topics: Callable[[set[str]], None] | None = None,
        guard: Callable[[Write], Write] = lambda write: write,
        epoch: int = 0,
    ) -> None:
        self._spark = spark
        self._config = config
        self._warehouse = warehouse
        self._rules = judge.LandingRules.of(config)
        self._judgement = judge.judgement(self._rules)
        self._on_topics = on_topics or (lambda _: None)
        self._guard = guard
        self._epoch = epoch
        self._query: StreamingQuery | None = None
        self._recovered: Offsets | None = None
        self._intent: Intent | None = None
        self._known: kafka_identity.Known | None = None
        self._is_checked = False
        self._topics: set[str] = set()
        self._landing_id = 0
        self._until: Offsets = {}

    def check_kafka(self) -> None:
        """Compare Kafka with what the warehouse was filled from; nothing is written to Kafka.

        Raises:
            IdentityError: It is another one, and that is not accepted.
            KafkaError: Kafka is out of reach.
        """
        self._intent = positions.renewed(self._warehouse)
        if self._intent is None:
            self._until = positions.offsets_in_tables(self._warehouse, self._config.kafka.topic)
        else:
            self._until = self._intent.until
        self._known = kafka_identity.known(self._warehouse)
        if self._known is not None:
            kafka_identity.compare(self._config, self._known, self._until)
        self._is_checked = True

    def recover(self) -> Offsets:
        """Finish the newest landing if it was cut short, and tell where to go on.

        Returns:
            The next offset of each partition of each topic; where nothing has landed yet, the first that Kafka held
            when the warehouse was new.

        Raises:
            KafkaError: Kafka is out of reach.
        """
        self._spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
        self._topics = self._warehouse.topics()
        for topic in self._topics:
            self._warehouse.ensure_topic(topic)  # a kill may have left a directory without a table
        if not self._is_checked:
            self.check_kafka()
        first = beginning_offsets(self._config, judge.SOURCES)
        begins = kafka_identity.remember(self._warehouse, self._config, self._known, first)
        if self._intent is not None:
            self._landing_id = self._intent.landing_id
            self._replay(self._intent, first)
        elif self._until:  # the markers are gone: an id that was used before would make a landing look complete
            self._landing_id = self._epoch << _EPOCH_BITS
        # Kept in the next intent: what a partition loses before its first record lands is lost too.
        self._until = {
            topic: {number: self._resume_at(topic, number, begins, oldest) for number, oldest in partitions.items()}
            for topic, partitions in first.items()
        }
        self._recovered = self._until
        return self._recovered

    def start(self, available_now: bool = False) -> StreamingQuery:
        """Recover, unless that is done, and start the query.

        Its checkpoint is a new one at every start: where to go on stands in the tables.

        Args:
            available_now: Land what is there and end, instead of a batch every `trigger_interval`.
        """
        offsets, self._recovered = self._recovered or self.recover(), None
        raw = (
            self._kafka(self._spark.readStream)
            .option("subscribe", ",".join(offsets))
            .option("startingOffsets", _as_json(offsets))
            .option("maxOffsetsPerTrigger", MAX_OFFSETS_PER_TRIGGER)
            .load()
        )
        writer = raw.writeStream.queryName("landing").foreachBatch(self._guard(lambda batch, _: self._land(batch)))
        writer = writer.option("checkpointLocation", checkpoints.fresh(self._config, "landing", self._epoch))
        interval = f"{self._config.trigger_interval_ms} milliseconds"
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=interval)
        self._query = writer.start()
        return self._query

    def passed(self, offsets: Offsets) -> bool:
        """Whether all records before these offsets have landed."""
        progress = self._query.lastProgress if self._query else None
        # Kafka's own transaction markers take offsets too, but are no records: only the query's progress counts them.
        ends = json.loads(progress.json)["sources"][0]["endOffset"] or {} if progress else {}
        return all(
            offset <= max(self._until.get(topic, {}).get(number, 0), ends.get(topic, {}).get(str(number), 0))
            for topic, partitions in offsets.items()
            for number, offset in partitions.items()
        )

    def _land(self, raw: DataFrame, resumed: Intent | None = None) -> None:
        """Land one batch.

        1. Judge every record, keep the result, and count it by partition and target in one pass.
        2. Admit new topics, as long as there is room, and create their tables.
        3. Commit to `op`, first and always: ops apply before deadlines, and the marker of that commit is the intent
           (offsets, and the tables to be written) from which a start finishes a landing that was cut short.
        4. Write the other tables.

        A `resumed` landing keeps the offsets of the one that was cut short.
        """
        judged = judge.judge(judge.normalise(raw, self._rules.prefix), self._judgement).persist()
        try:
            counts = _count(judged)
            if not counts and resumed is None:
                return
            new = self._admit(counts)
            is_open = len(self._topics) < self._rules.topics_max
            is_open &= all(row["topic"] is None or row["topic"] in self._topics for row in counts)
            intent = self._next_intent(counts, resumed)
            self._write(judged if is_open else judge.close_topics(judged, self._topics), intent)
        finally:
            judged.unpersist()
        self._landing_id, self._until = intent.landing_id, intent.until
        if new:
            self._on_topics(set(self._topics))

    def _admit(self, counts: Sequence[Row]) -> list[str]:
        """Create the tables of new topics, the first to come first, until there are `topics.max`.

        A catalog may have no room for a table of that name; the topic is not admitted then.
        """
        first_stored: dict[str, datetime] = {}
        for row in counts:
            if row["topic"] is not None and row["topic"] not in self._topics:
                first_stored[row["topic"]] = min(
                    row["first_stored"], first_stored.get(row["topic"], row["first_stored"])
                )
        room = max(0, self._rules.topics_max - len(self._topics))
        named = (topic for topic in first_stored if self._warehouse.may_hold(topic))
        new = sorted(named, key=lambda topic: (first_stored[topic], topic))[:room]
        for topic in new:
            self._warehouse.ensure_topic(topic)
        self._topics.update(new)
        return new

    def _next_intent(self, counts: Sequence[Row], resumed: Intent | None) -> Intent:
        tables = {positions.OP, *(self._table(row) for row in counts)}
        if resumed is not None:
            return resumed.again(self._landing_id + 1, tables)
        since, until = copy.deepcopy(self._until), copy.deepcopy(self._until)
        for row in counts:
            topic, number = self._config.kafka.topic(row["source"]), row["partition"]
            begun = since.setdefault(topic, {})
            begun[number] = min(begun.get(number, row["first"]), row["first"])
            ended = until.setdefault(topic, {})
            ended[number] = max(ended.get(number, 0), row["last"] + 1)
        return Intent(self._landing_id + 1, since, until, tuple(sorted(tables)))

    def _table(self, row: Row) -> str:
        """Name of the table that the counted records go to, as it stands in an intent."""
        if row["topic"] is not None and row["topic"] not in self._topics:
            return positions.REJECTED
        return positions.topic_table(row["topic"]) if row["target"] == judge.TOPIC else str(row["target"])

    def _write(self, judged: DataFrame, intent: Intent) -> None:
        now_ms = clock.now_ms()
        self._warehouse.append(landed_rows.op_rows(judged), "op", intent.plan())
        marker = intent.marker()
        rows: dict[str, Callable[[], DataFrame]] = {
            "half": lambda: landed_rows.half_rows(judged),
            "delayed": lambda: landed_rows.delayed_rows(judged),
            "rejected": lambda: landed_rows.rejected_rows(judged, now_ms),
        }

        def write(table: str) -> None:
            topic = positions.topic_of(table)
            if topic is None:
                self._warehouse.append(rows[table](), table, marker)
            else:
                self._warehouse.append_topic(landed_rows.topic_rows(judged, topic, now_ms), topic, marker)

        others = [table for table in intent.tables if table != positions.OP]
        inherit = inheritable_thread_target(self._spark)  # the query's job group, so that a stop ends these jobs too
        with ThreadPoolExecutor(_WRITERS) as pool:
            for written in [pool.submit(inherit(write), table) for table in others]:
                written.result()

    def _replay(self, intent: Intent, oldest: Offsets) -> None:
        """Land what the newest landing left out when it was cut short."""
        if positions.is_complete(self._warehouse, intent):
            return
        log.warning("landing %d was cut short; looking for records that it left out", intent.landing_id)
        self._warehouse.guard.claim(filter(None, map(positions.topic_of, {*intent.tables, *intent.earlier})))
        spans = positions.spans(intent, oldest, self._config)
        if spans:
            missing = positions.without_landed(self._warehouse, self._read(spans), intent, spans, self._rules.prefix)
            self._land(missing, resumed=intent)

    def _read(self, spans: Spans) -> DataFrame:
        """Read ranges of the Kafka topics as a batch."""
        begins = {topic: {number: span[0] for number, span in numbers.items()} for topic, numbers in spans.items()}
        ends = {topic: {number: span[1] for number, span in numbers.items()} for topic, numbers in spans.items()}
        reader = self._kafka(self._spark.read).option("assign", _as_json({t: list(p) for t, p in spans.items()}))
        reader = reader.option("startingOffsets", _as_json(begins)).option("endingOffsets", _as_json(ends))
        raw: DataFrame = reader.load()
        return raw

    def _resume_at(self, topic: str, number: int, begins: Offsets, oldest: int) -> int:
        begun = begins.get(topic, {}).get(number, 0)  # a partition that was added begins at 0
        reached = self._until.get(topic, {}).get(number, begun)
        if reached >= oldest:
            return reached
        if not self._config.accept.lost_range:
            msg = (
                f"{topic} begins at offset {oldest} of partition {number}, but {reached} is the next to land: offsets "
                f"{reached} to {oldest - 1} are lost; set accept.lost_range to go on without them"
            )
            raise IdentityError(msg)
        log.warning("offsets %d to %d of %s, partition %d, are lost", reached, oldest - 1, topic, number)
        return oldest

    def _kafka(self, reader: Any) -> Any:
        options = {**spark_options(self._config.kafka), **spark_source_limits(self._config)}
        return reader.format("kafka").options(**options, includeHeaders="true", failOnDataLoss="true")


def _count(judged: DataFrame) -> list[Row]:
    """Count by partition, target and (unless rejected) topic, with the range of offsets; one small job."""
    topic = F.when(~F.col("target").isin(judge.OP, judge.REJECTED), F.col("topic"))
    return (
        judged.groupBy("source", "partition", "target", topic.alias("topic"))
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"), F.min("stored_at").alias("first_stored"))
        .collect()
    )


def _as_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content)
