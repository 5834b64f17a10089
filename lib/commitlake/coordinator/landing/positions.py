"""Where landing goes on, as rows: each complete landing appends its next offsets to the table `positions`.

The offsets count all that was read: also records that were left out, and Kafka's own markers. A landing writes its
tables side by side, and its row last. So table rows at or above the newest offsets are of a landing that was cut short.
The first landings after a start leave their records out, by coordinates.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from commitlake.kafka.log_ends import LogEnd, LogEnds, Offsets, Place
from commitlake.protocol import kafka_topics
from commitlake.protocol.clock import as_datetime, now_ms
from commitlake.spark.frames import checkpoint_now, forget_tables
from commitlake.tables import Warehouse, topic_table
from commitlake.tables.commits import written_after

log = logging.getLogger(__name__)

LANDED = ("half", "op", "delayed", "rejected")
"""The tables that landing writes, besides those of topics."""
_PLACES = {
    "half": ("'half'", "queue", "queue_offset"),
    "op": ("IF(admin, 'admin', 'op')", "queue", "op_offset"),
    "delayed": ("'messages'", "queue", "queue_offset"),
    "rejected": ("source", "kafka_partition", "kafka_offset"),
}
"""By table: SQL of the source, partition and offset of its records. All others are topics' tables."""
CONTENT_HASH = "xxhash64(key, value)"
"""SQL; it distinguishes a rejected record from another at its coordinates, since its table has no append time."""
_BY_QUEUE = {"half": ("half",), "op": ("op", "admin"), "delayed": ("messages",)}
"""The tables that are partitioned by queue, with the sources that land there."""
_ONE_PARTITION = "admin"
"""The topic that always has one partition. Its records share the table `op`, so conditions for more partitions would
read files of all queues."""
_AT_ONCE = 50
"""Tables in one plan. A plan of 1 000 tables filled 2 GiB, and a start with so many topics did not finish."""
_AGAIN, _HELD, _EPOCH, _CLEAN = " again", " held", " epoch", " clean"
"""Suffixes of a source's name in the rows, for `LandingPosition.again` and `held`; `clean_id` has no source."""


@dataclass(frozen=True)
class LandingPosition:
    """How far landing has come.

    Attributes:
        landing_id: Grows by one with each landing, over the whole life of the warehouse.
        offsets: The next offset of each partition that has landed anything.
        again: The next offset to read of a log that had lost its end. The offsets from there up to the next one to land
            were used before.
        held: Where the logs ended when Kafka was last asked.
        clean_id: The newest landing after which no table had rows of a cut-short landing; -1 when unknown.
    """

    landing_id: int
    offsets: Offsets
    again: Offsets = field(default_factory=dict)
    held: LogEnds = field(default_factory=dict)
    clean_id: int = -1

    def next(self, source: str, partition: int) -> int:
        """The next offset to land of a partition, 0 when nothing has."""
        return self.offsets.get((source, partition), 0)

    def reads(self, source: str, partition: int) -> int:
        """The next offset to read of a partition."""
        return self.again.get((source, partition), self.next(source, partition))

    def records(self) -> int:
        """How many offsets lie below it: at most so many records have landed."""
        return sum(self.offsets.values())

    def is_past(self, ends: Offsets) -> bool:
        """Whether everything below these offsets has landed."""
        return all(self.next(*place) >= end for place, end in ends.items())

    def with_partitions(self, known: Offsets) -> LandingPosition:
        """The position with an entry for each partition of `known`, at its value there when nothing has landed yet."""
        return replace(self, offsets={**known, **self.offsets})

    def advanced(self, ends: Offsets) -> LandingPosition:
        """The position after a landing that ended before `ends`; never further back: an offset names one message."""
        moved = {place: max(end, self.next(*place)) for place, end in ends.items()}
        after = replace(self, landing_id=self.landing_id + 1, offsets={**self.offsets, **moved})
        again = {place: max(at, ends.get(place, at)) for place, at in self.again.items()}
        return replace(after, again={place: at for place, at in again.items() if at < after.next(*place)})

    def cut(self, source: str, partition: int, end: int) -> LandingPosition:
        """The position for a log that ends at `end`, below the next offset to land; offsets between are used ones."""
        return replace(self, again={**self.again, (source, partition): end})


