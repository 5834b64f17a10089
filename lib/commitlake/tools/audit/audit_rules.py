"""Rules for the rows of one message; each rule that is broken is a finding."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.tools.audit.audit_rows import SOURCES, What

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

    Repartitioned first: a row has few bytes, but a partial aggregate is as wide as all facts of its message.

    Args:
        rows: as of `audit_rows.rows`.
        partitions: number of tasks.
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
    """Add `findings`, a bit for each rule that a message breaks; leave out messages with deleted rows.

    Args:
        messages: as of `per_message`.
        since: the times before which rows may be gone.
    """
    broken = {rule: F.coalesce(F.expr(rule.when), F.lit(False)) for rule in RULES}
    cuts = " ".join(f"WHEN xxhash64('{topic}') THEN {cut}L" for topic, cut in since.topics.items())
    of_topic = f"happened < CASE topic_low {cuts} END" if cuts else "false"
    is_old, is_trimmed = (F.coalesce(F.expr(text), F.lit(False)) for text in (f"happened < {since.ended}L", of_topic))
    excused = {rule: is_trimmed if rule.name == _NOT_VISIBLE else is_old & rule.may_age for rule in RULES}
    bits = [F.when(broken[rule] & ~excused[rule], 1 << n).otherwise(0) for n, rule in enumerate(RULES)]
    aged = reduce(Column.__or__, [broken[rule] & excused[rule] for rule in RULES])
    found = messages.withColumns({"findings": reduce(Column.__add__, bits), "aged": aged})
    return found.where("findings != 0 OR NOT aged")
