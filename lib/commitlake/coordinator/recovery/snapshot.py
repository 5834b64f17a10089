"""The open rows at some time, saved by each run of maintenance, so that a start reads only later rows.

A start that reads all of history takes a minute for 20 million transactions. The saved rows are only the result of that
work. Without them, or with other timings than they were made with, a start does the work again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.config import TransactionConfig
from commitlake.coordinator.coordination.input_rows import INPUT_SCHEMA, REOPENED, stored_rows
from commitlake.coordinator.coordination.unmatched.lookup import LedgerTables
from commitlake.coordinator.landing import positions
from commitlake.kafka.log_ends import Offsets
from commitlake.protocol.states import Kind
from commitlake.tables import Warehouse

_TABLE = "open_rows"
_OF_BATCHES = ("transactions", "deliveries", "reentries")
_HEAD = f"kind = {int(Kind.HEAD)}"


@dataclass(frozen=True)
class SnapshotPosition:
    """A position of a warehouse's tables, at some time.

    Attributes:
        landing_id: the newest complete landing.
        offsets: the next offsets to land.
        batch_id: the newest complete batch.
        rows: the rows that were open then, of `INPUT_SCHEMA`; None at the beginning, when there were none.
    """

    landing_id: int = -1
    offsets: Offsets = field(default_factory=dict)
    batch_id: int = -1
    rows: DataFrame | None = None

    def landed_since(self, rows: DataFrame, source: str, queue: str, offset: str) -> DataFrame:
        """The `rows` whose record of `source`, at the columns `queue` and `offset`, has landed since."""
        if source not in {name for name, _ in self.offsets}:
            return rows
        known = rows.where(positions.at_or_above(self.offsets, source, queue, offset))
        return known.union(rows.where(positions.later_partitions(self.offsets, queue)))

    def had_landed(self, source: str, queue: str, offset: str) -> str:
        """SQL: whether the record of `source` at the columns `queue` and `offset` had landed."""
        own = {number: end for (name, number), end in self.offsets.items() if name == source}
        each = [f"({queue} = {number} AND {offset} < {end})" for number, end in own.items()]
        return f"({' OR '.join(each) or 'false'})"

    def written_since(self) -> str:
        """SQL: whether a batch has written a row since; all records of a complete batch have landed."""
        return f"batch_id > {self.batch_id}"

    def records(self) -> int:
        """How many records had landed at most."""
        return sum(self.offsets.values())

    def count(self) -> int:
        """How many rows were open."""
        return 0 if self.rows is None else self.rows.count()


BEGINNING = SnapshotPosition()


@dataclass(frozen=True)
class Between:
    """Rows of the tables between two positions."""

    warehouse: Warehouse
    since: SnapshotPosition
    until: SnapshotPosition | None

    def landed(self, table: str, queue: str, offset: str, **sources: str) -> DataFrame:
        """The rows whose records have landed between the positions.

        Args:
            table: the table.
            queue: its column of queues.
            offset: its column of offsets.
            sources: by source, SQL: which rows come from it.
        """
        every = self.warehouse.rows(table)
        each = [self._landed(every.where(rows), source, queue, offset) for source, rows in sources.items()]
        return reduce(DataFrame.union, each)

    def _landed(self, rows: DataFrame, *place: str) -> DataFrame:
        early = rows if self.until is None else rows.where(self.until.had_landed(*place))
        return self.since.landed_since(early, *place)

    def written(self, table: str) -> DataFrame:
        """The rows of batches between the positions.

        Rows of a later batch do not count. Such a batch may not be complete, and a backup leaves it out: its
        transactions must then be open in the saved rows.
        """
        return self._early(self.warehouse.rows(table).where(self.since.written_since()))

    def _early(self, rows: DataFrame) -> DataFrame:
        return rows if self.until is None else rows.where(f"batch_id <= {self.until.batch_id}")

    def ledger(self) -> LedgerTables:
        """The tables from which unmatched rows are resolved, without rows of later batches."""
        tables = LedgerTables.of(self.warehouse)
        return replace(tables, **{name: self._early(getattr(tables, name)) for name in _OF_BATCHES})

    def with_saved(self, rows: DataFrame, *kinds: Kind) -> DataFrame:
        """`rows`, and the saved rows of these kinds."""
        if self.since.rows is None:
            return rows
        numbers = ", ".join(str(int(kind)) for kind in kinds)
        return rows.unionByName(self.since.rows.where(f"kind IN ({numbers})"))

    def resumed(self) -> DataFrame:
        """The rows that RESUMEs have opened, of `INPUT_SCHEMA`."""
        return stored_rows(self.written("reentries").where(REOPENED))


def reached(warehouse: Warehouse, since: SnapshotPosition = BEGINNING) -> SnapshotPosition | None:
    """The position of the tables now; None when it is `since`, or a comparison with it would not show all later rows.

    The batch is read first. A batch is complete after the position of the messages it ended, so nothing is open and
    ended at once. The exception is a start: it may complete a batch whose landing was cut short before its position.
    These records land again at once.
    """
    batch_id = warehouse.newest_batch()
    position = positions.newest(warehouse)
    if position is None:
        return None
    at = SnapshotPosition(position.landing_id, position.offsets, batch_id)
    is_new = (at.landing_id, at.batch_id) != (since.landing_id, since.batch_id)
    return at if is_new and not _is_ahead(warehouse, at) else None


def _is_ahead(warehouse: Warehouse, at: SnapshotPosition) -> bool:
    """Whether a complete batch has rows of a record that has not landed."""
    places = [
        ("transactions", "true", "half", "queue", "half_offset"),
        ("checks", "true", "half", "queue", "half_offset"),
        ("deliveries", "source = 'half'", "half", "queue", "queue_offset"),
        ("deliveries", "source = 'messages'", "messages", "queue", "queue_offset"),
        ("reentries", REOPENED, "admin", "op_queue", "op_offset"),
    ]
    found = [
        at.landed_since(warehouse.rows(table).where(f"batch_id <= {at.batch_id} AND {condition}"), *place)
        for table, condition, *place in places
    ]
    return not reduce(DataFrame.union, [rows.select("batch_id") for rows in found]).isEmpty()


def save(warehouse: Warehouse, timing: TransactionConfig, at: SnapshotPosition, rows: DataFrame) -> None:
    """Replaces the saved rows by those that were open at a position, with deadlines by these timings."""
    head = warehouse.spark.sql(f"SELECT {', '.join(_head_column(name) for name in INPUT_SCHEMA.names)}")
    every = rows.select(*INPUT_SCHEMA.names).unionByName(head)
    about: Mapping[str, object] = {"landing_id": at.landing_id, "batch_id": at.batch_id, "timing": _text(timing)}
    warehouse.replace(every.withColumns({name: F.lit(value) for name, value in about.items()}), _TABLE)


def newest(warehouse: Warehouse, timing: TransactionConfig) -> SnapshotPosition:
    """The position from which a start must read; `BEGINNING` when no saved rows can be used."""
    table = warehouse.read(_TABLE, warehouse.version(_TABLE))  # head and rows of one commit: another may come between
    head = table.where(_HEAD).select("landing_id", "batch_id", "timing").collect()
    if len(head) != 1 or head[0]["timing"] != _text(timing):
        return BEGINNING
    position = positions.of_landing(warehouse, head[0]["landing_id"])
    if position is None:
        return BEGINNING
    rows = stored_rows(table.where(f"NOT ({_HEAD})"))
    return SnapshotPosition(position.landing_id, position.offsets, head[0]["batch_id"], rows)


def _text(timing: TransactionConfig) -> str:
    """The values that saved rows depend on; rows of an older version, without refused parts, do not match them."""
    return json.dumps(asdict(timing) | {"batches_after_positions": True, "refused_parts": True}, sort_keys=True)


def _head_column(name: str) -> str:
    kind = INPUT_SCHEMA[name].dataType.simpleString()
    return f"CAST({int(Kind.HEAD) if name == 'kind' else -1} AS {kind}) AS `{name}`"
