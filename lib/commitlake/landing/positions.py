"""How a start finds out how far landing came, and what a landing that was cut short left out.

A landing writes several tables, one commit each. The first, to `op`, carries the intent: its offsets and the tables
it is going to write. The others carry the landing's id. So a start reads the newest intent; when all its tables have
that id nothing is left to do, and Kafka is not asked. Else the records of its range that stand in none of its tables
are landed, under a new id: the tables tell what has landed, not the rules, so a changed configuration does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.errors import IdentityError
from commitlake.tables import Warehouse

log = logging.getLogger(__name__)

Offsets = dict[str, dict[int, int]]
"""By full name of the Kafka topic and number of the partition, an offset; as an end, the next one to land."""
Spans = dict[str, dict[int, tuple[int, int]]]
"""As `Offsets`, from (inclusive) and until (exclusive)."""

OP, HALF, DELAYED, REJECTED = "op", "half", "delayed", "rejected"
_TOPIC = "topics/"
# Coordination and maintenance commit to the same tables, so landing's newest commit may be some commits back.
_NEAR, _FAR = 20, 1_000


def topic_table(topic: str) -> str:
    """Name of a topic's table in an intent."""
    return _TOPIC + topic


def topic_of(table: str) -> str | None:
    """Topic of a table named in an intent, None for a fixed table."""
    return table.removeprefix(_TOPIC) if table.startswith(_TOPIC) else None


@dataclass(frozen=True)
class Intent:
    """What one landing set out to do.

    Attributes:
        landing_id: Grows by one with each landing, over the whole life of the warehouse.
        since: Its first offset of each partition.
        until: The next offset after it.
        tables: The tables it writes: names of fixed ones, `topics/<topic>`.
        earlier: Tables that may hold records of its range since an earlier try.
    """

    landing_id: int
    since: Offsets
    until: Offsets
    tables: tuple[str, ...]
    earlier: tuple[str, ...] = ()

    def marker(self) -> dict[str, Any]:
        """Marker of every commit of the landing."""
        return {"landing_id": self.landing_id, "from": self.since, "until": self.until}

    def plan(self) -> dict[str, Any]:
        """Marker of its first commit, that to `op`, which tells a start what is to be finished."""
        return {**self.marker(), "tables": self.tables, "earlier": self.earlier}

    def again(self, landing_id: int, tables: Iterable[str]) -> Intent:
        """The same range tried again, as another landing."""
        earlier = {*self.tables, *self.earlier}
        return replace(self, landing_id=landing_id, tables=tuple(sorted(tables)), earlier=tuple(sorted(earlier)))


def newest(warehouse: Warehouse) -> Intent | None:
    """The intent of the newest landing, None when no marker is left or nothing has ever landed."""
    return _newest_within(warehouse, _NEAR) or _newest_within(warehouse, _FAR)


def renewed(warehouse: Warehouse) -> Intent | None:
    """The newest intent; where it is some commits back it is said once more, since Delta drops the log of old commits.

    Only for the one that lands, while it lands nothing: an older intent above a newer one would be taken for it.
    """
    near = _newest_within(warehouse, _NEAR)
    if near is not None:
        return near
    far = _newest_within(warehouse, _FAR)
    if far is not None:
        warehouse.append(warehouse.read(OP).limit(0), OP, far.plan())
    return far


def _newest_within(warehouse: Warehouse, commits: int) -> Intent | None:
    for marker in warehouse.markers(OP, commits):
        if "landing_id" in marker and "tables" in marker:
            since, until = _offsets(marker["from"]), _offsets(marker["until"])
            return Intent(marker["landing_id"], since, until, tuple(marker["tables"]), tuple(marker["earlier"]))
    return None


def is_complete(warehouse: Warehouse, intent: Intent) -> bool:
    """Whether the landing has written all its tables, as far as their markers tell."""
    return all(_has_landed(_markers_of(warehouse, table), intent.landing_id) for table in intent.tables if table != OP)


