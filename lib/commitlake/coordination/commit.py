"""A coordination batch: its events go to the tables in the one order that survives a kill between any two steps."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from functools import reduce
from operator import add

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.coordination import check_requests, ledger_rows, topic_rows
from commitlake.coordination.events import Events
from commitlake.coordination.rejected_rows import rejected_rows
from commitlake.coordination.unmatched import unmatched_ops, unmatched_parts, unmatched_recalls
from commitlake.coordination.unmatched.lookup import Tables
from commitlake.coordination.unmatched.resolution import Answers
from commitlake.kafka.clients import spark_options, spark_sink_limits
from commitlake.protocol.states import Event, Source
from commitlake.spark.frames import materialized
from commitlake.tables import Warehouse
from commitlake.tables.spans import within

log = logging.getLogger(__name__)


class BatchWriter:
    """Writes coordination batches.

    Args:
        config: the configuration.
        warehouse: the tables.
        first_batch_id: the batch_id of the query's batch 0; ids grow over the whole life of the warehouse.
    """

    def __init__(self, config: Config, warehouse: Warehouse, first_batch_id: int) -> None:
        self.config, self.warehouse, self.first_batch_id = config, warehouse, first_batch_id

    def __call__(self, frame: DataFrame, spark_batch_id: int) -> None:
        """Carries out one batch.

        The first half message that a table shows as ended *is* ended, so the ledger comes first; whatever follows is
        derived from it or said again, so a kill at any point loses nothing and doubles nothing:

        1. read the new rows and 2. run the state machine (both in `frame`);
        3. evaluate its events, once and whole, and let the ledger answer what segments asked;
        4. the commit point: `transactions`, then `deliveries`;
        5. topic tables;
        6. `discarded`, `rejected`, `checks`, and the rows that come again (`reentries`);
        7. `batches`;
        8. check requests to Kafka: at least once, their ids never change.
        """
        batch_id = self.first_batch_id + spark_batch_id
        with ExitStack() as cached:
            events = Events(frame)  # step 3
            cached.callback(events.frame.unpersist)
            if events.count():
                self._write(*self._answered(events, cached), batch_id)

    def _write(self, events: Events, reentries: DataFrame | None, batch_id: int) -> None:
        marker = {"batch_id": batch_id}
        if not events.count(Event.DECIDED, Event.DELIVERY, Event.CHECK, Event.REFUSED) and reentries is None:
            return
        half = self.warehouse.read("half") if events.count(Event.DECIDED, Event.DELIVERY, Event.CHECK) else None
        topics = self._ledger(half, events, batch_id)  # step 4
        self._publish(half, events, batch_id, topics)  # step 5
        requests = self._tell(half, events, batch_id, reentries)  # step 6
        self.warehouse.append(_completed(self.warehouse, batch_id, events.now), "batches", marker)  # step 7
        if requests is not None:  # step 8
            send_checks(self.config, requests)

    def _answered(self, events: Events, cached: ExitStack) -> tuple[Events, DataFrame | None]:
        """Adds what the ledger answers to the events; the input rows that come again, None when there are none."""
        answers = self._answers(events)
        if answers is None:
            return events, None
        reentries = materialized(answers.reentries)
        every = events.with_more(answers.events)
        cached.callback(every.frame.unpersist)
        return every, reentries if reentries.count() else None

    def _answers(self, events: Events) -> Answers | None:
        if not events.count(Event.UNMATCHED_OP, Event.UNMATCHED_PART):
            return None
        tables = Tables.of(self.warehouse)
        given = []
        ops = events.count_of(Event.UNMATCHED_OP, Source.HALF)
        if ops:
            given.append(unmatched_ops.answer(events, tables, self.config.transaction.timeout_ms))
        if events.count_of(Event.UNMATCHED_OP, Source.MESSAGES):
            given.append(unmatched_recalls.answer(events, tables))
        if events.count_of(Event.UNMATCHED_PART, Source.HALF):
            # What is reopened in this batch is open for a part that asks in it.
            given.append(unmatched_parts.answer(events, tables.with_reopened(given[0].reentries) if ops else tables))
        return reduce(add, given)

    def _ledger(self, half: DataFrame | None, events: Events, batch_id: int) -> set[str]:
        """Appends the ledger rows; returns the topics that get rows from them."""
        topics: set[str] = set()
        if half is not None and events.count(Event.DECIDED):
            rows = ledger_rows.transactions(half, events, batch_id)
            topics |= self._append_ledger(rows, "transactions", "state = 'COMMITTED' AND deliver_at IS NULL", batch_id)
        ended = [
            ledger_rows.deliveries(
                half if src is Source.HALF else self.warehouse.read("delayed"), events, src, batch_id
            )
            for src in Source
            if half is not None and events.count_of(Event.DELIVERY, src)
        ]
        if ended:
            topics |= self._append_ledger(reduce(DataFrame.union, ended), "deliveries", "state = 'DELIVERED'", batch_id)
        return topics

    def _append_ledger(self, rows: DataFrame, name: str, shown: str, batch_id: int) -> set[str]:
        seen = Observation()  # gathered while the rows are written: a query of its own would cost a job a batch
        found = rows.observe(seen, F.to_json(F.collect_set(F.when(F.expr(shown), F.col("topic")))).alias("topics"))
        self.warehouse.append(found, name, {"batch_id": batch_id})
        return set(json.loads(seen.get["topics"]))

    def _publish(self, half: DataFrame | None, events: Events, batch_id: int, topics: set[str]) -> None:
        if not topics or half is None:
            return
        frames, at = [], F.timestamp_millis(F.lit(events.now))
        for src in Source:
            if events.count_of(Event.DELIVERY, src) or (src is Source.HALF and events.count(Event.DECIDED)):
                messages = half if src is Source.HALF else self.warehouse.read("delayed")
                shown, near = topic_rows.shown_by_events(events, src)
                frames.append(topic_rows.topic_rows(messages.where(near), shown, src, batch_id, at))
        topic_rows.publish(self.warehouse, reduce(DataFrame.union, frames), sorted(topics), {"batch_id": batch_id})

    def _tell(
        self, half: DataFrame | None, events: Events, batch_id: int, reentries: DataFrame | None
    ) -> DataFrame | None:
        """Appends what is told besides the ledger; returns the check requests to send, None when there are none."""
        marker = {"batch_id": batch_id}
        if half is not None and events.count_discarded():
            self.warehouse.append(ledger_rows.discarded(half, events, batch_id), "discarded", marker)
        if events.count(Event.REFUSED):
            self.warehouse.append(rejected_rows(self.warehouse, self.config, events), "rejected", marker)
        if reentries is not None:
            self.warehouse.append(reentries.withColumn("batch_id", F.lit(batch_id)), "reentries", marker)
        if half is None or not events.count(Event.CHECK):
            return None
        checks = ledger_rows.checks(half, events, batch_id)
        self.warehouse.append(checks, "checks", marker)
        checked = half.where(within(events.spans(Event.CHECK), "queue", "queue_offset"))
        return check_requests.records(checked, checks, _parts(events), self.config.kafka.topic("check"))


def _parts(events: Events) -> DataFrame | None:
    if not events.count(Event.CHECK_PART):
        return None
    names = {"first_queue": "anchor_queue", "first_offset": "anchor_offset", "queue": "queue", "queue_offset": "offset"}
    return events.of(Event.CHECK_PART).select(*[F.col(column).alias(name) for name, column in names.items()])


def _completed(warehouse: Warehouse, batch_id: int, now: int) -> DataFrame:
    return warehouse.spark.sql(
        f"SELECT CAST({batch_id} AS BIGINT) AS batch_id, timestamp_millis({now}) AS completed_at"
    )


def send_checks(config: Config, records: DataFrame) -> None:
    """Sends check requests to Kafka."""
    options = spark_options(config.kafka) | spark_sink_limits()
    records.write.format("kafka").options(**options).save()
