"""Where landing goes on at a start, and whether Kafka still holds the records that have not landed yet."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kafka import KafkaAdminClient

from commitlake.config import Config
from commitlake.coordinator.landing import kafka_identity, positions
from commitlake.coordinator.landing.kafka_identity import Known
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.errors import IdentityError, KafkaError
from commitlake.kafka.admin_client import CONNECT_TIMEOUT_MS, connect
from commitlake.kafka.log_end_watcher import HeldBack, held_back
from commitlake.kafka.log_ends import LogEnds, Offsets, Place, cuts, deposed
from commitlake.kafka.oldest import oldest_ms
from commitlake.kafka.topics import earliest_offsets, log_ends
from commitlake.tables import Warehouse, topic_table

log = logging.getLogger(__name__)

_SUCCESSORS_S, _LOOK_S = 30.0, 1.0


class Begin(NamedTuple):
    """The begin of landing at a start.

    Attributes:
        position: The next offset to land of each partition.
        offsets: The next offset to read of each partition.
        ends: Where the logs ended when this was worked out.
        stable: Up to where the logs can be read, below open Kafka transactions; the same as `ends` where none is open.
        stable_ms: All records that Kafka had stored until then lie below `stable` (ms since epoch, UTC); None where no
            Kafka transaction is open.
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
"""The value for a new warehouse."""


def reached(warehouse: Warehouse, config: Config) -> Reached:
    """How far landing has come: by `positions`, or by the other tables of an older version, which had none.

    Raises:
        WarehouseError: the tables are a copy of different moments.
    """
    warehouse.must_be_of_one_moment()
    recorded = positions.newest(warehouse)
    if recorded is not None:
        return Reached(recorded, is_recorded=True)
    return Reached(_of_older_version(warehouse, config), is_recorded=False)


def begin(
    warehouse: Warehouse,
    config: Config,
    resume_point: Reached,
    kafka: Known | None = None,
    others: Collection[str] = (),
) -> Begin:
    """Compares the position with Kafka's logs, and records it when no row of `positions` has it.

    Without that row, a first landing that was cut short would look complete. And the next start would not know where a
    log ended when the loss of its end was accepted.

    Args:
        warehouse: remembers where the logs began at its first start.
        config: says where Kafka is, and which differences are accepted.
        resume_point: how far landing has come.
        kafka: the one that the warehouse remembers.
        others: sources whose topics are others than before, as accepted; their leaders have epochs of their own.

    Raises:
        IdentityError: Kafka has lost records that have not landed, or a log ends below the next offset to land.
        KafkaError: Kafka is out of reach.
    """
    comparable = {place: end for place, end in resume_point.position.held.items() if place[0] not in others}
    logs = _Logs.read(config, comparable)
    begins = kafka_identity.begins(kafka, logs.first)
    before = resume_point.position.with_partitions({place: begins.get(place, 0) for place in logs.first})
    known = _all_compared(warehouse, before, logs, config)
    earlier = deposed(comparable, logs.held)
    _refuse_earlier(earlier, config)
    _check_open(logs.waiting, known, config)
    _warn_of_lost(known, logs.cut, config)
    is_new = bool(others or earlier) or (known.offsets, known.again) != (before.offsets, before.again)
    if is_new:
        known = replace(known, landing_id=max(known.landing_id, resume_point.position.landing_id + 1))
    if is_new or not resume_point.is_recorded:
        positions.append(warehouse, known)
    # After the leaders' epochs are recorded, since these show a cut log.
    kafka_identity.remember(warehouse, config, kafka, begins)
    offsets = {place: known.reads(*place) for place in logs.first}
    last = logs.last()
    return Begin(known, offsets, last, *_stable(logs.waiting, last, config))


class _Logs(NamedTuple):
    """Kafka's logs at a start.

    Attributes:
        held: Where they end, and which leaders say so.
        first: Their oldest offsets.
        cut: From where on a log has lost the records that were read of it.
        waiting: What open Kafka transactions hold back.
    """

    held: LogEnds
    first: Offsets
    cut: Offsets
    waiting: Mapping[Place, HeldBack]

    @classmethod
    def read(cls, config: Config, comparable: LogEnds) -> _Logs:
        """Asks Kafka; `comparable` is what was known of the same logs.

        Raises:
            KafkaError: Kafka is out of reach, or its brokers differ.
        """
        with connect(config) as client:
            held = _of_leaders(client, config, comparable)
            first = earliest_offsets(client, config)
            logs = cls(held, first, cuts(client, config, comparable, held), held_back(client, config, held))
        if first.keys() != held.keys():  # asked of two brokers
            msg = f"the brokers of Kafka at {config.kafka.bootstrap_servers} tell different partitions; start again"
            raise KafkaError(msg)
        return logs

    def last(self) -> Offsets:
        """Where each log ends."""
        return {place: end.offset for place, end in self.held.items()}

    def kept(self) -> Offsets:
        """Up to where each log is unchanged since it was read: where it was cut, or else its end."""
        return {place: min(end, self.cut.get(place, end)) for place, end in self.last().items()}


def _of_leaders(client: KafkaAdminClient, config: Config, known: LogEnds) -> LogEnds:
    """Where the logs end, by their leaders. A deposed leader, as after an outage, knows its successor in seconds."""
    until = time.monotonic() + _SUCCESSORS_S
    while deposed(known, held := log_ends(client, config)):
        if config.accept.lost_range or time.monotonic() > until:
            break
        time.sleep(_LOOK_S)
    return held


