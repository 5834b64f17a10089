"""The Kafka topics: create missing ones, check the others, read ids and offsets, publish the settings."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.protocol.consumer import IsolationLevel

from commitlake.config import Config
from commitlake.config.values import LARGEST_MESSAGE
from commitlake.errors import KafkaError
from commitlake.kafka import clock_skew
from commitlake.kafka.admin_client import CONNECT_TIMEOUT_MS, connect, explain, single_records
from commitlake.kafka.clients import max_record_bytes, max_settings_bytes, record_bytes
from commitlake.kafka.log_ends import LogEnd, Place
from commitlake.protocol import wire
from commitlake.protocol.clock import BrokerClock
from commitlake.protocol.durations import DAY_MS
from commitlake.protocol.kafka_topics import ADMIN, ALL, CHECK, LANDED, PAIRED, QUEUED, SETTINGS, check_topic

log = logging.getLogger(__name__)

_WEEK_MS = 7 * DAY_MS
_TIMESTAMPS = "message.timestamp.type"
_DANGER = ", so a record with a time that Spark can't hold would stop the coordinator for good"
_ROOM = 100  # bytes
_LATE_S = 3.0
"""A broker knows topics that were created through another broker, and all topics after its start, some 100 ms later."""
_ALREADY_THERE = kafka_errors.TopicAlreadyExistsError.errno
_MOST_RECORDS, _MS_A_RECORD = 10_000, 10
"""Kafka 4 refuses a request that makes more topics, settings and partitions together; each may take so many ms."""
_UNSAFE = {"min.insync.replicas": (3, "1", "2"), "unclean.leader.election.enable": (2, "true", "false")}
"""By setting: the least replicas with which its unsafe value may lose records of one; the unsafe and the safe value.

