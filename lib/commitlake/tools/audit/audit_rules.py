"""The rows of all tables as facts about messages, and the rules for the facts of one message.

No body and no id is read. The facts of one message have the same coordinates: source (`half`, `messages`, or `op` and
`admin` for ops), Kafka partition and offset, and the place in a batch. Each rule that is broken is a finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import reduce
from typing import NamedTuple

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


_KEY = ("at", "source", "member")
_STATES = (What.REOPENED, What.COMMITTED, What.COMMITTED_WITH_DELAY, What.ROLLED_BACK, What.DISCARDED)
_ENDS = _STATES[1:]
_SEEN = (What.VISIBLE, What.NORMAL)
_HALF, _MESSAGES = SOURCES.index("half"), SOURCES.index("messages")
_NOT_VISIBLE = "NOT_VISIBLE"


class Retained(NamedTuple):
    """Times before which maintenance may have deleted rows, ms since epoch, UTC.

    Attributes:
        ended: of messages that ended before.
        topics: by topic with a retention, of rows of its table that became visible before.
    """

    ended: int
    topics: Mapping[str, int]


class AuditRule(NamedTuple):
    """A kind of finding.

    Attributes:
        name: as the audit reports it.
        when: SQL condition on the facts of a message (`per_message`).
        may_age: whether the condition can also mean that maintenance has deleted a row; of a topic's rows, by
            `topics.retention`, that is `NOT_VISIBLE`.
    """

    name: str
    when: str
    may_age: bool = False


RULES = (
    AuditRule("LANDED_TWICE", "landed > 1 OR (landed > 0 AND normal > 0)"),
    AuditRule("LANDED_AND_REJECTED", "rejected > 0 AND (landed > 0 OR normal > 0)"),
    AuditRule("REJECTED_TWICE", "rejected + refused > 1"),
    AuditRule("ENDED_TWICE", "bit_count(rounds) < least(ends, 63)"),
    AuditRule("DELIVERED_TWICE", "delivered + recalled + duplicates > 1"),
    AuditRule("KEPT_TWICE", "bit_count(rounds_kept) < least(kept, 63)"),
    AuditRule("VISIBLE_TWICE", "visible + normal > 1 AND shown_low = shown_high"),
    AuditRule("VISIBLE_IN_TWO_TOPICS", "shown_low != shown_high"),
    AuditRule("VISIBLE_TOO_EARLY", "visible_at < not_before"),
    AuditRule("VISIBLE_IN_OTHER_QUEUE", "visible_queue != queue_id"),
    AuditRule("VISIBLE_IN_OTHER_BATCH", "visible_batch != shown_batch"),
    AuditRule("OTHER_TOPIC", "topic_low != topic_high OR (shown_low = shown_high AND shown_low != topic_low)"),
    AuditRule(_NOT_VISIBLE, "shown AND visible = 0"),
    AuditRule("VISIBLE_UNDECIDED", "visible > 0 AND NOT shown AND recalled = 0", may_age=True),
    AuditRule("VISIBLE_RECALLED", "visible > 0 AND delivered = 0 AND recalled > 0"),
    AuditRule("END_OF_NOTHING", "ends > 0 AND landed = 0", may_age=True),
    AuditRule("DELIVERY_OF_NOTHING", "delivered + recalled > 0 AND NOT has_delay", may_age=True),
    AuditRule("NOT_KEPT", "rounds_discarded & ~rounds_kept != 0", may_age=True),
    AuditRule("KEPT_UNDISCARDED", "rounds_kept & ~rounds_discarded != 0", may_age=True),
)

COUNTS = {
    "normal": "normal",
    "half": f"IF(source = {_HALF}, landed, 0)",
    "committed": f"INT(state IN ({What.COMMITTED}, {What.COMMITTED_WITH_DELAY}))",
    "committed_with_delay": f"INT(state = {What.COMMITTED_WITH_DELAY})",
    "rolled_back": f"INT(state = {What.ROLLED_BACK})",
    "discarded": f"INT(state = {What.DISCARDED})",
    "pending": f"INT(source = {_HALF} AND landed > 0 AND state = {What.REOPENED})",
    "delayed": f"IF(source = {_MESSAGES}, landed, 0)",
    "delivered": "delivered",
    "recalled": "recalled",
    "duplicates": "duplicates",
    "duplicates_with_delay": "INT(has_delay AND duplicates > 0)",
    "waiting": "INT(has_delay AND delivered + recalled + duplicates = 0)",
    "visible": "visible",
}
"""SQL: the share of one message in the counts of its topic; `visible` only by a decision or a delivery."""


def per_message(rows: DataFrame, partitions: int) -> DataFrame:
    """Aggregate the facts of each message: its rows of each kind, its state, times, topics, queues and batches.

    The rows are those of `rows`, repartitioned first: a row has few bytes, but a partial aggregate is as wide as all
    facts of its message.
    """
    near = rows.repartition(partitions, *_KEY)
    facts = near.groupBy(*_KEY).agg(*_tally(), *_extremes())
    state = F.expr(f"coalesce(newest & 15L, {What.REOPENED})")
    shown = f"(state = {What.COMMITTED} AND duplicates = 0) OR delivered > 0"
    has_delay = f"state = {What.COMMITTED_WITH_DELAY} OR (source = {_MESSAGES} AND landed > 0)"
    return facts.withColumn("state", state).withColumns({"shown": F.expr(shown), "has_delay": F.expr(has_delay)})


def _tally() -> list[Column]:
    """Counts, and bits of rounds.

    A round is a bit, modulo 63. Rounds are consecutive, so a repetition can go unnoticed only for a message that was
    resumed more than 62 times.
    """
    bit = "shiftleft(1L, round % 63)"
    return [
        _count("landed", What.LANDED),
        _count("normal", What.NORMAL),
        _count("rejected", What.REJECTED),
        _count("refused", What.REFUSED),
        _count("ends", *_ENDS),
        _count("delivered", What.DELIVERED),
        _count("recalled", What.RECALLED),
        _count("duplicates", What.DUPLICATE),
        _count("kept", What.KEPT),
        _count("visible", What.VISIBLE),
        F.coalesce(_of("bit_or", bit, *_ENDS), F.lit(0)).alias("rounds"),
        F.coalesce(_of("bit_or", bit, What.DISCARDED), F.lit(0)).alias("rounds_discarded"),
        F.coalesce(_of("bit_or", bit, What.KEPT), F.lit(0)).alias("rounds_kept"),
    ]


def _extremes() -> list[Column]:
    others = set(What) - set(_SEEN)
    return [
        _of("max", "batch * 16 + what", *_STATES).alias("newest"),
        _of("min", "topic", *others).alias("topic_low"),
        _of("max", "topic", *others).alias("topic_high"),
        _of("min", "topic", *_SEEN).alias("shown_low"),
        _of("max", "topic", *_SEEN).alias("shown_high"),
        _of("max", "queue_id", What.LANDED).alias("queue_id"),
        _of("max", "queue_id", What.VISIBLE).alias("visible_queue"),
        _of("min", "batch", What.COMMITTED, What.DELIVERED).alias("shown_batch"),
        _of("min", "batch", What.VISIBLE).alias("visible_batch"),
        _of("min", "happened", *_SEEN).alias("visible_at"),
        F.max("not_before").alias("not_before"),
        F.max("happened").alias("happened"),
    ]


def _count(name: str, *kinds: What) -> Column:
    return F.expr(f"count_if({_is(*kinds)})").alias(name)


def _of(aggregate: str, value: str, *kinds: What) -> Column:
    return F.expr(f"{aggregate}(IF({_is(*kinds)}, {value}, NULL))")


def _is(*kinds: What) -> str:
    return f"what IN ({', '.join(str(int(kind)) for kind in kinds)})"


def judged(messages: DataFrame, since: Retained) -> DataFrame:
    """Add `findings`, a bit for each rule that a message breaks; leave out messages of which rows were deleted."""
    broken = {rule: F.coalesce(F.expr(rule.when), F.lit(False)) for rule in RULES}
    cuts = " ".join(f"WHEN xxhash64('{topic}') THEN {cut}L" for topic, cut in since.topics.items())
    of_topic = f"happened < CASE topic_low {cuts} END" if cuts else "false"
    is_old, is_trimmed = (F.coalesce(F.expr(text), F.lit(False)) for text in (f"happened < {since.ended}L", of_topic))
    excused = {rule: is_trimmed if rule.name == _NOT_VISIBLE else is_old & rule.may_age for rule in RULES}
    bits = [F.when(broken[rule] & ~excused[rule], 1 << n).otherwise(0) for n, rule in enumerate(RULES)]
    aged = reduce(Column.__or__, [broken[rule] & excused[rule] for rule in RULES])
    found = messages.withColumns({"findings": reduce(Column.__add__, bits), "aged": aged})
    return found.where("findings != 0 OR NOT aged")
