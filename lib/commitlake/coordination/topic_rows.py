"""Rows of topic tables, and the one way in which a batch's ledger rows become visible.

A function of the ledger alone: a batch that was cut short after its ledger rows is finished from them at the next
start.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.coordination.events import Events
from commitlake.protocol.states import Delivery, Event, Source, State
from commitlake.tables import Warehouse
from commitlake.tables.columns import coordinate
from commitlake.tables.spans import within

_WRITERS = 4  # topic tables written at once; more only wait for the driver on small machines


def shown_by_events(events: Events, source: Source) -> tuple[DataFrame, Column]:
    """The coordinates of the messages of `source` that this batch makes visible, and where they lie."""
    ended = events.of(Event.DELIVERY, source).where(F.col("state") == int(Delivery.DELIVERED))
    spans = events.spans(Event.DELIVERY, source)
    if source is Source.HALF:
        at_once = (F.col("state") == int(State.COMMITTED)) & (F.col("deliver_at") < 0)
        ended = ended.unionAll(events.of(Event.DECIDED).where(at_once))
        spans = spans + events.spans(Event.DECIDED)
    return ended.select(coordinate("queue", "offset").alias("at")), within(spans, "queue", "queue_offset")


def shown_by_ledger(transactions: DataFrame, deliveries: DataFrame, source: Source) -> DataFrame:
    """The coordinates of the messages of `source` that these ledger rows make visible."""
    ended = deliveries.where((F.col("state") == "DELIVERED") & (F.col("source") == source.name.lower()))
    shown = ended.select(coordinate("queue", "queue_offset").alias("at"))
    if source is Source.MESSAGES:
        return shown
    committed = transactions.where("state = 'COMMITTED' AND deliver_at IS NULL")
    return shown.unionAll(committed.select(coordinate("queue", "half_offset")))


def topic_rows(messages: DataFrame, shown: DataFrame, source: Source, batch_id: int, at: Column) -> DataFrame:
    """The messages at `shown` as rows of their topic tables, with `topic`, visible since `at`.

    Bodies go from Parquet to Parquet in the JVM. What is shown travels as a bit a message: a million are 16 000 small
    rows to broadcast, and no body is ever shuffled.
    """
    transactional = source is Source.HALF
    bits = F.expr("bit_or(shiftleft(1L, cast(at & 63 as int)))").alias("bits")
    words = shown.groupBy(F.shiftright("at", 6).alias("word")).agg(bits)
    found = messages.withColumn("at", coordinate("queue", "queue_offset")).withColumn("word", F.shiftright("at", 6))
    return (
        found.join(F.broadcast(words), "word")
        .where("getbit(bits, cast(at & 63 as int)) = 1")
        .select(
            "topic",
            *("queue_id", "message_id"),
            (F.col("transaction_id") if transactional else F.lit(None)).alias("transaction_id"),
            *("producer_group", "tags", "keys", "properties", "sharding_key", "body"),
            F.lit(source.name.lower()).alias("source"),
            F.col("queue").alias("source_queue"),
            F.col("queue_offset").alias("source_offset"),
            F.lit(0).alias("source_index"),
            *("born_at", "stored_at"),
            F.greatest(at, F.col("stored_at")).alias("visible_at"),
            F.lit(batch_id).alias("batch_id"),
        )
    )


def publish(warehouse: Warehouse, rows: DataFrame, topics: list[str], marker: dict[str, int]) -> None:
    """Appends rows to their topic tables, several at once; each table gets one commit."""
    if len(topics) > 1:
        rows = rows.persist()  # else every topic would read the message tables again

    def write(topic: str) -> None:
        warehouse.ensure_topic(topic)
        warehouse.append_topic(rows.where(F.col("topic") == topic), topic, marker)

    try:
        with ThreadPoolExecutor(_WRITERS) as pool:
            list(pool.map(write, sorted(topics)))
    finally:
        if len(topics) > 1:
            rows.unpersist()