def newest(warehouse: Warehouse) -> LandingPosition | None:
    """The newest row, None when no landing of this version was ever complete."""
    return _newest(warehouse.read("positions"))


def of_landing(warehouse: Warehouse, landing_id: int) -> LandingPosition | None:
    """The row of a landing, None when it is gone."""
    return _newest(warehouse.read("positions").where(F.col("landing_id") == landing_id))


def _newest(rows: DataFrame) -> LandingPosition | None:
    row = F.max_by(F.struct("landing_id", "offsets"), "landing_id")
    found = rows.agg(row.alias("row")).collect()[0]["row"]
    if found is None:
        return None
    kinds: dict[str, dict[Place, int]] = {"": {}, _AGAIN: {}, _HELD: {}, _EPOCH: {}, _CLEAN: {}}
    for each in found["offsets"]:
        source, space, kind = each["source"].partition(" ")
        kinds[space + kind][source, each["partition"]] = each["next"]
    held = {place: LogEnd(end, kinds[_EPOCH][place]) for place, end in kinds[_HELD].items()}
    return LandingPosition(found["landing_id"], kinds[""], kinds[_AGAIN], held, kinds[_CLEAN].get(("", 0), -1))


def append(warehouse: Warehouse, position: LandingPosition) -> None:
    """Appends the row of a landing whose tables are all written."""
    kinds: dict[str, Offsets] = {
        "": position.offsets,
        _AGAIN: position.again,
        _HELD: {place: end.offset for place, end in position.held.items()},
        _EPOCH: {place: end.epoch for place, end in position.held.items()},
        _CLEAN: {("", 0): position.clean_id},
    }
    offsets = [
        {"source": source + kind, "partition": number, "next": value}
        for kind, places in kinds.items()
        for (source, number), value in places.items()
    ]
    # Without `landed_until`, a column of version 0.2: a stored watermark would keep clock errors, too.
    row = {"landing_id": position.landing_id, "offsets": offsets, "completed_at": as_datetime(now_ms())}
    warehouse.add([row], "positions", {"landing_id": position.landing_id})


class PartialLanding:
    """The records at or above a position that a landing that was cut short has written to tables.

    Attributes:
        coordinates: source, partition and offset of each record, and its append time, or for a rejected one a hash of
            its key and value. By time or hash it differs from a record that gets these coordinates after the log has
            lost its end.
        ends: the offset after the last record of each partition.
    """

    def __init__(self, coordinates: DataFrame, ends: Offsets) -> None:
        self.coordinates, self.ends = coordinates, ends

    def excluded(self, records: DataFrame) -> DataFrame:
        """Rows of Kafka records, without those that stand in a table."""
        return records.join(F.broadcast(self.coordinates), ["source", "partition", "offset"], "left_anti")

    def with_more(self, more: PartialLanding) -> PartialLanding:
        """These records and `more`."""
        ends = {place: max(self.ends.get(place, 0), more.ends.get(place, 0)) for place in {*self.ends, *more.ends}}
        return PartialLanding(self.coordinates.union(more.coordinates), ends)

    def is_passed(self, position: LandingPosition) -> bool:
        """Whether the position is past all of these records."""
        return position.is_past(self.ends)


def uncommitted(warehouse: Warehouse, position: LandingPosition, tables: Sequence[str] = ()) -> PartialLanding | None:
    """The records that a landing that was cut short has written, None when the newest one was complete.

    Args:
        warehouse: the tables.
        position: where landing goes on, with an entry for each partition.
        tables: where to look; by default all.
    """
    tables = tables or [*LANDED, *map(topic_table, warehouse.topics())]
    # Rows above the position were written after the newest clean landing, maybe by several that were cut short.
    later = written_after(warehouse.log, tables, position.clean_id)
    tables = [each for each in later if each not in LANDED or warehouse.has_grown(each)]
    found: list[Row] = []
    holding: list[DataFrame] = []
    for group in (groups := in_groups(tables)):
        some = reduce(DataFrame.unionAll, [above(warehouse, each, position) for each in group])
        rows = highest(some)
        holding += [some] if rows else []
        found += rows
        if len(groups) > 1:
            forget_tables(warehouse.spark)
    if not found:
        return None
    ends = ends_of(found)
    kept = checkpoint_now(reduce(DataFrame.unionAll, holding))
    told = ", ".join(f"{end} of {source}-{number}" for (source, number), end in ends.items())
    log.warning("the newest landing was cut short; the records that it has written are left out: up to %s", told)
    return PartialLanding(kept, ends)


