"""Whether Kafka, the tables, the order table and the points hold the same."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
from deltalake import DeltaTable
from kafka import KafkaConsumer, TopicPartition

_NAMED = 5
_HALF = "commitlake.half"


@dataclass(frozen=True)
class Comparison:
    """Two places that must hold the same `things`, each equally often."""

    things: str
    left: str
    right: str
    left_has: Counter[str]
    right_has: Counter[str]

    def differences(self) -> list[str]:
        """A line for each side that has more than the other; empty when both hold the same."""
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
    """The tables of the demo's coordinator, as any Delta reader sees them."""

    def __init__(self, root: Path, kafka: str) -> None:
        self.root = root
        self._kafka = kafka

    def query(self, sql: str, *names: str) -> list[tuple[Any, ...]]:
        """The rows of a query of DuckDB on tables, `{0}` and so on in it; none while one of them has no rows."""
        files = [self._files(name) for name in names]
        if not all(files):
            return []
        tables = [f"read_parquet({each}, hive_partitioning = true, union_by_name = true)" for each in files]
        with duckdb.connect() as db:
            return db.execute(sql.format(*tables)).fetchall()

    def _files(self, name: str) -> list[str]:
        place = str(self.root / name)
        # deltalake writes a blank as %20, DuckDB takes a path as it stands.
        return [*map(unquote, DeltaTable(place).file_uris())] if DeltaTable.is_deltatable(place) else []

    def counts(self) -> Counter[str]:
        """Transactional messages by state, by `<state> <reason>`, `PENDING` ones, and rows of some tables."""
        counts: Counter[str] = Counter()
        for name in ("half", "checks", "rejected"):
            counts[name] = sum(number for (number,) in self.query("SELECT count(*) FROM {0}", name))
        for state, reason, number in self.query("SELECT state, reason, count(*) FROM {0} GROUP BY ALL", "transactions"):
            counts[state] += number
            counts[f"{state} {reason}"] += number
        counts["PENDING"] = counts["half"] - counts["COMMITTED"] - counts["ROLLED_BACK"] - counts["DISCARDED"]
        return counts

    def seen(self, topic: str, column: str) -> Counter[str]:
        """The values of a column that consumers of a topic see; none when the topic has no table yet."""
        return self._texts(f"SELECT {column} FROM {{0}}", f"topics/{topic}")

    def landed(self) -> Comparison:
        """Whether every record of Kafka's topic `half` is in a table."""
        sent = Counter(f"{queue} {at}" for queue, end in self._ends().items() for at in range(end))
        landed = self._texts("SELECT concat_ws(' ', queue, queue_offset) FROM {0}", "half")
        landed += self._texts(
            "SELECT concat_ws(' ', kafka_partition, kafka_offset) FROM {0} WHERE source = 'half'", "rejected"
        )
        return Comparison("half messages", "Kafka", "the tables half and rejected", sent, landed)

    def _texts(self, sql: str, name: str) -> Counter[str]:
        return Counter(text for (text,) in self.query(sql, name))

    def _ends(self) -> dict[int, int]:
        """The end of each partition of Kafka's topic `half`."""
        with closing(KafkaConsumer(bootstrap_servers=self._kafka)) as client:
            partitions = [TopicPartition(_HALF, number) for number in client.partitions_for_topic(_HALF)]
            return {partition.partition: end for partition, end in client.end_offsets(partitions).items()}