With two replicas `min.insync.replicas=2` would stop all sends while one of them is away.
"""


@dataclass(frozen=True)
class Identity:
    """The identity of a Kafka: the id of the cluster, and the ids of its topics by full name."""

    cluster_id: str
    topic_ids: Mapping[str, str]


def ensure_topics(config: Config) -> list[str]:
    """Create missing topics, add partitions where `kafka.queues` has grown, and check the topics that exist.

    Returns:
        Warnings about topics that work but should have other settings; each names the command that sets them.

    Raises:
        KafkaError: Kafka is out of reach, a topic cannot be created, partition counts do not fit, or a topic whose
            records must stay is compacted.
    """
    with connect(config) as client:
        wanted = (*ALL, *_of_groups(config))
        present = _partitions(client, map(config.kafka.topic, wanted))
        _check_partitions(config, present)
        warnings = _check_settings(client, config, sorted(present))
        _create(client, config, [name for name in wanted if config.kafka.topic(name) not in present])
        _grow(client, config, present)
        return warnings + _check_replicas(client, config)


def _of_groups(config: Config) -> list[str]:
    return [check_topic(group) for group in config.kafka.check_topics]


def ensure_targets(config: Config) -> dict[str, int]:
    """Create the missing Kafka topics of `topics.to_kafka`; return how many partitions each has.

    Raises:
        KafkaError: Kafka is out of reach, a topic cannot be created, or it is one of the coordinator's own.
    """
    names = sorted(set(config.topics.to_kafka.values()))
    own = set(names) & set(map(config.kafka.topic, (*ALL, *_of_groups(config))))
    if own:
        msg = f"topics.to_kafka: {sorted(own)} are the coordinator's own topics; name others"
        raise KafkaError(msg)
    with connect(config) as client:
        present = _partitions(client, names)
        new = {"num_partitions": config.kafka.queues, "configs": {"max.message.bytes": str(max_record_bytes(config))}}
        _make(client, {name: new for name in names if name not in present})
        return _partitions(client, names)


@dataclass(frozen=True)
class Accepted:
    """The limits of a Kafka topic: its largest record in bytes, and whether each record needs a key."""

    most_bytes: int
    needs_key: bool


def accepted(config: Config, topic: str) -> Accepted:
    """Return the limits of a topic; if this client may not ask, those of the topics that the coordinator creates."""
    try:
        with connect(config) as client:
            found = _actual(client, [topic])[topic]
    except (KafkaError, KeyError) as error:
        log.warning("the settings of the Kafka topic %s can't be read: %s", topic, error)
        return Accepted(max_record_bytes(config), needs_key=False)
    # Kafka's client compares an upper bound of a record's size, which may be larger than the size.
    most = min(int(found["max.message.bytes"]), record_bytes(LARGEST_MESSAGE) - _ROOM)
    return Accepted(most, "compact" in found["cleanup.policy"])


def is_there(config: Config, topic: str) -> bool:
    """Return whether Kafka has a topic.

    Raises:
        KafkaError: Kafka is out of reach.
    """
    with connect(config) as client:
        return topic in _partitions(client, [topic])


def identity(config: Config) -> Identity:
    """Return the ids of the cluster and of the topics that exist."""
    with connect(config) as client:
        topics = _described(client, map(config.kafka.topic, ALL), _LATE_S)
        ids = {topic["name"]: str(topic["topic_id"]) for topic in topics}
        return Identity(client.describe_cluster()["cluster_id"], ids)


def end_offsets(config: Config, names: Iterable[str] = LANDED) -> dict[str, dict[int, int]]:
    """Return the next offset of each partition, by full topic name; `names` are without the prefix."""
    found: dict[str, dict[int, int]] = {}
    with connect(config) as client:
        for (topic, number), end in _ends(client, map(config.kafka.topic, names), OffsetSpec.LATEST).items():
            found.setdefault(topic, {})[number] = end.offset
    return found


def publish_settings(config: Config, topics: Iterable[str], clock: BrokerClock | None = None) -> clock_skew.Skew:
    """Publish the limits that producers must respect in `settings`, when these destination topics exist.

    The append time of the record sets `clock`.

    Returns:
        The skew of the driver's clock, by the append time of this record. The skew is never certain when the topic was
        there before and keeps the producer's time (`CreateTime`).

    Raises:
        KafkaError: Kafka did not acknowledge the record.
    """
    topic, record = config.kafka.topic(SETTINGS), wire.encode_settings(config.limits(topics))

    def append(sent_at: int) -> int:
        sent = producer.send(topic, record.value, record.key, record.headers, partition=0, timestamp_ms=sent_at)
        return int(sent.get(timeout=CONNECT_TIMEOUT_MS / 1_000).timestamp)

    try:
        with single_records(config.kafka, max_request_size=max_settings_bytes(config)) as producer:
            producer.partitions_for(topic)  # connects, so that the measured time is one round trip
            return clock_skew.measured(append, clock)
    except kafka_errors.KafkaError as error:
        msg = f"cannot write to the Kafka topic {topic}: {explain(config.kafka, error)}"
        raise KafkaError(msg) from error


def _partitions(client: KafkaAdminClient, topics: Iterable[str], wait_s: float = 0) -> dict[str, int]:
    return {topic["name"]: len(topic["partitions"]) for topic in _described(client, topics, wait_s)}


def _described(client: KafkaAdminClient, topics: Iterable[str], wait_s: float = 0) -> list[dict[str, Any]]:
    """Describe the topics that Kafka knows; wait until it knows all of them, at most `wait_s`."""
    until, wanted = time.monotonic() + wait_s, list(topics)
    while True:
        described: list[dict[str, Any]] = client.describe_topics(wanted)
        known = [topic for topic in described if topic["error_code"] == 0]
        for topic in described:
            if topic["error_code"] not in (0, kafka_errors.UnknownTopicOrPartitionError.errno):
                raise kafka_errors.for_code(topic["error_code"])(topic["name"])
        if len(known) == len(wanted) or time.monotonic() > until:
            return known
        time.sleep(0.05)


def _check_partitions(config: Config, present: Mapping[str, int]) -> None:
    """A queue is one partition number in all paired topics: with different counts ops would miss half messages."""
    queued = {topic: present[topic] for topic in map(config.kafka.topic, PAIRED) if topic in present}
    if len(set(queued.values())) > 1:
        counts = ", ".join(f"{topic} {count}" for topic, count in queued.items())
        most = max(queued.values())
        msg = (
            f"the Kafka topics have different partition counts: {counts}; give each {most}, "
            f"with kafka-topics.sh --alter --partitions {most} --topic NAME"
        )
        raise KafkaError(msg)
    if queued and config.kafka.queues < max(queued.values()):
        msg = (
            f"kafka.queues: {config.kafka.queues} is not allowed, the topics have {max(queued.values())} partitions "
            f"and Kafka cannot take any away; set kafka.queues to {max(queued.values())}"
        )
        raise KafkaError(msg)
    for topic in map(config.kafka.topic, (ADMIN, SETTINGS)):
        if present.get(topic, 1) != 1:
            msg = (
                f"the Kafka topic {topic} has {present[topic]} partitions; allowed is 1; "
                "delete the topic, or set another kafka.topic_prefix"
            )
            raise KafkaError(msg)


def _create(client: KafkaAdminClient, config: Config, names: list[str]) -> None:
    _make(
        client,
        {
            config.kafka.topic(name): {
                "num_partitions": 1 if name in (ADMIN, SETTINGS) else config.kafka.queues,
                "configs": _settings(config, name),
            }
            for name in names
        },
    )


def _make(client: KafkaAdminClient, wanted: dict[str, dict[str, Any]]) -> None:
    if not wanted:
        return
    records = sum(1 + len(each["configs"]) + each["num_partitions"] for each in wanted.values())
    requests = [wanted] if records <= _MOST_RECORDS else [{name: each} for name, each in wanted.items()]
    for topic in [made for each in requests for made in client.create_topics(each, raise_errors=False)["topics"]]:
        if topic["error_code"] not in (0, _ALREADY_THERE):
            reason = topic.get("error_message") or kafka_errors.for_code(topic["error_code"]).__name__
            settings = " ".join(f"--config {key}={value}" for key, value in wanted[topic["name"]]["configs"].items())
            msg = (
                f"cannot create the Kafka topic {topic['name']}: {reason}; give this client the right to create it, or "
                f"run kafka-topics.sh --create --topic {topic['name']} "
                f"--partitions {wanted[topic['name']]['num_partitions']} {settings}"
            )
            raise KafkaError(msg)
    client.wait_for_topics(list(wanted), timeout_ms=CONNECT_TIMEOUT_MS + records * _MS_A_RECORD)


def _grow(client: KafkaAdminClient, config: Config, present: Mapping[str, int]) -> None:
    count = config.kafka.queues
    few = [name for name in map(config.kafka.topic, (*QUEUED, *_of_groups(config))) if present.get(name, count) < count]
    at_once = _MOST_RECORDS // count
    for topics in [few[first : first + at_once] for first in range(0, len(few), at_once)]:
        client.create_partitions(dict.fromkeys(topics, count))
        _await_partitions(client, topics, count)


def _await_partitions(client: KafkaAdminClient, topics: list[str], count: int) -> None:
    """Wait until brokers report the new partitions: for some 100 ms after the answer they report the old ones."""
    wait_ms = CONNECT_TIMEOUT_MS + len(topics) * count * _MS_A_RECORD
    deadline = time.monotonic() + wait_ms / 1_000
    while any(present < count for present in _partitions(client, topics).values()):
        if time.monotonic() > deadline:
            msg = f"the new partitions of {', '.join(topics)} do not appear; check the brokers, then start again"
            raise KafkaError(msg)
        time.sleep(0.05)
    client.wait_for_topics(topics, timeout_ms=wait_ms)


def _settings(config: Config, name: str) -> dict[str, str]:
    settings = {"max.message.bytes": str((max_settings_bytes if name == SETTINGS else max_record_bytes)(config))}
    has_checks = name in (CHECK, *_of_groups(config))
    if not has_checks:
        # Ages are measured from the broker's append time, never from a producer's clock. The coordinator reads Kafka's
        # time from the append time of `settings`.
        settings |= {_TIMESTAMPS: "LogAppendTime"}
    if has_checks or name == SETTINGS:
        # The broker then decompresses every record: one in lz4, snappy or zstd would stop each client that can't.
        settings |= {"compression.type": "uncompressed"}
    if name == SETTINGS:
        return settings | {"cleanup.policy": "compact"}
    return settings | {"cleanup.policy": "delete", "retention.ms": str(_WEEK_MS)}


def _check_settings(client: KafkaAdminClient, config: Config, topics: list[str]) -> list[str]:
    """Compare the settings of existing topics with those that `_create` sets; return the warnings."""
    warnings = []
    for topic, actual in _actual(client, topics).items():
        name = config.kafka.source(topic)
        if name != SETTINGS and "compact" in actual.get("cleanup.policy", ""):
            fix = _fix(topic, {"cleanup.policy": "delete"})
            msg = f"the Kafka topic {topic} is compacted, so records would vanish; {fix}"
            raise KafkaError(msg)
        for key, wanted in _settings(config, name).items():
            if key in actual and not _fits(key, actual[key], wanted):
                found = f"{key}={actual[key]}{_DANGER if key == _TIMESTAMPS and name in LANDED else ''}"
                warnings.append(f"the Kafka topic {topic} has {found}; {_fix(topic, {key: wanted})}")
        if name in LANDED and actual.get("retention.bytes", "-1") != "-1":
            warnings.append(
                f"the Kafka topic {topic} has retention.bytes={actual['retention.bytes']}, so records may vanish "
                f"before they land; {_fix(topic, {'retention.bytes': '-1'})}"
            )
    return warnings


def _check_replicas(client: KafkaAdminClient, config: Config) -> list[str]:
    """Warnings about settings by which several brokers may lose acknowledged records; a single broker has all."""
    if len(client.describe_cluster()["brokers"]) == 1:
        return []
    landed = _described(client, map(config.kafka.topic, LANDED), _LATE_S)
    replicas = {each["name"]: min(len(part["replica_nodes"]) for part in each["partitions"]) for each in landed}
    actual = _actual(client, sorted(replicas))
    return [warning for topic in actual if (warning := _replica_warning(topic, replicas[topic], actual[topic]))]


def _replica_warning(topic: str, replicas: int, actual: Mapping[str, str]) -> str | None:
    if replicas == 1:
        return (
            f"the Kafka topic {topic} has one replica, so its records are lost with a broker; give it three with "
            "kafka-reassign-partitions.sh, and new topics by the brokers' default.replication.factor"
        )
    wrong = [key for key, (least, unsafe, _) in _UNSAFE.items() if replicas >= least and actual.get(key) == unsafe]
    if not wrong:
        return None
    found = ", ".join(f"{key}={actual[key]}" for key in wrong)
    fix = _fix(topic, {key: _UNSAFE[key][2] for key in wrong})
    return f"the Kafka topic {topic} has {found}, so Kafka may lose records that it has acknowledged; {fix}"


def _actual(client: KafkaAdminClient, topics: list[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics, in their order; without topics Kafka's answer has no entry "topic"."""
    if not topics:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
    found = client.describe_configs(resources, config_filter="all")["topic"]
    return {topic: {key: entry["value"] for key, entry in found[topic].items()} for topic in topics}


