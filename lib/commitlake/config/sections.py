"""The sections of the configuration: each field is a key, checked and with its unit in its name.

Plain dataclasses, not pydantic: its compiled core can't be shipped to executors with `--py-files`, and every producer
imports `KafkaConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from commitlake.config import values
from commitlake.config.keys import OPTIONS_KEY, key, masked, time
from commitlake.config.secret_references import resolve
from commitlake.config.values import AVRO, EMBEDDED, Age, Dedup, TopicSchema, flag, integer, optional, size
from commitlake.errors import ConfigError
from commitlake.protocol.durations import HOUR_MS, MARGIN_MS
from commitlake.protocol.kafka_topics import MOST_OF_A_NAME, check_topic

_COMMITTED = "read_committed"


def masked_options(options: Mapping[str, str]) -> str:
    """The text of options of Kafka's clients as it may be shown: secrets as `***`, references as they are."""
    return str({name: masked(name, value) for name, value in options.items()})


@dataclass(frozen=True)
class KafkaConfig:
    """Where Kafka is, and how to reach it; options have the Java client's names."""

    bootstrap_servers: str = key(values.servers, EMBEDDED, "host:port,... or 'embedded' for a broker of its own")
    topic_prefix: str = key(values.prefix, "commitlake.", "put before each Kafka topic's name")
    queues: int = key(integer(1, 4_096), 4, "partitions of half, op, messages and check")
    check_topics: tuple[str, ...] = key(values.groups, [], "producer groups with a check topic of their own")
    options: Mapping[str, str] = key(
        *(values.options, {}, "options of all Kafka clients; values may be env:NAME, file:/path, secret:scope/key"),
        text=masked_options,
    )
    embedded_dir: str = key(
        optional(values.location), "", "where the embedded broker keeps its data; empty: inside the warehouse"
    )
    embedded_port: int = key(integer(0, 65_535), 0, "loopback port of the embedded broker; 0: any that is free")

    def __post_init__(self) -> None:
        long = [name for name in map(check_topic, self.check_topics) if len(self.topic(name)) > MOST_OF_A_NAME]
        if long:
            msg = (
                f"kafka.check_topics: with kafka.topic_prefix the topic {self.topic(long[0])} is longer than the "
                f"{MOST_OF_A_NAME} characters that Kafka allows; take a shorter prefix, or leave the group out"
            )
            raise ConfigError(msg)

    @property
    def is_embedded(self) -> bool:
        """Whether the coordinator starts a broker of its own."""
        return self.bootstrap_servers == EMBEDDED

    def reached(self) -> KafkaConfig:
        """This configuration with the address of an embedded broker, where it is known because its port is fixed."""
        is_known = self.is_embedded and self.embedded_port
        return replace(self, bootstrap_servers=f"127.0.0.1:{self.embedded_port}") if is_known else self

    def with_address(self) -> KafkaConfig:
        """This configuration, as `reached` has it.

        Raises:
            ConfigError: it names an embedded broker whose port only its coordinator knows.
        """
        found = self.reached()
        if found.is_embedded:
            msg = (
                "kafka.bootstrap_servers: 'embedded' is not allowed here; give the address on the coordinator's READY "
                "line (with --set kafka.bootstrap_servers=HOST:PORT), or fix its port with kafka.embedded_port"
            )
            raise ConfigError(msg)
        return found

    @property
    def isolation_level(self) -> str:
        """Which records of Kafka transactions land: by default those of committed ones."""
        return self.options.get("isolation.level", _COMMITTED)

    @property
    def reads_committed(self) -> bool:
        """Whether landing waits for the end of Kafka transactions."""
        return self.isolation_level == _COMMITTED

    def topic(self, name: str) -> str:
        """Return the full name of the Kafka topic `name`, for example `commitlake.half`."""
        return self.topic_prefix + name

    def source(self, topic: str) -> str:
        """Return the name of a Kafka topic without the prefix."""
        return topic.removeprefix(self.topic_prefix)

    def resolved_options(self) -> dict[str, str]:
        """Return the options with references replaced by what they refer to.

        Resolved late, so that a configuration can be printed and sent around without its secrets.

        Raises:
            ConfigError: the variable is not set or the file is not readable.
        """
        return {name: resolve(f"{OPTIONS_KEY}.{name}", value) for name, value in self.options.items()}

    def __repr__(self) -> str:
        """Show everything but secrets."""
        return (
            f"KafkaConfig(bootstrap_servers={self.bootstrap_servers!r}, topic_prefix={self.topic_prefix!r}, "
            f"queues={self.queues}, options={masked_options(self.options)})"
        )


@dataclass(frozen=True)
class CatalogConfig:
    """Where the tables of a warehouse in a catalog are, for all that reads without Spark: a place, or who knows it."""

    location: str = key(
        optional(values.table_location), "", "of a warehouse in a catalog: the directory or URI of its schema"
    )
    url: str = key(optional(values.address), "", "or Unity Catalog's REST API, https://HOST/api/2.1/unity-catalog")
    token: str = key(optional(values.reference), "", "its token: env:NAME, file:/path or secret:scope/key")

    def __post_init__(self) -> None:
        if self.location and self.url:
            msg = "catalog: catalog.location and catalog.url are both given; leave one out"
            raise ConfigError(msg)