def highest(coordinates: DataFrame) -> list[Row]:
    """The highest offset, `last`, by source and partition."""
    return coordinates.groupBy("source", "partition").agg(F.max("offset").alias("last")).collect()


def ends_of(rows: Iterable[Row]) -> dict[Place, int]:
    """The offset after the highest one of each partition, by the `highest` rows of several tables."""
    ends: dict[Place, int] = {}
    for row in rows:
        place = row["source"], row["partition"]
        ends[place] = max(ends.get(place, 0), row["last"] + 1)
    return ends


def in_groups(tables: Sequence[str]) -> list[Sequence[str]]:
    """The tables in groups, each as large as one plan can have."""
    return [tables[begin:][:_AT_ONCE] for begin in range(0, len(tables), _AT_ONCE)]


def _recognisable(warehouse: Warehouse, table: str) -> DataFrame:
    if table == "rejected":
        return coordinates(warehouse, table, "CAST(NULL AS TIMESTAMP) AS appended_at", f"{CONTENT_HASH} AS content")
    return coordinates(warehouse, table, "stored_at AS appended_at", "CAST(NULL AS BIGINT) AS content")


def coordinates(warehouse: Warehouse, table: str, *more: str) -> DataFrame:
    """Source, partition and offset of the Kafka records that a table holds; and `more` of its columns, as SQL."""
    rows = warehouse.rows(table)
    rows = rows if table in _PLACES else rows.where("source = 'messages'")
    source, queue, offset = _PLACES.get(table, ("'messages'", "source_queue", "source_offset"))
    return rows.selectExpr(f"{source} AS source", f"{queue} AS partition", f"{offset} AS offset", *more)


def above(warehouse: Warehouse, table: str, position: LandingPosition) -> DataFrame:
    """The records of a table at or above a position; a file whose highest offset is below it is not read."""
    rows, later = _recognisable(warehouse, table), later_partitions(position.offsets)
    sources = _BY_QUEUE.get(table, kafka_topics.LANDED if table == "rejected" else ("messages",))
    known = [f"(source = '{name}' AND {at_or_above(position.offsets, name)})" for name in sources]
    scans = [*known, later] if table in _BY_QUEUE else [" OR ".join([*known, later])]
    return reduce(DataFrame.unionAll, map(rows.where, scans))


def at_or_above(offsets: Offsets, source: str, queue: str = "partition", offset: str = "offset") -> str:
    """SQL: whether a record of `source` is at or above its offsets, in a partition that is not one of the later ones.

    Args:
        offsets: a position; in a partition without an entry every record is above it.
        source: the source of the record.
        queue: the column of the partition.
        offset: the column of the offset.
    """
    count = _last(offsets) + 1
    if source == _ONE_PARTITION:
        count = min(count, 1)
    each = [f"({queue} = {at} AND {offset} >= {offsets.get((source, at), 0)})" for at in range(count)]
    return f"({' OR '.join(each) or 'false'})"


def later_partitions(offsets: Offsets, queue: str = "partition") -> str:
    """SQL: whether a partition is newer than these offsets: in them no source has one with so high a number.

    A table that is partitioned by queue gets a scan of its own for this condition, which prunes the table. Together
    with offsets in one condition, it keeps Delta from skipping any file: 20 million ops took 8 s of a start.
    """
    return f"{queue} > {_last(offsets)}"


def _last(offsets: Offsets) -> int:
    return max((number for _, number in offsets), default=-1)
