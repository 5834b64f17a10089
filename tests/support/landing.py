"""Landing without a coordinator, and landings that are cut short."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from commitlake.config import Config
from commitlake.coordinator.dedup.dedup_index import DedupIndex
from commitlake.coordinator.landing import kafka_identity, positions, query, start
from commitlake.coordinator.landing.land import Landing
from commitlake.coordinator.landing.ordinary import Classification
from commitlake.coordinator.landing.topic_admission import Topics
from commitlake.protocol.clock import BrokerClock
from commitlake.spark.parallel import run_all
from commitlake.tables import Warehouse


class Cut(Exception):
    """Ends a landing in the middle."""


CUT_SHORT = (Cut, StreamingQueryException)
"""How that shows: by itself, or inside Spark's exception from the query."""


def begin(config: Config, warehouse: Warehouse) -> start.Begin:
    """The first steps of a start: where landing goes on."""
    reached = start.reached(warehouse, config)
    kafka = kafka_identity.remembered(warehouse)
    others = kafka_identity.check(warehouse, config, kafka, reached.position)
    return start.begin(warehouse, config, reached, kafka, others)


def land(spark: SparkSession, config: Config, warehouse: Warehouse, *, looks: bool = True) -> Landing:
    """Lands what is there; one that does not look finds nothing left over by a landing that was cut short."""
    begun, clock = begin(config, warehouse), BrokerClock()
    topics = Topics(warehouse, config.topics.max, lambda _: None)
    uncommitted = positions.uncommitted(warehouse, begun.position) if looks else None
    once, classification = DedupIndex(warehouse, config.topics.dedup, clock), Classification.of(config)
    landing = Landing(warehouse, config, classification, topics, once, begun.position, clock, uncommitted)

    place = f"{config.scratch}/landing/{uuid.uuid4()}"

    def write(raw: DataFrame, batch_id: int) -> None:
        landed = landing.classify(raw, query.ends_of(spark, config, place, batch_id))
        run_all(spark, landing.writes(landed))
        landing.complete(landed)
        landed.release()

    query.start(spark, config, begun.offsets, write, place, available_now=True).awaitTermination()
    return landing


def cut_at(warehouse: Warehouse, commit: int) -> Warehouse:
    """A second warehouse on the same tables that fails instead of its `commit`-th append, and after it."""
    broken = Warehouse(warehouse.spark, warehouse.root)
    seen = iter(range(1, 1_000))

    def failing(write: Callable[..., None]) -> Callable[..., None]:
        def instead(*args: Any, **options: Any) -> None:
            if next(seen) >= commit:
                raise Cut
            write(*args, **options)

        return instead

    broken.append = failing(broken.append)  # type: ignore[method-assign]
    return broken
