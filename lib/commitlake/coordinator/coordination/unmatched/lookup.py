"""Lookup in the tables for ops and parts whose message is not open (contract 4.1, 4.2, 4.6, 4.8, 4.10).

An op that meets no open message may be a duplicate, a conflict, early, or about nothing. A state with the outcome of
each message would grow with history. So the segment emits the op as unmatched and drops it. The tables resolve it, as
they were before the batch. Such a lookup is rare: once at the end of the park time, and early for a RESUME, a RECALL
and a late part. An op that must wait longer comes again as a requeued row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.protocol.states import Kind, State
from commitlake.tables import Warehouse
from commitlake.tables.columns import hashed_sql
from commitlake.tables.spans import spans_of, within

FINAL = "ledger.reason IN ('ORPHAN', 'REFUSED_PART')"
"""SQL: whether no RESUME may reopen a first half message."""


@dataclass(frozen=True)
class LedgerTables:
    """The tables from which unmatched rows are resolved, each read once in the batch."""

    half: DataFrame
    op: DataFrame
    delayed: DataFrame
    transactions: DataFrame
    deliveries: DataFrame
    rejected: DataFrame
    reentries: DataFrame

    def with_reopened(self, again: DataFrame) -> LedgerTables:
        """The tables as they will be: `reentries` with the requeued rows of this batch."""
        return replace(self, reentries=self.reentries.select(*again.columns).union(again))

    @classmethod
    def of(cls, warehouse: Warehouse) -> LedgerTables:
        """The newest versions of the tables."""
        return cls(*[warehouse.read(name) for name in cls.__dataclass_fields__])


def near(table: DataFrame, unmatched: DataFrame, queue: tuple[str, str], offset: tuple[str, str]) -> DataFrame:
    """The rows of a table in the spans of the messages or ops that unmatched rows name.

    Args:
        table: the table.
        unmatched: the unmatched rows.
        queue: the column that holds the queue, in the table and in the unmatched rows.
        offset: the column that holds the offset, in both.
    """
    return table.where(within(spans_of(unmatched, queue[1], offset[1]), queue[0], offset[0]))


def with_first(unmatched: DataFrame, tables: LedgerTables) -> DataFrame:
    """Adds three columns of the first half message: `first` (narrow), `ledger` (its newest row), `pending`."""
    where = (("queue", "first_queue"), ("queue_offset", "first_offset"))
    names = "queue, queue_offset, first_queue, first_offset, transaction_id, producer_group"
    half = near(tables.half, unmatched, *where)
    half = half.selectExpr("queue AS q", "queue_offset AS o", f"struct({names}) AS first")
    ended = newest(near(tables.transactions, unmatched, where[0], ("half_offset", "first_offset")))
    ledger = ended.selectExpr("queue AS lq", "half_offset AS lo", "struct(*) AS ledger")
    return (
        unmatched.join(half, F.expr("q = first_queue AND o = first_offset"), "left")
        .join(ledger, F.expr("lq = first_queue AND lo = first_offset"), "left")
        .join(reopened(tables.reentries), ["first_queue", "first_offset"], "left")
        .withColumn("pending", pending())
        .drop("q", "o", "lq", "lo")
    )


def pending() -> Column:
    """Whether the first half message has no end, or was reopened since."""
    return F.col("ledger").isNull() | (F.coalesce("open_round", F.lit(0)) > F.col("ledger.round"))


def first_facts() -> dict[str, Column | str]:
    """The columns that `with_first` has added, as columns of `FACT`."""
    return {
        "last": "last",
        "is_known": "first IS NOT NULL",
        "is_part": "struct(first.queue, first.queue_offset) != struct(first.first_queue, first.first_offset)",
        "first_tid": hashed_sql("first.transaction_id"),
        "first_grp": hashed_sql("first.producer_group"),
        "state": F.when(~F.col("pending"), number(State, "ledger.state")),
        "is_final": FINAL,
        "resumed": "open_since",
        "resumed_at": "open_op_offset",
    }


def number(kinds: type[IntEnum], column: str) -> Column:
    """The number of a name of the contract."""
    return F.create_map(*[F.lit(item) for kind in kinds for item in (kind.name, int(kind))])[F.col(column)]


def newest(transactions: DataFrame) -> DataFrame:
    """The ledger row of each half message's newest round that has ended; a RESUME opens a round."""
    keys = ["queue", "half_offset"]
    rest = [name for name in transactions.columns if name not in keys]
    last = F.max_by(F.struct(*rest), F.col("round")).alias("row")
    return transactions.groupBy(*keys).agg(last).select(*keys, "row.*")


def reopened(reentries: DataFrame) -> DataFrame:
    """The newest RESUME of each first half message: the round that it opened, its time (ms) and its offset."""
    halves = reentries.where((F.col("kind") == int(Kind.HALF)) & (F.col("round") > 0))
    latest = F.max(F.struct("round", "since", "op_offset")).alias("r")
    return (
        halves.groupBy("queue", "offset")
        .agg(latest)
        .selectExpr(
            *("queue AS first_queue", "offset AS first_offset"),
            *("r.round AS open_round", "r.since AS open_since", "r.op_offset AS open_op_offset"),
        )
    )