def _fits(key: str, actual: str, wanted: str) -> bool:
    if key in ("retention.ms", "max.message.bytes"):
        return int(actual) == -1 or int(actual) >= int(wanted)
    return actual == wanted


def _fix(topic: str, settings: Mapping[str, str]) -> str:
    added = ",".join(f"{key}={value}" for key, value in settings.items())
    return f"run kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {added}"


def earliest_offsets(client: KafkaAdminClient, config: Config) -> dict[Place, int]:
    """Return the first offset that each partition still holds, otherwise as `log_ends`."""
    return {place: end.offset for place, end in _all_ends(client, config, OffsetSpec.EARLIEST).items()}


def log_ends(client: KafkaAdminClient, config: Config, *, stable: bool = False) -> dict[Place, LogEnd]:
    """Return the next offset of each partition of the topics that land, with the epoch of its leader.

    With `stable` an end is at most the first offset of an open Kafka transaction.

    Raises:
        KafkaError: Kafka does not know a topic; a broker that has just started may say so for a moment.
    """
    return _all_ends(client, config, OffsetSpec.LATEST, stable)


def _all_ends(client: KafkaAdminClient, config: Config, spec: Any, stable: bool = False) -> dict[Place, LogEnd]:
    topics = [config.kafka.topic(source) for source in LANDED]
    found = _ends(client, topics, spec, stable)
    missing = sorted(set(topics) - {topic for topic, _ in found})
    if missing:
        msg = f"Kafka at {config.kafka.bootstrap_servers} does not know the topics {missing}; check the broker's state"
        raise KafkaError(msg)
    return {(config.kafka.source(topic), number): end for (topic, number), end in found.items()}


def _ends(
    client: KafkaAdminClient, topics: Iterable[str], spec: Any, stable: bool = False
) -> dict[tuple[str, int], LogEnd]:
    """The ends by full topic name and partition; none of a topic that Kafka does not know."""
    partitions = _partitions(client, topics, _LATE_S)
    wanted = {TopicPartition(topic, number): spec for topic, count in partitions.items() for number in range(count)}
    level = {"isolation_level": IsolationLevel.READ_COMMITTED} if stable else {}
    found = client.list_partition_offsets(wanted, **level) if wanted else {}
    ends: dict[tuple[str, int], LogEnd] = {}
    for partition in sorted(found):
        epoch = found[partition].leader_epoch
        ends[partition.topic, partition.partition] = LogEnd(found[partition].offset, -1 if epoch is None else epoch)
    return ends
