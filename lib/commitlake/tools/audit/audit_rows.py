"""The rows of all tables as facts about messages, each a few numbers.

No body and no id is read. The facts of one message have the same coordinates: source (`half`, `messages`, or `op` and
`admin` for ops), Kafka partition and offset, and the place in a batch.
"""

from __future__ import annotations

from enum import IntEnum
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.protocol.states import OFFSET_USED_BEFORE, Kind, Refusal
from commitlake.tables import Warehouse, topic_table
from commitlake.tables.columns import coordinate_sql

SOURCES = ("half", "messages", "op", "admin")


class What(IntEnum):
    """The meaning of a row. The first five are states: of a message's states, the one of the highest batch_id holds."""

    REOPENED = 0
    COMMITTED = 1
    COMMITTED_WITH_DELAY = 2
    ROLLED_BACK = 3
    DISCARDED = 4
    LANDED = 5
    DELIVERED = 6
    RECALLED = 7
    KEPT = 8
    """In the table `discarded`."""
    VISIBLE = 9
    """By a decision or a delivery."""
    NORMAL = 10
    """Visible since it landed, as a normal message or a member of a batch."""
    REJECTED = 11
    """By landing."""
    REFUSED = 12
    """By coordination: an op that landed, and then changed nothing."""
    DUPLICATE = 13
    """Committed or due, but not shown: its name was shown before."""


_FACTS = {
    "topic": "bigint",  # its hash: names would be shuffled with tens of millions of rows
    "queue_id": "int",
    "round": "int",
    "batch": "bigint",
    "happened": "bigint",  # ms since epoch
    "not_before": "bigint",  # ms since epoch: it must not be visible earlier
}
_TOPIC = "xxhash64(topic)"


def rows(tables: Warehouse, last_batch: int) -> DataFrame:
    """Rows of all tables up to a batch: at, source, member, what, and facts, null where a row has none."""
    topics = [_visible(tables, topic, last_batch) for topic in sorted(tables.topics())]
    return reduce(DataFrame.unionAll, [*_landed(tables), *_decided(tables, last_batch), *topics])


def until(table: DataFrame, last_batch: int) -> DataFrame:
    """Rows of complete batches; of a topic table also normal messages and batches, which have no batch_id."""
    return table.where(f"batch_id IS NULL OR batch_id <= {last_batch}")


def _landed(tables: Warehouse) -> list[DataFrame]:
    landed = F.lit(int(What.LANDED))
    op_source = F.when(F.col("admin"), _source("admin")).otherwise(_source("op"))
    op = tables.read("op")
    # A row with this reason is about another record than the one that the offset names.
    rejected = tables.read("rejected").where(F.col("reason") != OFFSET_USED_BEFORE)
    by_coordination = f"source IN ('op', 'admin') AND reason IN {tuple(refusal.name for refusal in Refusal)}"
    refusal = F.when(F.expr(by_coordination), int(What.REFUSED)).otherwise(int(What.REJECTED))
    return [
        _fact(tables.read("half"), landed, _source("half"), "queue", "queue_offset", topic=_TOPIC, queue_id="queue_id"),
        _fact(
            tables.read("delayed"), landed, _source("messages"), "queue", "queue_offset",
            topic=_TOPIC, queue_id="queue_id", not_before="unix_millis(deliver_at)",
        ),
        _fact(op, landed, op_source, "queue", "op_offset"),
        _fact(rejected, refusal, _source_of("source"), "kafka_partition", "kafka_offset"),
    ]  # fmt: skip


def _decided(tables: Warehouse, last_batch: int) -> list[DataFrame]:
    """Rows that coordination wrote, except those of topic tables."""
    half = _source("half")
    ended, delivered, kept, again = (
        until(tables.read(name), last_batch) for name in ("transactions", "deliveries", "discarded", "reentries")
    )
    state = F.when(F.expr("state = 'COMMITTED' AND deliver_at IS NOT NULL"), int(What.COMMITTED_WITH_DELAY))
    for each in (What.COMMITTED, What.ROLLED_BACK, What.DISCARDED):
        state = state.when(F.col("state") == each.name, int(each))
    delivery = F.when(F.col("state") == "DELIVERED", int(What.DELIVERED))
    delivery = delivery.when(F.col("state") == "DUPLICATE", int(What.DUPLICATE)).otherwise(int(What.RECALLED))
    facts = {"topic": _TOPIC, "batch": "batch_id"}
    end = {**facts, "happened": "unix_millis(resolved_at)", "not_before": "unix_millis(deliver_at)"}
    resumed = again.where(F.col("round") > 0)
    is_part = F.col("kind") == int(Kind.PART)
    place = {name: F.when(is_part, F.col(f"part_{name}")).otherwise(F.col(name)) for name in ("queue", "offset")}
    return [
        _fact(ended, state, half, "queue", "half_offset", round="round", **end),
        _fact(ended.where("duplicate_of IS NOT NULL"), F.lit(int(What.DUPLICATE)), half, "queue", "half_offset"),
        _fact(delivered, delivery, _source_of("source"), "queue", "queue_offset", **end),
        _fact(
            kept, F.lit(int(What.KEPT)), half, "queue", "queue_offset",
            round="round", happened="unix_millis(discarded_at)", **facts,
        ),
        _fact(resumed.withColumns(place), F.lit(int(What.REOPENED)), half, "queue", "offset", batch="batch_id"),
    ]  # fmt: skip


def _visible(tables: Warehouse, topic: str, last_batch: int) -> DataFrame:
    is_normal = F.expr("batch_id IS NULL AND source = 'messages'")
    what = F.when(is_normal, int(What.NORMAL)).otherwise(int(What.VISIBLE))
    return _fact(
        until(tables.read(topic_table(topic)), last_batch), what, _source_of("source"), "source_queue", "source_offset",
        member="source_index", topic=F.xxhash64(F.lit(topic)), queue_id="queue_id", batch="batch_id",
        happened="unix_millis(visible_at)", not_before="unix_millis(stored_at)",
    )  # fmt: skip


def _fact(
    table: DataFrame, what: Column, source: Column, queue: str, offset: str, member: str = "0", **facts: str | Column
) -> DataFrame:
    given = {name: F.expr(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}
    return table.select(
        F.expr(f"{coordinate_sql(queue, offset)} AS at"),
        source.cast("tinyint").alias("source"),
        F.expr(member).alias("member"),
        what.cast("tinyint").alias("what"),
        *[given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _FACTS.items()],
    )


def _source(name: str) -> Column:
    return F.lit(SOURCES.index(name))


def _source_of(column: str) -> Column:
    return F.array_position(F.array(*map(F.lit, SOURCES)), F.col(column)) - 1