def spans(intent: Intent, oldest: Offsets, config: Config) -> Spans:
    """The landing's range, without partitions that it has no records of.

    Raises:
        IdentityError: Kafka no longer holds all of it.
    """
    found: Spans = {}
    for topic, ends in intent.until.items():
        for number, end in ends.items():
            begin, kept = intent.since.get(topic, {}).get(number, 0), oldest.get(topic, {}).get(number, 0)
            if begin < kept and begin < end and not config.accept.lost_range:
                msg = (
                    f"landing {intent.landing_id} was cut short, and {topic} no longer holds its offsets {begin} to "
                    f"{min(kept, end) - 1} of partition {number}; set accept.lost_range to go on without them"
                )
                raise IdentityError(msg)
            if max(begin, kept) < end:
                found.setdefault(topic, {})[number] = (max(begin, kept), end)
    return found


def without_landed(warehouse: Warehouse, raw: DataFrame, intent: Intent, within: Spans, prefix: str) -> DataFrame:
    """Kafka records `raw` that stand in none of the landing's tables."""
    wanted = _in_spans({topic.removeprefix(prefix): numbers for topic, numbers in within.items()})
    tables = sorted({*intent.tables, *intent.earlier})
    present = reduce(DataFrame.unionAll, [_coordinates(warehouse, table).where(wanted) for table in tables])
    source = F.substring(raw["topic"], len(prefix) + 1, 100)
    same = (
        (source == present["source"])
        & (raw["partition"] == present["kafka_partition"])
        & (raw["offset"] == present["kafka_offset"])
    )
    return raw.join(present, same, "left_anti")


def offsets_in_tables(warehouse: Warehouse, full_name: Callable[[str], str]) -> Offsets:
    """The next offsets by what stands in the tables, for a warehouse whose markers are gone."""
    if warehouse.version(OP) == 0:
        return {}
    tables = [OP, HALF, DELAYED, REJECTED, *map(topic_table, warehouse.topics())]
    present = reduce(DataFrame.unionAll, [_coordinates(warehouse, table) for table in tables])
    found: Offsets = {}
    ends = present.groupBy("source", "kafka_partition").agg((F.max("kafka_offset") + 1).alias("end"))
    for row in ends.collect():
        found.setdefault(full_name(row["source"]), {})[row["kafka_partition"]] = row["end"]
    if found:
        log.warning("no marker of a landing is left in the history of the table op; took the tables' highest offsets")
    return found


def _coordinates(warehouse: Warehouse, table: str) -> DataFrame:
    """Source, partition and offset of the Kafka records that a table holds."""
    topic = topic_of(table)
    if topic is not None:
        landed = warehouse.read_topic(topic).where(F.col("source") == "messages")
        return _named(landed, F.col("source"), "source_queue", "source_offset")
    rows = warehouse.read(table)
    if table == OP:
        return _named(rows, F.when(F.col("admin"), "admin").otherwise("op"), "queue", "op_offset")
    if table == REJECTED:
        return _named(rows, F.col("source"), "kafka_partition", "kafka_offset")
    return _named(rows, F.lit("half" if table == HALF else "messages"), "queue", "queue_offset")


def _named(rows: DataFrame, source: Column, partition: str, offset: str) -> DataFrame:
    return rows.select(
        source.alias("source"), F.col(partition).alias("kafka_partition"), F.col(offset).alias("kafka_offset")
    )


def _in_spans(within: Spans) -> Column:
    wanted = F.lit(False)
    for source, numbers in within.items():
        for number, (begin, end) in numbers.items():
            here = (F.col("source") == source) & (F.col("kafka_partition") == number)
            wanted |= here & F.col("kafka_offset").between(begin, end - 1)
    return wanted


def _markers_of(warehouse: Warehouse, table: str) -> Callable[[int], list[dict[str, Any]]]:
    topic = topic_of(table)
    if topic is None:
        return lambda limit: warehouse.markers(table, limit)
    return lambda limit: warehouse.topic_markers(topic, limit)


def _has_landed(markers: Callable[[int], list[dict[str, Any]]], landing_id: int) -> bool:
    return any(marker.get("landing_id") == landing_id for limit in (_NEAR, _FAR) for marker in markers(limit))


def _offsets(parsed: dict[str, dict[str, int]]) -> Offsets:
    """JSON has only text as keys."""
    return {topic: {int(number): offset for number, offset in numbers.items()} for topic, numbers in parsed.items()}
