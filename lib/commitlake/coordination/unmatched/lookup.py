"""What only the ledger knows: an op or a part whose message is not open (contract 4.1, 4.2, 4.6, 4.8, 4.10).

An op that meets no open message may be a duplicate, a conflict, early, or about nothing. Keeping an answer in state
for each would grow with history, so a segment asks, and this module answers from the tables as they were before the
batch. Asking is rare: once at the end of the park time, and at once for a RESUME, a RECALL and a late part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.coordination.events import Events
from commitlake.protocol.states import Event, Source
from commitlake.tables import Warehouse
from commitlake.tables.rounds import newest, reopened
from commitlake.tables.spans import spans_of, within


@dataclass(frozen=True)
class Tables:
    """The tables that answer, each read once in the batch."""

    half: DataFrame
    op: DataFrame
    delayed: DataFrame
    transactions: DataFrame
    deliveries: DataFrame
    rejected: DataFrame
    reentries: DataFrame

    def with_reopened(self, again: DataFrame) -> Tables:
        """As they will be: with the rows that this batch sends back to its own input."""
        return replace(self, reentries=self.reentries.select(*again.columns).union(again))

    @classmethod
    def of(cls, warehouse: Warehouse) -> Tables:
        """The newest versions."""
        return cls(*[warehouse.read(name) for name in cls.__dataclass_fields__])


def asked(events: Events, event: Event, src: Source) -> DataFrame:
    """The asking rows of one kind, with the coordinates of their first half message.

    What comes when its park time is over already asks twice in one batch; the last word counts.
    """
    found = events.of(event, src)
    once = found.groupBy(*[name for name in found.columns if name != "last"]).agg(F.max("last").alias("last"))
    return once.withColumnsRenamed({"anchor_queue": "first_queue", "anchor_offset": "first_offset"})


def near(table: DataFrame, asks: DataFrame, queue: tuple[str, str], offset: tuple[str, str]) -> DataFrame:
    """The rows of `table` in the spans of the asks' coordinates; names are (the table's, the asks')."""
    return table.where(within(spans_of(asks, queue[1], offset[1]), queue[0], offset[0]))


def with_first(asks: DataFrame, tables: Tables) -> DataFrame:
    """Adds of the first half message: `first` (narrow), `ledger` (its newest row), `pending`."""
    where = (("queue", "first_queue"), ("queue_offset", "first_offset"))
    names = ["queue", "queue_offset", "first_queue", "first_offset", "transaction_id", "producer_group"]
    half = near(tables.half, asks, *where).select(
        F.col("queue").alias("q"), F.col("queue_offset").alias("o"), F.struct(*names).alias("first")
    )
    ended = newest(near(tables.transactions, asks, where[0], ("half_offset", "first_offset")))
    ledger = ended.select(
        F.col("queue").alias("lq"), F.col("half_offset").alias("lo"), F.struct(*ended.columns).alias("ledger")
    )
    return (
        asks.join(half, (F.col("q") == F.col("first_queue")) & (F.col("o") == F.col("first_offset")), "left")
        .join(ledger, (F.col("lq") == F.col("first_queue")) & (F.col("lo") == F.col("first_offset")), "left")
        .join(reopened(tables.reentries), ["first_queue", "first_offset"], "left")
        .withColumn("pending", pending())
        .drop("q", "o", "lq", "lo")
    )


def pending() -> Column:
    """Whether the first half message has no end, or was reopened since."""
    return F.col("ledger").isNull() | (F.coalesce("open_round", F.lit(0)) > F.col("ledger.round"))


def is_part() -> Column:
    """Whether what is named as first half message is a further one."""
    named = F.struct(F.col("first.queue"), F.col("first.queue_offset"))
    return named != F.struct(F.col("first.first_queue"), F.col("first.first_offset"))
