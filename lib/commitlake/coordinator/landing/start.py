"""Where landing goes on at a start, and whether Kafka still holds what has not landed yet."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kafka import KafkaAdminClient

from commitlake.config import Config
from commitlake.coordinator.landing import kafka_identity, positions
from commitlake.coordinator.landing.classify import SOURCES
from commitlake.coordinator.landing.positions import LandingPosition, Offsets
from commitlake.errors import IdentityError, KafkaError
from commitlake.kafka.admin_client import CONNECT_TIMEOUT_MS, connect
from commitlake.kafka.held_back import HeldBack, held_back
from commitlake.kafka.log_ends import LogEnds, Place, cuts, deposed
from commitlake.kafka.oldest import oldest_ms
from commitlake.kafka.topics import earliest_offsets, latest_offsets, log_ends
from commitlake.tables import Warehouse, topic_table

log = logging.getLogger(__name__)

_SUCCESSORS_S, _LOOK_S = 30.0, 1.0


class Begin(NamedTuple):
    """Where landing goes on.

    Attributes:
        position: The next offset to land of each partition.
        offsets: Where reading begins.
        ends: What Kafka held when this was worked out.
        stable: What can be read of that beside Kafka transactions that are open; the same where none is.
        stable_ms: All that Kafka had stored until then lies below (ms since epoch, UTC); None where none is open.
    """

    position: LandingPosition
    offsets: Offsets
    ends: Offsets
    stable: Offsets
    stable_ms: int | None


class Reached(NamedTuple):
    """How far landing has come, and whether a row of `positions` says so."""

    position: LandingPosition
    is_recorded: bool


NOTHING = Reached(LandingPosition(0, {}), is_recorded=False)
"""Of a new warehouse."""


def reached(warehouse: Warehouse, config: Config) -> Reached:
    """How far landing has come, as the tables show: also those of an older version, which had no `positions`.

    Raises:
        WarehouseError: the tables are a copy of different moments.
    """
    warehouse.must_be_of_one_moment()
    recorded = positions.newest(warehouse)
    if recorded is not None:
        return Reached(recorded, is_recorded=True)
    return Reached(_of_older_version(warehouse, config), is_recorded=False)


def begin(warehouse: Warehouse, config: Config, resume_point: Reached, others: Collection[str] = ()) -> Begin:
    """Compares the position with what Kafka holds, and records it where no row of `positions` does.

    Without that row, what the first landing has written before it was cut short would look like all that has landed,
    and the next start would not know where a log ended when that was accepted.

    Args:
        warehouse: remembers where the logs began at its first start.
        config: says where Kafka is, and what is accepted.
        resume_point: how far landing has come.
        others: sources whose topics are others than before, as accepted; their leaders have epochs of their own.

    Raises:
        IdentityError: Kafka no longer holds all that has not landed, or a log ends below the next offset to land.
        KafkaError: Kafka is out of reach.
    """
    comparable = {source: ends for source, ends in resume_point.position.held.items() if source not in others}
    with connect(config) as client:
        held = _of_leaders(client, config, comparable)
        first = earliest_offsets(client, config, SOURCES)
        cut = cuts(client, config, comparable, held)
        waiting = held_back(client, config, held)
    if any(first[source].keys() != held[source].keys() for source in SOURCES):  # asked of two brokers
        msg = f"the brokers of Kafka at {config.kafka.bootstrap_servers} tell different partitions; start again"
        raise KafkaError(msg)
    earlier = deposed(comparable, held)
    last = {source: {number: end.offset for number, end in numbers.items()} for source, numbers in held.items()}
    begins = kafka_identity.begins(warehouse, config, first)
    before = resume_point.position.with_partitions(
        {
            source: {number: begins.get(source, {}).get(number, 0) for number in numbers}
            for source, numbers in first.items()
        }
    )
    kept = _kept(last, cut)
    known = replace(_with_uncommitted(warehouse, before, kept), held=held)
    for source, numbers in kept.items():
        for number, low in numbers.items():
            log_now = (first[source][number], last[source][number], low)
            known = _compared(known, source, number, log_now, config)
    _refuse_earlier(earlier, config)
    _check_open(waiting, known, config)
    _warn_of_lost(known, cut, config)
    is_new = bool(others or earlier) or (known.offsets, known.again) != (before.offsets, before.again)
    if is_new:
        known = replace(known, landing_id=max(known.landing_id, resume_point.position.landing_id + 1))
    if is_new or not resume_point.is_recorded:
        positions.append(warehouse, known)
    kafka_identity.remember(warehouse, config, begins)  # after the epochs of its leaders, which tell a cut log
    offsets = {source: {number: known.reads(source, number) for number in numbers} for source, numbers in first.items()}
    return Begin(known, offsets, last, *_stable(waiting, last, config))


def _of_leaders(client: KafkaAdminClient, config: Config, known: LogEnds) -> LogEnds:
    """Where the logs end; one who led before, as after an outage, hears within seconds that another leads now."""
    until = time.monotonic() + _SUCCESSORS_S
    while deposed(known, held := log_ends(client, config, SOURCES)):
        if config.accept.lost_range or time.monotonic() > until:
            break
        time.sleep(_LOOK_S)
    return held


def _stable(waiting: Mapping[Place, HeldBack], last: Offsets, config: Config) -> tuple[Offsets, int | None]:
    """Where one is open whenever a start looks, what was due before would never be, if only `last` counted."""
    held = {place: each.offset for place, each in waiting.items()}
    stable = {
        source: {number: held.get((source, number), end) for number, end in numbers.items()}
        for source, numbers in last.items()
    }
    oldest = oldest_ms(config, held)
    return stable, None if oldest is None else oldest - 1


def _check_open(waiting: Mapping[Place, HeldBack], known: LandingPosition, config: Config) -> None:
    """Spark takes an end below where it begins for lost data; what was landed uncommitted may lie above that."""
    for (source, number), (offset, records) in waiting.items():
        what = f"{config.kafka.topic(source)}-{number} has a Kafka transaction that is open since offset {offset}"
        if offset < known.reads(source, number):
            msg = (
                f"{what}, but {known.reads(source, number)} is the next to read, as uncommitted records landed; "
                "start again when it has ended, or set kafka.options.isolation.level: read_uncommitted until then"
            )
            raise KafkaError(msg)
        log.warning("%s, with %d records that wait for its end", what, records)


def _refuse_earlier(places: Sequence[Place], config: Config) -> None:
    """A leader of before may have less than landed, and a broker that was restored may have grown past that again."""
    if not places:
        return
    names = ", ".join(f"{config.kafka.topic(source)}-{number}" for source, number in places)
    msg = f"brokers that led earlier than those of the last landing have answered for {names}"
    if not config.accept.lost_range:
        msg += (
            ": start again in a minute, when they know of their successors; or Kafka was restored: set "
            "accept.lost_range to go on at the next offsets to land, without what took the offsets below them since"
        )
        raise IdentityError(msg)
    log.warning("%s: going on at the next offsets to land", msg)


def _warn_of_lost(known: LandingPosition, cut: Offsets, config: Config) -> None:
    """Tells where a log has lost what had not landed: nothing here is wrong, but its producers were told it is safe."""
    for source, numbers in cut.items():
        for number, low in numbers.items():
            if low >= known.reads(source, number):
                place = f"{config.kafka.topic(source)}, partition {number}"
                log.warning("%s has lost records that it had acknowledged, from offset %d on", place, low)


def _kept(last: Offsets, cut: Offsets) -> Offsets:
    """Up to where each log has what it had when it was read; up to its end where it was not cut."""
    return {
        source: {number: min(end, cut.get(source, {}).get(number, end)) for number, end in numbers.items()}
        for source, numbers in last.items()
    }


def _with_uncommitted(warehouse: Warehouse, known: LandingPosition, kept: Offsets) -> LandingPosition:
    """Counts what a landing that was cut short has written to the offsets used, where a log has lost its end."""
    short = [(source, at) for source, lows in kept.items() for at, low in lows.items() if low < known.reads(source, at)]
    uncommitted = positions.uncommitted(warehouse, known) if short else None
    if uncommitted is not None:
        for source, at in short:
            known = known.advanced({source: {at: uncommitted.end(source, at)}})
    return known


def _compared(
    known: LandingPosition, source: str, number: int, held: tuple[int, int, int], config: Config
) -> LandingPosition:
    """The position after a look at what Kafka holds of one partition.

    That is from its oldest offset up to its end. From the third number on it is not what was there before.
    """
    oldest, end, kept = held
    at = known.reads(source, number)
    place = f"{config.kafka.topic(source)}, partition {number}"
    following = f"{at} {'is the next to land' if at == known.next(source, number) else 'is the next to read'}"
    if at < oldest:
        _lost(f"{place} begins at offset {oldest}, but {following}", at, oldest, config)
        return known.advanced({source: {number: oldest}})
    if kept < at:
        grown = f" (it has lost its end from {kept} on, and grown again)" if kept < end else ""
        _lost(f"{place} ends at offset {end}{grown}, but {following}", kept, at, config)
        return known.cut(source, number, max(oldest, kept))
    return known


def ends(config: Config, sources: Iterable[str], timeout_ms: int = CONNECT_TIMEOUT_MS) -> dict[str, dict[int, int]]:
    """The next offset that each partition of Kafka topics gets, by source.

    Raises:
        KafkaError: Kafka is out of reach for `timeout_ms`, or does not know one of them.
    """
    with connect(config, timeout_ms) as client:
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


_COMMITS = 1_000
"""How far back the marker of a landing is looked for: version 0.1 wrote it again when it was 20 commits back."""


def _of_older_version(warehouse: Warehouse, config: Config) -> LandingPosition:
    """Version 0.1 kept offsets in the markers of its commits to `op`.

    The newest landing may have been cut short, so landing goes on at its begin, and what it has written is left out.
    """
    for marker in warehouse.markers("op", _COMMITS):
        if "landing_id" in marker and "tables" in marker:
            offsets = {
                kafka_identity.source(topic): {int(number): offset for number, offset in numbers.items()}
                for topic, numbers in marker["from"].items()
            }
            return LandingPosition(marker["landing_id"], offsets)
    return _by_tables(warehouse)


def _by_tables(warehouse: Warehouse) -> LandingPosition:
    """The highest offsets that stand in the tables, for a warehouse without markers, which may be a new one."""
    tables = [*positions.LANDED, *map(topic_table, warehouse.topics())]
    rows = [row for table in tables for row in positions.highest(positions.coordinates(warehouse, table))]
    return LandingPosition(0, positions.ends_of(rows))
