"""What the tables say, and whether Kafka, the order table and the points say the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.kafka import topics
from commitlake.tables import Warehouse, topic_table

_NAMED = 5
_PLACE = ("source", "topic", "queue", "queue_offset")


@dataclass(frozen=True)
class Comparison:
    """Two places that must hold the same things, each equally often; `things` says what."""

    things: str
    left: str
    right: str
    left_has: Counter[str]
    right_has: Counter[str]

    def differences(self) -> list[str]:
        """What stands on one side only, in words; empty when both hold the same."""
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


class Ledger:
    """Asks the tables of a coordinator.

    Args:
        warehouse: its tables.
        config: says where Kafka is.
    """

    def __init__(self, warehouse: Warehouse, config: Config) -> None:
        self._warehouse, self._config = warehouse, config

    def counts(self) -> Counter[str]:
        """Transactional messages by newest state, by `<state> <reason>`, `PENDING` ones, and rows of some tables."""
        counts = Counter({name: self._warehouse.read(name).count() for name in ("half", "checks", "rejected")})
        for row in self._newest().groupBy("state", "reason").count().collect():
            counts[row["state"]] += row["count"]
            counts[f"{row['state']} {row['reason']}"] += row["count"]
        counts["PENDING"] = counts["half"] - counts["COMMITTED"] - counts["ROLLED_BACK"] - counts["DISCARDED"]
        return counts

    def seen(self, topic: str, column: str) -> Counter[str]:
        """What consumers of a topic see in a column; nothing when the topic has no table yet."""
        if topic not in self._warehouse.topics():
            return Counter()
        return _collect(self._warehouse.read(topic_table(topic)), column)

    def identities(self) -> list[Comparison]:
        """What must hold when nothing is pending: all records in Kafka have landed, all messages have ended."""
        return [self._landing(), *self._endings()]

    def _landing(self) -> Comparison:
        ends = topics.end_offsets(self._config, ("half",)).values()
        sent = Counter(f"{queue} {at}" for queues in ends for queue, end in queues.items() for at in range(end))
        refused = self._warehouse.read("rejected").where("source = 'half'")
        landed = _collect(self._warehouse.read("half"), "queue", "queue_offset")
        landed += _collect(refused, "kafka_partition", "kafka_offset")
        return Comparison("half messages", "Kafka", "the tables half and rejected", sent, landed)

    def _endings(self) -> list[Comparison]:
        """By source, topic and place: what came has ended; what was decided to be visible is, and nothing else is."""
        half, ended = _of("half", self._warehouse.read("half")), _of("half", self._newest())
        delayed, deliveries = _of("messages", self._warehouse.read("delayed")), self._warehouse.read("deliveries")
        committed = ended.where("state = 'COMMITTED'")
        late = _collect(delayed, *_PLACE) + _collect(committed.where("deliver_at IS NOT NULL"), *_PLACE)
        due = _collect(committed.where("deliver_at IS NULL"), *_PLACE)
        due += _collect(deliveries.where("state = 'DELIVERED'"), *_PLACE)
        return [
            Comparison(
                "transactional messages", "half", "transactions", _collect(half, *_PLACE), _collect(ended, *_PLACE)
            ),
            Comparison("delayed messages", "the ledger", "deliveries", late, _collect(deliveries, *_PLACE)),
            Comparison("decided messages", "the ledger", "the topic tables", due, self._visible()),
        ]

    def _visible(self) -> Counter[str]:
        """The rows of all topic tables that coordination wrote."""
        found: Counter[str] = Counter()
        for topic in self._warehouse.topics():
            rows = (
                self._warehouse.read(topic_table(topic)).where("batch_id IS NOT NULL").withColumn("topic", F.lit(topic))
            )
            found += _collect(rows, "source", "topic", "source_queue", "source_offset")
        return found

    def _newest(self) -> DataFrame:
        """The newest row of each half message in `transactions`."""
        order = Window.partitionBy("queue", "queue_offset").orderBy(F.desc("batch_id"))
        rows = self._warehouse.read("transactions").withColumnRenamed("half_offset", "queue_offset")
        return rows.withColumn("nth", F.row_number().over(order)).where("nth = 1")


def _of(source: str, rows: DataFrame) -> DataFrame:
    return rows.withColumn("source", F.lit(source))


def _collect(rows: DataFrame, *columns: str) -> Counter[str]:
    """The rows as texts. A demo has few; a big warehouse is compared by joins."""
    return Counter(row[0] for row in rows.select(F.concat_ws(" ", *columns)).collect())
