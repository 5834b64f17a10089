"""Whether this is the Kafka that the warehouse was filled from (contract 1).

A half message is known by its queue and offset for ever. In another cluster or a recreated topic the offsets begin
again, so its records would be taken for those that have landed and ended.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from commitlake.config import Config
from commitlake.coordinator.landing import positions
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.errors import IdentityError
from commitlake.kafka.log_ends import Offsets
from commitlake.kafka.topics import Identity, end_offsets, identity
from commitlake.protocol.kafka_topics import LANDED
from commitlake.tables import Warehouse

log = logging.getLogger(__name__)

_PROPERTY = "commitlake.kafka"


@dataclass(frozen=True)
class Known:
    """The Kafka that a warehouse remembers: its identity, and where each partition began at the first start.

    Its topics have their full names.
    """

    identity: Identity
    begins: Offsets


def check(warehouse: Warehouse, config: Config, known: Known | None, position: LandingPosition) -> Collection[str]:
    """Rejects another Kafka than the known one, which the warehouse remembers; nothing is written to either.

    Returns the sources whose topics are others than before, as accepted.

    Raises:
        IdentityError: this is another cluster, or a topic was deleted and created again, and that is not accepted.
        KafkaError: Kafka is out of reach.
    """
    found = None if known is None else _difference(config, known.identity, identity(config))
    if found is None:
        return ()
    written = positions.uncommitted(warehouse, position)  # records at its offsets would be rejected, too
    _refuse(found, *_ranges(config, position.advanced(written.ends) if written else position, found.sources))
    return found.sources


def source(topic: str) -> str:
    """The source that a Kafka topic's full name stands for, also with a prefix that the configuration no longer has."""
    return next(name for name in LANDED if topic.endswith(name))


def begins(known: Known | None, first: Offsets) -> Offsets:
    """Where the logs began at the first start; at that start `first`, the first offsets that they hold now."""
    if known is None or not known.begins:
        return first
    return {(source(topic), number): begin for (topic, number), begin in known.begins.items()}


def remember(warehouse: Warehouse, config: Config, known: Known | None, begun: Offsets) -> None:
    """Remembers this Kafka, unless it is the known one, and where its logs began at the first start (`begins`)."""
    actual = identity(config)
    landed = {config.kafka.topic(name) for name in LANDED}
    now = Known(
        Identity(actual.cluster_id, {topic: id_ for topic, id_ in actual.topic_ids.items() if topic in landed}),
        {(config.kafka.topic(source), number): begin for (source, number), begin in begun.items()},
    )
    if known != now:
        begins: dict[str, dict[int, int]] = {}
        for (topic, number), begin in now.begins.items():
            begins.setdefault(topic, {})[number] = begin
        content = {"cluster_id": now.identity.cluster_id, "topics": now.identity.topic_ids, "begins": begins}
        warehouse.set_property("half", _PROPERTY, json.dumps(content))


def remembered(warehouse: Warehouse) -> Known | None:
    """The Kafka in the property of the table `half`; None before the first start. To read it takes 0.4 s."""
    found = warehouse.property("half", _PROPERTY)
    if found is None:
        return None
    kept = json.loads(found)
    begins = {(topic, int(at)): begin for topic, each in kept.get("begins", {}).items() for at, begin in each.items()}
    return Known(Identity(kept["cluster_id"], kept["topics"]), begins)


class _Difference(NamedTuple):
    """A difference from the Kafka of before: in words, the option that accepts it, whether that is set, the sources."""

    what: str
    option: str
    is_accepted: bool
    sources: Collection[str]


def _difference(config: Config, known: Identity, actual: Identity) -> _Difference | None:
    accept = config.accept
    if known.cluster_id != actual.cluster_id:
        what = f"this is the Kafka cluster {actual.cluster_id}, the warehouse was filled from {known.cluster_id}"
        return _Difference(what, "accept.other_cluster", accept.other_cluster, LANDED)
    recreated = {topic for topic, id_ in known.topic_ids.items() if actual.topic_ids.get(topic) != id_}
    if not recreated:
        return None
    option = "accept.recreated_topic", accept.recreated_topic
    if not {*map(config.kafka.topic, LANDED)} & {*known.topic_ids}:
        names = ", ".join(sorted(recreated))
        what = f"the warehouse was filled from {names}, but kafka.topic_prefix is {config.kafka.topic_prefix!r}"
        return _Difference(what, *option, LANDED)
    there = actual.topic_ids.keys()
    groups = ((recreated & there, "deleted and created again"), (recreated - there, "deleted"))
    what = "; ".join(f"{', '.join(sorted(topics))} was {done}" for topics, done in groups if topics)
    return _Difference(what, *option, {source(topic) for topic in recreated})


def _refuse(found: _Difference, lost: str, short: str) -> None:
    if short:
        msg = f"{found.what}; {found.option} can't accept it: {short}; use another `warehouse`"
        raise IdentityError(msg)
    if found.is_accepted:
        log.warning("%s; accepted by %s; %s", found.what, found.option, lost)
        return
    msg = (
        f"{found.what}; {lost}; use another `warehouse`, or set {found.option} to go on at the next offset to land: "
        "records below it are taken for what has landed before"
    )
    raise IdentityError(msg)


def _ranges(config: Config, reached: LandingPosition, sources: Iterable[str]) -> tuple[str, str]:
    """Texts: the ranges below the next offset to land, which would never land; and the logs that end before it."""
    lost, short = [], []
    ends = end_offsets(config)
    for name in sorted(sources):
        topic = config.kafka.topic(name)
        held = ends.get(topic, {})
        for number in sorted({*held, *(number for source, number in reached.offsets if source == name)}):
            end, following = held.get(number, 0), reached.next(name, number)
            if min(end, following) > 0:
                lost.append(f"{topic}-{number} offsets 0 to {min(end, following) - 1}")
            if end < following:
                short.append(f"{topic}-{number} ends at {end}, but landing has come to {following}")
    return f"lost would be {', '.join(lost)}" if lost else "no record would be lost", ", ".join(short)
