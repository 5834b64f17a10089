"""Whether the tables of a warehouse agree, message by message; a coordinator may run meanwhile.

One pass: the rows of all tables are grouped by the message's coordinates, summed up, and compared
(`audit_rules`). The counts by topic are sums of the same facts, so they agree exactly when every message does.

The view of a warehouse that is being written is consistent: `batches` is read first, and of all other tables only the
rows up to its newest batch. Such rows are complete, since a batch is written to `batches` last. Landed messages have no
batch and may be newer: then they are pending, or waiting. A record that is just landing is in one table or in none,
never in two.

Maintenance deletes rows of messages that ended long ago, in several steps, so only some rows of such a message may be
left. Where a rule fails only because of that, the message is not counted at all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F

from commitlake.protocol.encoding import Position
from commitlake.tables import OF_BATCHES, Warehouse, topic_table
from commitlake.tables.columns import coordinate_sql
from commitlake.tools.audit.audit_rules import COUNTS, RULES, SOURCES, Retained, judged, per_message, rows, until

EXAMPLES = 10
_BUCKETS = 100  # messages with one finding are grouped by so many places, so that the examples differ
_ROWS_PER_TASK = 500_000  # some 100 MB with all facts of their messages: two such tasks fit a 2 GiB heap
_NEVER = -(2**62)


@dataclass(frozen=True)
class TopicCounts:
    """The messages of a topic by their newest state.

    Attributes:
        normal: normal messages and members of batches, which are visible since they landed.
        duplicates: half and delayed messages that are not shown, since their name was shown before.
        waiting: messages with a delay that has not ended.
        visible: rows of its table.
        holds: whether each message that was committed or delivered is counted in `visible`, `duplicates` or `waiting`,
            and each half and each delayed message in one state.
    """

    topic: str
    normal: int
    half: int
    committed: int
    rolled_back: int
    discarded: int
    pending: int
    delayed: int
    delivered: int
    recalled: int
    duplicates: int
    waiting: int
    visible: int
    holds: bool


@dataclass(frozen=True)
class Finding:
    """A kind of violation: its name, how often it occurs, and where, for some of them."""

    name: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.examples) else ""
        return f"{self.name}: {self.count} ({', '.join(self.examples)}{more})"


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit up to the complete batch `last_batch`; -1 when none is complete."""

    last_batch: int
    topics: tuple[TopicCounts, ...]
    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Whether nothing was found."""
        return not self.findings and all(counts.holds for counts in self.topics)

    @property
    def verdict(self) -> str:
        """One line that says whether all is well."""
        count = sum(finding.count for finding in self.findings)
        return f"{'all is well' if self.is_well else f'{count} findings'} up to batch {self.last_batch}"


def audit(spark: SparkSession, warehouse: str, tries: int = 3) -> AuditReport:
    """Compare the rows of all tables, message by message.

    Args:
        spark: a session with the Delta extension.
        warehouse: where the tables are.
        tries: how often to begin again when maintenance deletes rows meanwhile.
    """
    tables = Warehouse(spark, warehouse)
    since = _retained_since(tables)
    last = tables.newest_batch()
    found = _messages(tables, last, since)
    findings = [*_findings(found, _names(tables)), *_checks(tables, last), *_batches(tables, last)]
    if _retained_since(tables) != since and tries > 1:
        return audit(spark, warehouse, tries - 1)
    return AuditReport(last, tuple(_counts(found, _names(tables))), tuple(findings))


def counts(tables: Warehouse) -> list[TopicCounts]:
    """Return only the counts of each topic."""
    return _counts(_messages(tables, tables.newest_batch(), _retained_since(tables)), _names(tables))


def _messages(tables: Warehouse, last: int, since: Retained) -> list[Row]:
    """All messages; those that break the same rules are one row, with a few of their coordinates."""
    facts = rows(tables, last)
    messages = judged(per_message(facts, 1 + facts.count() // _ROWS_PER_TASK), since)
    is_found = F.col("findings") != 0
    details = {"shown_low": "shown_low", "shown_high": "shown_high", "member": "member", "bucket": f"at % {_BUCKETS}"}
    sums = [F.sum(F.expr(text)).alias(name) for name, text in COUNTS.items()]
    return (
        messages.groupBy(
            F.coalesce("topic_low", "shown_low").alias("topic"),
            *("source", "findings"),
            *[F.when(is_found, F.expr(text)).alias(name) for name, text in details.items()],
        )
        .agg(F.count("*").alias("messages"), F.min("at").alias("at"), *sums)
        .collect()
    )


def _names(tables: Warehouse) -> dict[int, str]:
    """Topics by their hash."""
    landed = reduce(DataFrame.unionAll, [tables.read(name).select("topic").distinct() for name in ("half", "delayed")])
    known = {row[0] for row in landed.distinct().collect()} | tables.topics()
    found = tables.spark.createDataFrame([(name,) for name in known], "topic string")
    return {row[0]: row[1] for row in found.select(F.xxhash64("topic"), "topic").collect()}


def _counts(found: Iterable[Row], names: dict[int, str]) -> list[TopicCounts]:
    sums: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in found:
        for topic, part in _by_topic(row):
            if topic is not None:
                sums[names.get(topic, "?"), SOURCES[row["source"]]].update(part)
    topics = sorted({*names.values(), *(topic for topic, _ in sums)})
    return [_topic_counts(topic, sums[topic, "half"], sums[topic, "messages"]) for topic in topics]


def _by_topic(row: Row) -> Iterable[tuple[int | None, dict[str, int]]]:
    """The share of messages in the counts of topics; a visible row counts where it is, even in a wrong topic."""
    part = {name: row[name] for name in COUNTS}
    if row["shown_low"] is None:
        return [(row["topic"], part)]
    visible = part.pop("visible")
    in_high = row["messages"] if row["shown_low"] != row["shown_high"] else 0
    in_low = visible - in_high
    return [(row["topic"], part), (row["shown_low"], {"visible": in_low}), (row["shown_high"], {"visible": in_high})]


def _topic_counts(topic: str, half: Counter[str], delayed: Counter[str]) -> TopicCounts:
    holds = (
        half["half"] == half["committed"] + half["rolled_back"] + half["discarded"] + half["pending"]
        and half["committed_with_delay"] == half["delivered"] + half["waiting"] + half["duplicates_with_delay"]
        and half["visible"] + half["duplicates"] == half["committed"] - half["waiting"]
        and delayed["delayed"] == sum(delayed[name] for name in ("delivered", "recalled", "duplicates", "waiting"))
        and delayed["visible"] == delayed["delivered"]
    )
    sums = {name: half[name] + delayed[name] for name in COUNTS if not name.endswith("_with_delay")}
    sums["visible"] += sums["normal"]
    return TopicCounts(topic, **sums, holds=holds)


def _findings(found: Iterable[Row], names: dict[int, str]) -> Iterable[Finding]:
    for bit, rule in enumerate(RULES):
        broken = [row for row in found if row["findings"] >> bit & 1]
        if broken:
            examples = sorted(_where(row, names) for row in broken)[:EXAMPLES]
            yield Finding(rule.name, sum(row["messages"] for row in broken), tuple(examples))


def _where(row: Row, names: dict[int, str]) -> str:
    topic = f" of {names.get(row['topic'], '?')}" if row["topic"] is not None else ""
    member = f", member {row['member']}" if row["member"] else ""
    return f"{SOURCES[row['source']]} {_place(row['at'])}{member}{topic}"


def _place(at: int) -> str:
    return str(Position.from_coordinate(at))


def _checks(tables: Warehouse, last: int) -> list[Finding]:
    """Checks are compared by themselves: a message has several, numbered in each round, and each may be repeated."""
    repeat = F.coalesce("repeat", F.lit(0)).alias("repeat")
    each = until(tables.read("checks"), last).groupBy(
        F.expr(f"{coordinate_sql('queue', 'half_offset')} AS at"), "round", "check_no", repeat
    )
    twice = each.count().where("count > 1")
    return _finding("CHECKED_TWICE", twice, lambda row: f"half {_place(row['at'])}-{row['round']}-{row['check_no']}")


def _batches(tables: Warehouse, last: int) -> list[Finding]:
    """A batch that wrote anything is in `batches`, once; a batch that wrote nothing leaves a gap in the ids."""
    written = [tables.read(name) for name in (*OF_BATCHES, *map(topic_table, tables.topics()))]
    ids = reduce(DataFrame.unionAll, [table.select("batch_id", F.lit(0).alias("complete")) for table in written])
    ids = ids.unionAll(tables.read("batches").select("batch_id", F.lit(1)))
    found = ids.where(F.col("batch_id") <= last).groupBy("batch_id").agg(F.sum("complete").alias("complete"))
    if found.where("complete != 1").isEmpty():  # one look at all tables instead of two
        return []
    return [
        *_finding("BATCH_TWICE", found.where("complete > 1"), lambda row: f"batch {row['batch_id']}"),
        *_finding("BATCH_INCOMPLETE", found.where("complete = 0"), lambda row: f"batch {row['batch_id']}"),
    ]


def _finding(name: str, found: DataFrame, where: Callable[[Row], str]) -> list[Finding]:
    """A finding for all rows, counted in the query that takes the first ones; nothing when there are none."""
    counted = Observation()
    first = found.observe(counted, F.count("*").alias("n")).orderBy(*found.columns).limit(EXAMPLES).collect()
    return [Finding(name, counted.get["n"], tuple(map(where, first)))] if first else []


def _retained_since(tables: Warehouse) -> Retained:
    """Times before which rows may be gone. Maintenance writes them before it deletes."""
    told = tables.read("maintenance")
    since = told.agg(F.max(F.unix_millis("ended_before"))).collect()[0][0]
    if "visible_before" not in told.columns:  # the start of this version adds the column
        return Retained(_NEVER if since is None else int(since), {})
    cuts = told.where("topic IS NOT NULL").groupBy("topic").agg(F.max(F.unix_millis("visible_before"))).collect()
    return Retained(_NEVER if since is None else int(since), {topic: int(cut) for topic, cut in cuts})
