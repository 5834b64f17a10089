"""Rows of a topic with a schema, appended as landings and batches append them, but without either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import functions as F
from tests.support import tables

from commitlake import config
from commitlake.spark.frames import of_rows
from commitlake.tables import Warehouse, topic_table
from commitlake.tables.schemas import TOPIC
from commitlake.tables.typed_topics import prepare


def prepared(warehouse: Warehouse, **schema: Any) -> Warehouse:
    """The tables, to which the topic `orders` gets rows with such a schema from now on."""
    warehouse.values = prepare(warehouse, config.from_mapping({"topics.schemas": {"orders": schema}}).topics.schemas)
    return warehouse


def appended(warehouse: Warehouse, *groups: list[bytes], few: bool = True) -> str:
    """A commit for each group of bodies, in one queue; returns where the table is."""
    for group in groups:
        rows = [{"queue_id": 0, "body": body, "source": "half", "source_offset": n} for n, body in enumerate(group)]
        frame = of_rows(warehouse.spark, rows, TOPIC.schema).coalesce(1).withColumn("topic", F.lit("orders"))
        warehouse.append_to_topics(frame, ["orders"], {}, few=few)
    return warehouse.locate(topic_table("orders"))


def values(place: str) -> list[tuple[Any, str | None]]:
    """Value and error of each row, in the order of its commit."""
    found = tables.rows(Path(place).parents[1], f"topics/{Path(place).name}")
    return [(row["value"], row["value_error"]) for row in sorted(found, key=lambda row: int(row["source_offset"]))]
