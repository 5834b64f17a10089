"""What only the ledger knows: an op or a part whose message is not open (contract 4.1, 4.2, 4.6, 4.8, 4.10).

An op that meets no open message may be a duplicate, a conflict, early, or about nothing. Keeping an answer in state
for each would grow with history, so a segment asks, and this module answers from the tables as they were before the
batch. Asking is rare: once at the end of the park time, and at once for a RESUME, a RECALL and a late part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.protocol.states import Event, Kind, Source
from commitlake.streams.events import Events, spans_of, within
from commitlake.tables import Warehouse


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


def evaluated(frame: DataFrame) -> DataFrame:
    """The few rows of `frame`, evaluated now and never again, without the plan that led to them.

    `persist` would not do: Delta evaluates cached frames anew when a table that they read gets a commit, so after
    the ledger's commit the answers of the batch would differ. And each query would analyse and ship their plan.
    """
    return frame.localCheckpoint()


def near(table: DataFrame, asks: DataFrame, queue: tuple[str, str], offset: tuple[str, str]) -> DataFrame:
    """The rows of `table` in the spans of the asks' coordinates; names are (the table's, the asks')."""
    return table.where(within(spans_of(asks, queue[1], offset[1]), queue[0], offset[0]))


def newest(transactions: DataFrame) -> DataFrame:
    """The newest ledger row of each half message: a RESUME opens a round, and each round that ends has a row."""
    keys = ["queue", "half_offset"]
    rest = [name for name in transactions.columns if name not in keys]
    last = F.max_by(F.struct(*rest), F.col("round")).alias("row")
    return transactions.groupBy(*keys).agg(last).select(*keys, "row.*")


def reopened(reentries: DataFrame) -> DataFrame:
    """The newest RESUME of each first half message: its round and time (ms)."""
    halves = reentries.where((F.col("kind") == int(Kind.HALF)) & (F.col("round") > 0))
    latest = F.max(F.struct("round", "since", "op_offset")).alias("r")
    return (
        halves.groupBy("queue", "offset")
        .agg(latest)
        .select(
            F.col("queue").alias("first_queue"),
            F.col("offset").alias("first_offset"),
            F.col("r.round").alias("open_round"),
            F.col("r.since").alias("open_since"),
            F.col("r.op_offset").alias("open_op_offset"),
        )
    )


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
