"""Landing without a coordinator, and landings that are cut short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from commitlake.config import Config
from commitlake.landing.query import Landing
from commitlake.tables import Warehouse


class Cut(Exception):
    """Ends a landing in the middle."""


CUT_SHORT = (Cut, StreamingQueryException)
"""How that shows: by itself from the start's recovery, inside Spark's exception from the query."""


def land(spark: SparkSession, config: Config, warehouse: Warehouse) -> Landing:
    """Lands what is there."""
    landing = Landing(spark, config, warehouse)
    landing.start(available_now=True).awaitTermination()
    return landing


def cut_at(warehouse: Warehouse, commit: int) -> Warehouse:
    """A second warehouse on the same tables that fails instead of its `commit`-th append."""
    broken = Warehouse(warehouse.spark, warehouse.root)
    seen = iter(range(1, 1_000))

    def failing(write: Callable[..., None]) -> Callable[..., None]:
        def instead(*args: Any, **options: Any) -> None:
            if next(seen) >= commit:
                raise Cut
            write(*args, **options)

        return instead

    broken.append = failing(broken.append)  # type: ignore[method-assign]
    broken.append_topic = failing(broken.append_topic)  # type: ignore[method-assign]
    return broken
