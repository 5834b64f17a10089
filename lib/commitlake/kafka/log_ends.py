"""Where Kafka's logs end, and whether a new leader of a log has all that an earlier one had."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from commitlake.config import Config


class LogEnd(NamedTuple):
    """The end of a partition's log, as its leader reports it.

    Attributes:
        offset: the next offset.
        epoch: the leader's epoch, which grows with each leader; -1 when Kafka does not say.
    """

    offset: int
    epoch: int


Place = tuple[str, int]
"""A partition: its Kafka topic without prefix (`half`, ...), and its number."""
Offsets = Mapping[Place, int]
LogEnds = Mapping[Place, LogEnd]


def cuts(client: KafkaAdminClient, config: Config, known: LogEnds, now: LogEnds) -> dict[Place, int]:
    """Where logs have lost records: the first offset that is gone or was used again.

    A leader that was not in sync cuts the logs of the others to its own. Its log may grow past the old end in a moment,
    so the end alone does not show the loss.

    Raises:
        kafka.errors.KafkaError: Kafka does not answer, or its leaders do not answer for themselves.
    """
    changed = {place: pair for place, pair in _pairs(known, now).items() if 0 <= pair[0].epoch < pair[1].epoch}
    kept = _kept(client, config, changed)
    # -1: the epochs that Kafka remembers begin later.
    return {place: low for place, low in kept.items() if 0 <= low < changed[place][0].offset}


def deposed(known: LogEnds, now: LogEnds) -> list[Place]:
    """Where an earlier leader has answered: it does not know its successor yet, or a broker was restored."""
    return sorted(place for place, (before, after) in _pairs(known, now).items() if 0 <= after.epoch < before.epoch)


def _pairs(known: LogEnds, now: LogEnds) -> dict[Place, tuple[LogEnd, LogEnd]]:
    return {place: (end, now[place]) for place, end in known.items() if place in now}


def _kept(client: KafkaAdminClient, config: Config, wanted: Mapping[Place, tuple[LogEnd, LogEnd]]) -> dict[Place, int]:
    """Up to where each leader has the records of an earlier epoch; an earlier leader answers with an error."""
    kept: dict[Place, int] = {}
    leaders = _by_leader(client, config, wanted)
    unknown = set(wanted) - {place for places in leaders.values() for place in places}
    if unknown:  # a broker that has just started knows no leaders
        raise kafka_errors.LeaderNotAvailableError(str(sorted(unknown)))
    for leader, places in leaders.items():
        topics: dict[str, list[Any]] = defaultdict(list)
        for source, number in places:
            before, now = wanted[source, number]
            partition = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition(
                partition=number, current_leader_epoch=now.epoch, leader_epoch=before.epoch
            )
            topics[config.kafka.topic(source)].append(partition)
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=list(topics.items()))
        for topic in client._manager.run(_answer, client, request, leader).topics:
            for each in topic.partitions:
                if each.error_code:
                    raise kafka_errors.for_code(each.error_code)(topic.topic)
                kept[config.kafka.source(topic.topic), each.partition] = each.end_offset
    return kept


async def _answer(client: KafkaAdminClient, request: OffsetForLeaderEpochRequest, node: int) -> Any:
    return await client._manager.send(request, node_id=node)


def _by_leader(client: KafkaAdminClient, config: Config, wanted: Collection[Place]) -> dict[int, list[Place]]:
    found: dict[int, list[Place]] = defaultdict(list)
    topics = sorted({config.kafka.topic(source) for source, _ in wanted})
    for topic in client.describe_topics(topics) if topics else []:
        source = config.kafka.source(topic["name"])
        for each in topic["partitions"]:
            if (source, each["partition_index"]) in wanted:
                found[each["leader_id"]].append((source, each["partition_index"]))
    return found
