"""The destination topics: new ones are admitted while there is room, in the order of their first records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.coordinator.landing import classify
from commitlake.tables import Warehouse


class Topics:
    """The topics that have a table.

    Args:
        warehouse: the tables.
        most: `topics.max`.
        on_new: called with all topics after new ones were admitted.
    """

    def __init__(self, warehouse: Warehouse, most: int, on_new: Callable[[set[str]], object]) -> None:
        self._warehouse, self._most, self._on_new = warehouse, most, on_new
        listed = warehouse.listed_topics()
        self._names = listed or warehouse.found_topics()
        warehouse.add_topics(self._names - listed)

    @property
    def names(self) -> set[str]:
        """The names of all topics that have a table."""
        return set(self._names)

    def admit(self, classified: DataFrame) -> None:
        """Creates the tables of new topics, until there are `topics.max`."""
        room = max(0, self._most - len(self._names))
        named = classified.where(
            ~F.col("target").isin(classify.OP, classify.REJECTED) & ~F.col("topic").isin(*self._names)
        )
        first = named.groupBy("topic").agg(F.min("stored_at").alias("first_stored")).orderBy("first_stored", "topic")
        found = [row["topic"] for row in first.limit(2 * room).collect()]
        new = [topic for topic in found if self._warehouse.may_hold(topic)][:room]
        # Two names that differ only in case may share a place, which shows only when the first one has its table.
        places = Counter(topic.lower() for topic in self._names.union(new))
        twins = [topic for topic in new if places[topic.lower()] > 1]
        self._add([topic for topic in new if topic not in twins])
        for topic in twins:
            self._add([topic] if self._warehouse.may_hold(topic, self._names) else [])
        if self._names.intersection(new):
            self._on_new(self.names)

    def _add(self, topics: Collection[str]) -> None:
        self._warehouse.add_topics(topics)
        self._names.update(topics)
