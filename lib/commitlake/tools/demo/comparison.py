"""Whether Kafka, the tables, the order table and the points hold the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.kafka import topics
from commitlake.tables import Warehouse, topic_table
from commitlake.tools.audit.audit import audit

_NAMED = 5


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
        warehouse: where they are.
        config: of the coordinator.
    """

    def __init__(self, warehouse: Warehouse, config: Config) -> None:
        self._warehouse, self._config = warehouse, config

    def counts(self) -> Counter[str]:
        """Transactional messages by state, by `<state> <reason>`, `PENDING` ones, and rows of some tables."""
        counts = Counter({name: self._warehouse.read(name).count() for name in ("half", "checks", "rejected")})
        for row in self._warehouse.read("transactions").groupBy("state", "reason").count().collect():
            counts[row["state"]] += row["count"]
            counts[f"{row['state']} {row['reason']}"] += row["count"]
        counts["PENDING"] = counts["half"] - counts["COMMITTED"] - counts["ROLLED_BACK"] - counts["DISCARDED"]
        return counts

    def seen(self, topic: str, column: str) -> Counter[str]:
        """What consumers of a topic see in a column; nothing when the topic has no table yet."""
        if topic not in self._warehouse.topics():
            return Counter()
        return _collect(self._warehouse.read(topic_table(topic)), column)

    def landed(self) -> Comparison:
        """Whether every record of Kafka's topic `half` is in a table."""
        ends = topics.end_offsets(self._config, ("half",)).values()
        sent = Counter(f"{queue} {at}" for queues in ends for queue, end in queues.items() for at in range(end))
        refused = self._warehouse.read("rejected").where("source = 'half'")
        landed = _collect(self._warehouse.read("half"), "queue", "queue_offset")
        landed += _collect(refused, "kafka_partition", "kafka_offset")
        return Comparison("half messages", "Kafka", "the tables half and rejected", sent, landed)

    def violations(self) -> list[str]:
        """What an audit finds in the tables, and topics in which something is still open; takes seconds."""
        report = audit(self._warehouse.spark, self._warehouse.root)
        still_open = [
            f"topic {counts.topic}: {counts.pending} messages are pending and {counts.waiting} wait for their time"
            for counts in report.topics
            if counts.pending or counts.waiting
        ]
        unequal = [f"the counts do not agree: {counts}" for counts in report.topics if not counts.holds]
        return [*map(str, report.findings), *unequal, *still_open]


def _collect(rows: DataFrame, *columns: str) -> Counter[str]:
    """The rows as texts; a demo has few."""
    return Counter(row[0] for row in rows.select(F.concat_ws(" ", *columns)).collect())