def _stable(waiting: Mapping[Place, HeldBack], last: Offsets, config: Config) -> tuple[Offsets, int | None]:
    """`Begin.stable` and `stable_ms`.

    If only `last` counted, and a Kafka transaction was open at every start, nothing would ever become due.
    """
    held = {place: each.offset for place, each in waiting.items()}
    oldest = oldest_ms(config, held)
    return {**last, **held}, None if oldest is None else oldest - 1


def _check_open(waiting: Mapping[Place, HeldBack], known: LandingPosition, config: Config) -> None:
    """Warns of open Kafka transactions; raises when one is open below the next offset to read.

    Uncommitted records that have landed may lie above its begin. Spark takes an end below its own begin for lost data.
    """
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
    """Raises for earlier leaders, unless accepted.

    Such a leader may have less than has landed. The log of a restored broker may have grown past that again.
    """
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
    """Warns of records that a log lost before they landed: the tables are right, but Kafka had acknowledged them."""
    for (source, number), low in cut.items():
        if low >= known.reads(source, number):
            place = f"{config.kafka.topic(source)}, partition {number}"
            log.warning("%s has lost records that it had acknowledged, from offset %d on", place, low)


def _with_uncommitted(warehouse: Warehouse, known: LandingPosition, kept: Offsets) -> LandingPosition:
    """The position, past the records of a landing that was cut short, where a log has lost its end.

    The offsets of these records count as used.
    """
    short = [place for place, low in kept.items() if low < known.reads(*place)]
    uncommitted = positions.uncommitted(warehouse, known) if short else None
    if uncommitted is None:
        return known
    return known.advanced({place: uncommitted.ends.get(place, 0) for place in short})


def _all_compared(warehouse: Warehouse, before: LandingPosition, logs: _Logs, config: Config) -> LandingPosition:
    """The position after a comparison with the logs of all partitions."""
    last, kept = logs.last(), logs.kept()
    known = replace(_with_uncommitted(warehouse, before, kept), held=logs.held)
    for place in kept:
        known = _compared(known, place, (logs.first[place], last[place], kept[place]), config)
    return known


def _compared(known: LandingPosition, at: Place, log_now: tuple[int, int, int], config: Config) -> LandingPosition:
    """The position after a comparison with the log of one partition.

    `log_now` is its oldest offset, its end, and the offset from which on its records are not those of before.
    """
    oldest, end, kept = log_now
    reads = known.reads(*at)
    place = f"{config.kafka.topic(at[0])}, partition {at[1]}"
    following = f"{reads} {'is the next to land' if reads == known.next(*at) else 'is the next to read'}"
    if reads < oldest:
        _lost(f"{place} begins at offset {oldest}, but {following}", reads, oldest, config)
        return known.advanced({at: oldest})
    if kept < reads:
        grown = f" (it has lost its end from {kept} on, and grown again)" if kept < end else ""
        _lost(f"{place} ends at offset {end}{grown}, but {following}", kept, reads, config)
        return known.cut(*at, max(oldest, kept))
    return known


def ends(config: Config, timeout_ms: int = CONNECT_TIMEOUT_MS) -> dict[Place, int]:
    """The next offset that each partition of the topics that land gets.

    Raises:
        KafkaError: Kafka is out of reach for `timeout_ms`, or does not know a topic.
    """
    with connect(config, timeout_ms) as client:
        return {place: end.offset for place, end in log_ends(client, config).items()}


def _lost(what: str, low: int, high: int, config: Config) -> None:
    """Raises for a lost range, unless accepted.

    An end below the next offset comes of an unclean leader election or a restored broker. Its offsets come a second
    time.
    """
    if not config.accept.lost_range:
        msg = (
            f"{what}: records at the offsets {low} to {high - 1} are lost; check that this is the right Kafka, or set "
            "accept.lost_range to go on without them"
        )
        raise IdentityError(msg)
    log.warning("%s: going on without the offsets %d to %d", what, low, high - 1)


_COMMITS = 1_000
"""Commits in which the marker of a landing is searched. Version 0.1 wrote it again when it was 20 commits back."""


def _of_older_version(warehouse: Warehouse, config: Config) -> LandingPosition:
    """Version 0.1 kept offsets in the markers of its commits to `op`.

    The newest landing may have been cut short, so landing goes on at its begin and leaves out the rows it has written.
    """
    for marker in warehouse.markers("op", _COMMITS):
        if "landing_id" in marker and "tables" in marker:
            offsets = {
                (kafka_identity.source(topic), int(number)): offset
                for topic, numbers in marker["from"].items()
                for number, offset in numbers.items()
            }
            return LandingPosition(marker["landing_id"], offsets)
    return _by_tables(warehouse)


def _by_tables(warehouse: Warehouse) -> LandingPosition:
    """The position by the highest offsets in the tables, for a warehouse without markers: it may be a new one."""
    tables = [*positions.LANDED, *map(topic_table, warehouse.topics())]
    rows = [row for table in tables for row in positions.highest(positions.coordinates(warehouse, table))]
    return LandingPosition(0, positions.ends_of(rows))
