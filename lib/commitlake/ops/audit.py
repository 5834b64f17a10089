"""Whether the tables of a warehouse agree, message by message; a coordinator may run meanwhile.

One pass: whatever any table says of a message meets by its coordinates, is summed up, and is compared there
(`audit_rows`, `audit_rules`). The counts by topic are sums of the same, so they hold exactly when every message does.

One point of a warehouse that is being written: `batches` is read first, and of all other tables rows up to its newest
batch. Those are all there, since a batch stands in `batches` last. Messages, which have no batch, may be newer: then
they are pending, or waiting. A record that is just landing stands in one table or in none, never in two.

Rows of what ended long ago may be gone. They go in several steps, so of a message with an old end any part may be left:
where that is what a rule misses, the message counts nowhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F

from commitlake.ops.audit_rows import SOURCES, rows, until
from commitlake.ops.audit_rules import COUNTS, RULES, judged, per_message
from commitlake.protocol.encoding import Position
from commitlake.tables import Warehouse, topic_table
from commitlake.tables.columns import coordinate

EXAMPLES = 10
_APART = 100  # messages with one finding are told apart by so many places, so that the examples differ
_ROWS_A_TASK = 500_000  # with all that is counted of a message some 100 MB: two such tasks fit a 2 GiB heap
_NEVER = -(2**62)


@dataclass(frozen=True)
class TopicCounts:
    """The messages of a topic by their newest state; normal messages and batches, which nobody decides, do not count.

    `visible` are rows of its table, `waiting` messages with a delay that has not ended; `holds` whether it all agrees.
    """

    topic: str
    half: int
    committed: int
    rolled_back: int
    discarded: int
    pending: int
    delayed: int
    delivered: int
    recalled: int
    waiting: int
    visible: int
    holds: bool


@dataclass(frozen=True)
class Finding:
    """One kind of what should not be: its name, how many times, and where, for some of them."""

    name: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        """One line."""
        more = ", ..." if self.count > len(self.examples) else ""
        return f"{self.name}: {self.count} ({', '.join(self.examples)}{more})"


@dataclass(frozen=True)
class AuditReport:
    """What an audit found, as of a batch; -1 when none is complete."""

    last_batch: int
    topics: tuple[TopicCounts, ...]
    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Whether nothing was found."""
        return not self.findings and all(counts.holds for counts in self.topics)


def audit(spark: SparkSession, warehouse: str) -> AuditReport:
    """Compares all that the tables say of each message.

    Args:
        spark: a session with the Delta extension.
        warehouse: where the tables are.
    """
    tables = Warehouse(spark, warehouse)
    since = _retained_since(tables)
    last = tables.newest_batch()
    found = _messages(tables, last, since)
    findings = [*_findings(found, _names(tables)), *_checks(tables, last), *_batches(tables, last)]
    if _retained_since(tables) != since:
        return audit(spark, warehouse)  # rows went meanwhile
    return AuditReport(last, tuple(_counts(found, _names(tables))), tuple(findings))


def counts(tables: Warehouse) -> list[TopicCounts]:
    """Only the counts."""
    return _counts(_messages(tables, tables.newest_batch(), _retained_since(tables)), _names(tables))


def _messages(tables: Warehouse, last: int, since: int) -> list[Row]:
    """All messages, those that break the same rules as one row, with a few of their coordinates."""
    said = rows(tables, last)
    every = judged(per_message(said, 1 + said.count() // _ROWS_A_TASK), since)
    is_found = F.col("findings") != 0
    apart = {"shown_low": "shown_low", "shown_high": "shown_high", "member": "member", "bucket": f"at % {_APART}"}
    sums = [F.sum(F.expr(text)).alias(name) for name, text in COUNTS.items()]
    return (
        every.groupBy(
            F.coalesce("topic_low", "shown_low").alias("topic"),
            *("source", "findings"),
            *[F.when(is_found, F.expr(text)).alias(name) for name, text in apart.items()],
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
    """What messages add to the counts; what is visible counts where it stands, be it in a wrong topic."""
    part = {name: row[name] for name in COUNTS}
    if row["shown_low"] is None:
        return [(row["topic"], part)]
    seen = part.pop("visible")
    high = row["messages"] if row["shown_low"] != row["shown_high"] else 0
    return [(row["topic"], part), (row["shown_low"], {"visible": seen - high}), (row["shown_high"], {"visible": high})]


def _topic_counts(topic: str, half: Counter[str], delayed: Counter[str]) -> TopicCounts:
    at_once = half["committed"] - half["committed_with_delay"]
    holds = (
        half["half"] == half["committed"] + half["rolled_back"] + half["discarded"] + half["pending"]
        and half["committed_with_delay"] == half["delivered"] + half["waiting"]
        and half["visible"] == at_once + half["delivered"]
        and delayed["delayed"] == delayed["delivered"] + delayed["recalled"] + delayed["waiting"]
        and delayed["visible"] == delayed["delivered"]
    )
    every = {name: half[name] + delayed[name] for name in COUNTS if name != "committed_with_delay"}
    return TopicCounts(topic, **every, holds=holds)


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
    """A check has a number in its round, so it is no fact of a message but one of its own."""
    keys = (coordinate("queue", "half_offset").alias("at"), F.col("round"), F.col("check_no"))
    twice = until(tables.read("checks"), last).groupBy(*keys).count().where("count > 1")
    return _finding("CHECKED_TWICE", twice, lambda row: f"half {_place(row['at'])}-{row['round']}-{row['check_no']}")


def _batches(tables: Warehouse, last: int) -> list[Finding]:
    """A batch that wrote anything stands in `batches`, once; ids may have gaps, for batches that wrote nothing."""
    names = ("transactions", "deliveries", "discarded", "checks", "reentries")
    written = [tables.read(name) for name in names] + [tables.read(topic_table(topic)) for topic in tables.topics()]
    ids = reduce(DataFrame.unionAll, [table.select("batch_id", F.lit(0).alias("complete")) for table in written])
    ids = ids.unionAll(tables.read("batches").select("batch_id", F.lit(1)))
    found = ids.where(F.col("batch_id") <= last).groupBy("batch_id").agg(F.sum("complete").alias("complete"))
    return [
        *_finding("BATCH_TWICE", found.where("complete > 1"), lambda row: f"batch {row['batch_id']}"),
        *_finding("BATCH_INCOMPLETE", found.where("complete = 0"), lambda row: f"batch {row['batch_id']}"),
    ]


def _finding(name: str, found: DataFrame, where: Callable[[Row], str]) -> list[Finding]:
    """All of `found`, counted while the first ones are looked for; nothing when there are none."""
    seen = Observation()
    first = found.observe(seen, F.count("*").alias("n")).orderBy(*found.columns).limit(EXAMPLES).collect()
    return [Finding(name, seen.get["n"], tuple(map(where, first)))] if first else []


def _retained_since(tables: Warehouse) -> int:
    """What ended before may be gone, ms since epoch, UTC: maintenance says so before it deletes the first row."""
    told = tables.read("maintenance").agg(F.max(F.unix_millis("ended_before"))).collect()[0][0]
    return _NEVER if told is None else int(told)
