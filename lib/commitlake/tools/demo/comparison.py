"""Whether Kafka, the tables, the order table and the points hold the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

_NAMED = 5
Audit = Callable[[SparkSession, str], Any]
"""What the command `commitlake audit` prints, given where the tables are."""


@dataclass(frozen=True)
class Comparison:
    """Two places that must hold the same `things`, each equally often."""

    things: str
    left: str
    right: str
    left_has: Counter[str]
    right_has: Counter[str]

    def differences(self) -> list[str]:
        """What one side has more of, in words; empty when both hold the same."""
        both = (
            (self.left, self.right, self.left_has - self.right_has),
            (self.right, self.left, self.right_has - self.left_has),
        )
        return [
            f"{self.things}: {surplus.total()} in {here} but not in {there}: {_some(surplus)}"
            for here, there, surplus in both
            if surplus
        ]


def _some(names: Counter[str]) -> str:
    ordered = sorted(names.elements())
    return ", ".join(ordered[:_NAMED]) + (", ..." if len(ordered) > _NAMED else "")


class OrderTables:
    """The tables of the demo's coordinator.

    Args:
        spark: reads them.
        root: where they are.
        kafka: arguments of a client.
        audit: compares them.
    """

    def __init__(self, spark: SparkSession, root: Path, kafka: Mapping[str, Any], audit: Audit) -> None:
        self.root = root
        self._spark, self._kafka, self._audit = spark, kafka, audit

    def read(self, name: str) -> DataFrame:
        """A table; `topics/<topic>` is that of a topic."""
        return self._spark.read.format("delta").load(str(self.root / name))

    def counts(self) -> Counter[str]:
        """Transactional messages by state, by `<state> <reason>`, `PENDING` ones, and rows of some tables."""
        counts = Counter({name: self.read(name).count() for name in ("half", "checks", "rejected")})
        for row in self.read("transactions").groupBy("state", "reason").count().collect():
            counts[row["state"]] += row["count"]
            counts[f"{row['state']} {row['reason']}"] += row["count"]
        counts["PENDING"] = counts["half"] - counts["COMMITTED"] - counts["ROLLED_BACK"] - counts["DISCARDED"]
        return counts

    def seen(self, topic: str, column: str) -> Counter[str]:
        """What consumers of a topic see in a column; nothing when the topic has no table yet."""
        if not (self.root / "topics" / topic / "_delta_log" / f"{0:020}.json").exists():
            return Counter()
        return _collect(self.read(f"topics/{topic}"), column)

    def landed(self) -> Comparison:
        """Whether every record of Kafka's topic `half` is in a table."""
        sent = Counter(f"{queue} {at}" for queue, end in self._ends("half").items() for at in range(end))
        landed = _collect(self.read("half"), "queue", "queue_offset")
        landed += _collect(self.read("rejected").where("source = 'half'"), "kafka_partition", "kafka_offset")
        return Comparison("half messages", "Kafka", "the tables half and rejected", sent, landed)

    def violations(self) -> list[str]:
        """What an audit finds in the tables, and topics in which something is still open; takes seconds."""
        report = self._audit(self._spark, str(self.root))
        still_open = [
            f"topic {counts.topic}: {counts.pending} messages are pending and {counts.waiting} wait for their time"
            for counts in report.topics
            if counts.pending or counts.waiting
        ]
        unequal = [f"the counts do not agree: {counts}" for counts in report.topics if not counts.holds]
        return [*map(str, report.findings), *unequal, *still_open]

    def _ends(self, name: str) -> dict[int, int]:
        """The end of each partition of a Kafka topic."""
        topic = self._kafka["topic_prefix"] + name
        with closing(KafkaConsumer(bootstrap_servers=self._kafka["bootstrap_servers"])) as client:
            partitions = [TopicPartition(topic, number) for number in client.partitions_for_topic(topic)]
            return {partition.partition: end for partition, end in client.end_offsets(partitions).items()}


def _collect(rows: DataFrame, *columns: str) -> Counter[str]:
    """The rows as texts; a demo has few."""
    return Counter(row[0] for row in rows.select(F.concat_ws(" ", *columns)).collect())
