"""All topics of a coordinator that go to Kafka as well."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.config import Config
from commitlake.coordinator.forwarding.to_kafka import ToKafka
from commitlake.errors import CommitLakeError
from commitlake.kafka import topics
from commitlake.protocol.topic_names import path_name
from commitlake.tables import Warehouse

log = logging.getLogger(__name__)


class Forwarders:
    """Starts what forwards topics, and saves how far it came."""

    def __init__(self) -> None:
        self._all: list[ToKafka] = []

    def start(
        self,
        warehouse: Warehouse,
        config: Config,
        scratch: Callable[[str], str],
        keep: Callable[[StreamingQuery], StreamingQuery],
        *,
        available_now: bool,
    ) -> None:
        """Start a query for each topic of `topics.to_kafka`; with `available_now` one after the other, until it ends.

        Args:
            warehouse: the tables.
            config: the configuration.
            scratch: makes the checkpoint of a query.
            keep: is told of each query, before it is waited for.
            available_now: send what is there, then end.

        Raises:
            KafkaError: a Kafka topic is not there and can't be created.
            StreamError: a query can't start, or failed.
        """
        wanted = config.topics.to_kafka
        if not wanted:
            return
        partitions = topics.ensure_targets(config)
        warehouse.add_topics(wanted)
        for topic, target in wanted.items():
            forwarder = ToKafka(warehouse, config, topic, target, partitions[target])
            self._all.append(forwarder)
            query = keep(forwarder.start(scratch(f"to-kafka/{path_name(topic)}"), available_now=available_now))
            if available_now:
                forwarder.finish(query)

    def save_at_times(self) -> None:
        """Save how far they came, when that was not done for a while."""
        for each in self._all:
            _quietly(each.save_at_times)

    def save(self) -> None:
        """Save how far they came."""
        for each in self._all:
            _quietly(each.save)

    def failures(self) -> dict[str, Exception | None]:
        """What ended each query, by its name."""
        return {each.name: each.failure for each in self._all}


def _quietly(save: Callable[[], None]) -> None:
    """Without it the messages of the last seconds go to Kafka once more."""
    try:
        save()
    except (CommitLakeError, PySparkException) as error:
        log.debug("saving how far the messages went to Kafka: %s", error)
