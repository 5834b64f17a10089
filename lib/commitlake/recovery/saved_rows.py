"""What was open at some time, saved now and then, so that a start works out only what came since.

A start that reads all of history takes a minute for 20 million transactions. The saved rows are nothing but the result
of that work: without them, or with other timings than they were made with, a start does it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.config import TransactionConfig
from commitlake.coordination.input_rows import INPUT_SCHEMA, stored_rows
from commitlake.landing import positions
from commitlake.landing.positions import Offsets, Position
from commitlake.protocol.states import Kind
from commitlake.tables import Warehouse

_TABLE = "open_rows"
_HEAD = f"kind = {int(Kind.TICK)}"
"""The row that says from when and how the others are; no saved row of a segment has that kind."""


@dataclass(frozen=True)
class Point:
    """A time in the life of a warehouse.

    Attributes:
        landing_id: the newest complete landing.
        offsets: the next offsets to land.
        batch_id: the newest complete batch.
        rows: what was open then, rows of `INPUT_SCHEMA`; None: nothing, since there was nothing.
    """

    landing_id: int = -1
    offsets: Offsets = field(default_factory=dict)
    batch_id: int = -1
    rows: DataFrame | None = None

    def landed_since(self, source: str, queue: str, offset: str) -> str:
        """SQL: whether the record of `source` at the columns `queue` and `offset` has landed since."""
        numbers = self.offsets.get(source, {})
        if not numbers:
            return "true"
        each = [f"({queue} = {number} AND {offset} >= {following})" for number, following in numbers.items()]
        others = f"{queue} NOT IN ({', '.join(map(str, numbers))})"
        return f"({' OR '.join([*each, others])})"

    def written_since(self, source: str, queue: str, offset: str) -> str:
        """SQL: whether a batch has written a row since, or of a record that has landed since.

        A landing's batch may be complete before its position is written.
        """
        if self.batch_id < 0:
            return "true"
        return f"(batch_id > {self.batch_id} OR {self.landed_since(source, queue, offset)})"

    def records(self) -> int:
        """How many records had landed, at most."""
        return Position(self.landing_id, self.offsets).landed()


BEGINNING = Point()


def reached(warehouse: Warehouse) -> Point | None:
    """Where the tables are now, None before the first complete landing.

    The batch is read first: what it ended had landed before, so nothing is open and ended at once.
    """
    batch_id = warehouse.newest_batch()
    position = positions.newest(warehouse)
    if position is None:
        return None
    return Point(position.landing_id, position.offsets, batch_id)


def save(warehouse: Warehouse, timing: TransactionConfig, at: Point, rows: DataFrame) -> None:
    """Replaces the saved rows.

    Args:
        warehouse: the tables.
        timing: the timings by which the deadlines in `rows` were worked out.
        at: where the tables were.
        rows: what was open there.
    """
    head = warehouse.spark.sql(f"SELECT {', '.join(_head_column(name) for name in INPUT_SCHEMA.names)}")
    every = rows.select(*INPUT_SCHEMA.names).unionByName(head)
    about: Mapping[str, object] = {"landing_id": at.landing_id, "batch_id": at.batch_id, "timing": _text(timing)}
    warehouse.replace(every.withColumns({name: F.lit(value) for name, value in about.items()}), _TABLE)


def newest(warehouse: Warehouse, timing: TransactionConfig) -> Point:
    """The point from which a start has to look; `BEGINNING` when no saved rows can be used.

    Args:
        warehouse: the tables.
        timing: the timings of this start.
    """
    table = warehouse.read(_TABLE)
    head = table.where(_HEAD).select("landing_id", "batch_id", "timing").collect()
    if len(head) != 1 or head[0]["timing"] != _text(timing):
        return BEGINNING
    position = positions.of_landing(warehouse, head[0]["landing_id"])
    if position is None:
        return BEGINNING
    rows = stored_rows(table.where(f"NOT ({_HEAD})"))
    return Point(position.landing_id, position.offsets, head[0]["batch_id"], rows)


def _text(timing: TransactionConfig) -> str:
    return json.dumps(asdict(timing), sort_keys=True)


def _head_column(name: str) -> str:
    kind = INPUT_SCHEMA[name].dataType.simpleString()
    return f"CAST({int(Kind.TICK) if name == 'kind' else -1} AS {kind}) AS `{name}`"