@dataclass(frozen=True)
class TransactionConfig:
    """When a transaction is checked and when it is discarded."""

    timeout_ms: int = time("6s", "age of a half message at its first check")
    check_interval_ms: int = time("30s", "time from the answer UNKNOWN to the next check", 1)
    check_repeat_ms: int = time("5m", "pause before an unanswered check is sent again; doubles to 1h", 1)
    check_max: int = key(integer(0, 30_000), 15, "answered checks before a transaction is discarded")
    unanswered: str = key(values.choice("wait", "count"), "wait", "whether an unanswered check waits or counts")
    retention_ms: int = time("72h", "age at which an open transaction is discarded", 1)
    op_park_time_ms: int = time("10m", "how long an op waits for its half message")
    reject: bool = key(flag, False, "refuse new half messages")

    @property
    def hangs_after_ms(self) -> int:
        """Age from which a pending transaction counts as hanging: its group had time for three answers that end it."""
        return self.timeout_ms + 3 * self.check_interval_ms

    @property
    def counts_unanswered(self) -> bool:
        """Whether a check counts that nobody answers."""
        return self.unanswered == "count"


@dataclass(frozen=True)
class TopicsConfig:
    """Which destination topics there may be."""

    allowed: tuple[str, ...] = key(values.texts, ["*"], "shell patterns of the destination topics")
    max: int = key(integer(1, 100_000), 1_000, "destination topics there may be")
    max_queues: int = key(integer(1, 1 << 20), 64, "queues a destination topic may have")
    to_kafka: Mapping[str, str] = key(
        values.targets, {}, "topics that go to Kafka topics as well, for example {orders: orders-committed}"
    )
    dedup: Mapping[str, Dedup] = key(values.dedups, {}, "topics that show a name once")
    retention: Mapping[str, Age] = key(
        values.ages, {}, "by topic, or default: age at which rows of its table go, for example {clicks: 30d}"
    )
    schemas: Mapping[str, TopicSchema] = key(
        values.schemas, {}, "by topic: columns for its bodies, for example {orders: {format: json, schema: id INT}}"
    )

    def __post_init__(self) -> None:
        for topic, each in self.dedup.items():
            if 0 < (age := self.retention_of(topic)) < each.window_ms + MARGIN_MS:
                msg = (
                    f"topics.retention: {age!r} for {topic} must be longer than the window of topics.dedup, {each}, by "
                    f"{MARGIN_MS // 60_000} minutes: else names would be forgotten; give such an age, or none"
                )
                raise ConfigError(msg)

    @property
    def has_avro(self) -> bool:
        """Whether bodies of a topic are Avro, for which Spark needs one more jar."""
        return any(each.format == AVRO for each in self.schemas.values())

    def retention_of(self, topic: str) -> Age:
        """The age at which rows of a topic's table go; 0 for never."""
        return self.retention.get(topic, self.retention.get("default", Age(0)))


@dataclass(frozen=True)
class DelayConfig:
    """The delays that a message may have."""

    levels: tuple[str, ...] = key(values.levels, values.LEVELS, "delays of the levels 1, 2, ...")
    max_ms: int = time("40d", "the longest delay", 1)

    @property
    def levels_ms(self) -> tuple[int, ...]:
        """Delays of the levels 1, 2, ... in ms."""
        return tuple(map(values.duration(), self.levels))


@dataclass(frozen=True)
class GatewayConfig:
    """Limits of a gateway for RocketMQ's clients; the defaults are RocketMQ's."""

    max_properties: int = key(integer(0, 100_000), 128, "user properties of a message that a gateway takes")
    max_property_size: int = key(size, "16KiB", "bytes of its tag, keys and user properties together")
    max_message_group: int = key(size, "63B", "bytes of its message group")
    min_invisible_ms: int = time("10s", "the shortest invisible duration of a receive", 1)


@dataclass(frozen=True)
class MaintenanceConfig:
    """When tables are compacted, and what is kept for how long."""

    interval_ms: int = time("10m", "time between runs of maintenance in the coordinator; 0s: none")
    retention_ms: int = time("30d", "age after their end at which rows of all but topic tables may go")
    file_retention_ms: int = time("1h", "how long files that a table no longer uses are kept", HOUR_MS)
    topic_file_retention_ms: int = time("7d", "the same of topic tables: a reader's longest absence", HOUR_MS)


@dataclass(frozen=True)
class MetricsConfig:
    """Where the coordinator serves its metrics and its health."""

    port: int = key(integer(0, 65_535), 0, "port of /metrics and /healthz in the coordinator; 0: none")
    host: str = key(values.text, "127.0.0.1", "address that it listens on; 0.0.0.0, or :: with IPv6: all of them")


@dataclass(frozen=True)
class AcceptConfig:
    """Losses and changes of Kafka that stop a start unless the operator accepts them once."""

    lost_range: bool = key(flag, False, "start though Kafka no longer holds records that never landed")
    other_cluster: bool = key(flag, False, "start though this is another Kafka cluster than before")
    recreated_topic: bool = key(flag, False, "start though a Kafka topic was deleted and created again")
