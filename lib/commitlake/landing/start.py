"""Where landing goes on at a start, and whether Kafka still holds what has not landed yet."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.errors import IdentityError
from commitlake.kafka.admin_client import connect
from commitlake.kafka.topics import beginning_offsets, latest_offsets
from commitlake.landing import kafka_identity, positions
from commitlake.landing.judge import SOURCES
from commitlake.landing.positions import Offsets, Position
from commitlake.tables import Warehouse, topic_table

log = logging.getLogger(__name__)


class Begin(NamedTuple):
    """Where landing goes on.

    Attributes:
        position: The next offset to land of each partition.
        offsets: Where reading begins.
        ends: What Kafka held when this was worked out.
        floors: Offsets below which records are left out: they were used before, and a coordinate is of one message.
    """

    position: Position
    offsets: Offsets
    ends: Offsets
    floors: Offsets


class Reached(NamedTuple):
    """How far landing has come, and whether a row of `positions` says so."""

    position: Position
    is_recorded: bool


NOTHING = Reached(Position(0, {}), is_recorded=False)
"""Of a new warehouse."""


def reached(warehouse: Warehouse, config: Config) -> Reached:
    """How far landing has come, as the tables show: also those of an older version, which had no `positions`."""
    recorded = positions.newest(warehouse)
    if recorded is not None:
        return Reached(recorded, is_recorded=True)
    return Reached(_of_older_version(warehouse, config.kafka.topic_prefix), is_recorded=False)


def begin(warehouse: Warehouse, config: Config, come: Reached) -> Begin:
    """Compares the position with what Kafka holds, and records it where no row of `positions` does.

    Without that row, what the first landing has written before it was cut short would look like all that has landed.

    Args:
        warehouse: remembers where the logs began at its first start.
        config: says where Kafka is, and what is accepted.
        come: how far landing has come.

    Raises:
        IdentityError: Kafka no longer holds all that has not landed, or a log ends below the next offset to land.
        KafkaError: Kafka is out of reach.
    """
    first, last = _by_source(beginning_offsets(config, SOURCES), config), ends(config, SOURCES)
    begins = kafka_identity.remember(warehouse, config, first)
    known = come.position.with_partitions(
        {
            source: {number: begins.get(source, {}).get(number, 0) for number in numbers}
            for source, numbers in first.items()
        }
    )
    offsets = {source: {number: known.next(source, number) for number in numbers} for source, numbers in first.items()}
    floors: dict[str, dict[int, int]] = {}
    for source, numbers in first.items():
        for number, oldest in numbers.items():
            following = known.next(source, number)
            place = f"{config.kafka.topic(source)}, partition {number}"
            if following < oldest:
                _lost(
                    f"{place} begins at offset {oldest}, but {following} is the next to land", following, oldest, config
                )
                offsets[source][number] = oldest
                known = known.advanced({source: {number: oldest}})
            elif last[source][number] < following:
                end = last[source][number]
                _lost(f"{place} ends at offset {end}, but {following} is the next to land", end, following, config)
                offsets[source][number] = end
                floors.setdefault(source, {})[number] = following
    if not come.is_recorded:
        positions.append(warehouse, known)
    return Begin(known, offsets, last, floors)


def ends(config: Config, sources: Iterable[str]) -> dict[str, dict[int, int]]:
    """The next offset that each partition of Kafka topics gets, by source.

    Raises:
        KafkaError: Kafka is out of reach, or does not know one of them.
    """
    with connect(config) as client:
        return latest_offsets(client, config, sources)


def _lost(what: str, low: int, high: int, config: Config) -> None:
    """An end below the next offset: an unclean leader election or a restored broker; its offsets come a second time."""
    if not config.accept.lost_range:
        msg = (
            f"{what}: records at the offsets {low} to {high - 1} are lost; check that this is the right Kafka, or set "
            "accept.lost_range to go on without them"
        )
        raise IdentityError(msg)
    log.warning("%s: going on without the offsets %d to %d", what, low, high - 1)


def _by_source(offsets: dict[str, dict[int, int]], config: Config) -> dict[str, dict[int, int]]:
    return {topic.removeprefix(config.kafka.topic_prefix): numbers for topic, numbers in offsets.items()}


_COMMITS = 1_000
"""How far back the marker of a landing is looked for: version 0.1 wrote it again when it was 20 commits back."""


def _of_older_version(warehouse: Warehouse, prefix: str) -> Position:
    """Version 0.1 kept offsets in the markers of its commits to `op`.

    The newest landing may have been cut short, so landing goes on at its begin, and what it has written is left out.
    """
    for marker in warehouse.markers("op", _COMMITS):
        if "landing_id" in marker and "tables" in marker:
            offsets = {
                topic.removeprefix(prefix): {int(number): offset for number, offset in numbers.items()}
                for topic, numbers in marker["from"].items()
            }
            return Position(marker["landing_id"], offsets)
    return _by_tables(warehouse)


def _by_tables(warehouse: Warehouse) -> Position:
    """The highest offsets that stand in the tables, for a warehouse without markers, which may be a new one."""
    offsets: dict[str, dict[int, int]] = {}
    for table in ["op", "half", "delayed", "rejected", *map(topic_table, warehouse.topics())]:
        ends = positions.coordinates(warehouse, table).groupBy("source", "partition").agg(F.max("offset").alias("last"))
        for row in ends.collect():
            numbers = offsets.setdefault(row["source"], {})
            numbers[row["partition"]] = max(numbers.get(row["partition"], 0), row["last"] + 1)
    return Position(0, offsets)
