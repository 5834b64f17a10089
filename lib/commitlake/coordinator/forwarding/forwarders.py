"""The forwarding of all topics of `topics.to_kafka`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from commitlake.config import Config
from commitlake.coordinator.forwarding.to_kafka import ToKafka
from commitlake.errors import ConfigError, StreamError
from commitlake.kafka import topics
from commitlake.tables import Warehouse


class Forwarders:
    """Starts the queries that forward topics, and restarts each that ends; a failure of one ends no other."""

    def __init__(self) -> None:
        self._all: list[ToKafka] = []
        self._lock = threading.Lock()
        self._stopped = False

    def start(
        self,
        warehouse: Warehouse,
        config: Config,
        scratch: Callable[[str], str],
        *,
        available_now: bool,
    ) -> None:
        """Start a query for each topic of `topics.to_kafka`; with `available_now` each runs to its end before the next.

        Raises:
            ConfigError: a topic can have no table.
            KafkaError: a Kafka topic is missing and can't be created.
            StreamError: with `available_now`: a query failed. All other queries have run to their end.
        """
        wanted = config.topics.to_kafka
        if not wanted:
            return
        partitions = topics.ensure_targets(config)
        _refuse_unfit(warehouse, wanted)
        warehouse.add_topics(wanted)
        for topic in wanted:  # a column that comes later would end the query that reads the table
            warehouse.ensure_topic(topic)
        self._all = [
            ToKafka(warehouse, config, topic, target, partitions[target], scratch, waits=not available_now)
            for topic, target in wanted.items()
        ]
        if available_now:
            self._finish()
        else:
            self.tick()

    def _finish(self) -> None:
        failed: list[StreamError] = []
        for each in self._all:
            try:
                with self._lock:
                    if self._stopped:
                        return
                    each.start()
                each.finish()
            except StreamError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def tick(self) -> None:
        """Start the queries that do not run, and save the positions of the others."""
        for each in self._all:
            with self._lock:
                if not self._stopped:
                    each.tick()

    def failed(self) -> dict[str, bool]:
        """Whether the forwarding of each topic has failed and waits for its next start."""
        return {each.topic: each.has_failed for each in self._all}

    def stop(self) -> None:
        """End all queries, and save their positions."""
        with self._lock:
            self._stopped = True
        for each in self._all:
            each.stop()


def _refuse_unfit(warehouse: Warehouse, topics: Iterable[str]) -> None:
    known = warehouse.listed_topics()
    unfit = sorted(topic for topic in set(topics) - known if not warehouse.may_hold(topic, known))
    if unfit:
        msg = f"topics.to_kafka: {unfit} can have no tables of their own in {warehouse.root}; take others"
        raise ConfigError(msg)
