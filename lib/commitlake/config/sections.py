"""The sections of the configuration, checked and with their units in their names.

Plain dataclasses, not pydantic: its compiled core can't be shipped to executors with `--py-files`, and every producer
imports `KafkaConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from commitlake.config.keys import OPTIONS_KEY, masked
from commitlake.config.secret_references import resolve
from commitlake.config.values import AVRO, EMBEDDED, Age, Dedup, TopicSchema
from commitlake.errors import ConfigError
from commitlake.protocol.durations import MARGIN_MS
from commitlake.protocol.kafka_topics import MOST_OF_A_NAME, check_topic

_COMMITTED = "read_committed"


@dataclass(frozen=True)
class KafkaConfig:
    """Where Kafka is, and how to reach it.

    Attributes:
        bootstrap_servers: `host:port,...`, or `embedded`.
        topic_prefix: put before the name of each Kafka topic.
        queues: partitions of half, op, messages and check.
        options: client options in the Java client's names; values may be `env:NAME`, `file:/path` or, on
            Databricks, `secret:scope/key`.
        embedded_dir: where the embedded broker keeps its data; empty: inside the warehouse.
        embedded_port: its loopback port; 0: any that is free.
        check_topics: producer groups with a check topic of their own.
    """

    bootstrap_servers: str
    topic_prefix: str
    queues: int
    options: Mapping[str, str] = field(hash=False)
    embedded_dir: str = ""
    embedded_port: int = 0
    check_topics: tuple[str, ...] = ()

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

    def masked_options(self) -> dict[str, str]:
        """Return the options as they may be shown: secrets as `***`, references as they are."""
        return {name: masked(name, value) for name, value in self.options.items()}

    def __repr__(self) -> str:
        """Show everything but secrets."""
        return (
            f"KafkaConfig(bootstrap_servers={self.bootstrap_servers!r}, topic_prefix={self.topic_prefix!r}, "
            f"queues={self.queues}, options={self.masked_options()})"
        )


@dataclass(frozen=True)
class CatalogConfig:
    """Where the tables of a warehouse in a catalog are, for all that reads without Spark: a place, or who knows it.

    Attributes:
        location: the directory or URI below which the schema's tables are.
        url: Unity Catalog's REST API.
        token: a reference to its token; empty: none.
    """

    location: str = ""
    url: str = ""
    token: str = ""

    def __post_init__(self) -> None:
        if self.location and self.url:
            msg = "catalog: catalog.location and catalog.url are both given; leave one out"
            raise ConfigError(msg)


@dataclass(frozen=True)
class TransactionConfig:
    """When a transaction is checked and when it is discarded.

    Attributes:
        timeout_ms: age of a half message at its first check.
        check_interval_ms: time from the answer UNKNOWN to the next check.
        check_repeat_ms: time after which a check that nobody answered is sent again.
        check_max: answered checks before a transaction is discarded.
        retention_ms: age at which an open transaction is discarded.
        op_park_time_ms: how long an op waits for its half message.
        reject: whether new half messages are rejected.
        unanswered: `wait` for the answer of a check, or `count` the check without one.
    """

    timeout_ms: int
    check_interval_ms: int
    check_repeat_ms: int
    check_max: int
    retention_ms: int
    op_park_time_ms: int
    reject: bool
    unanswered: str = "wait"

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
    """Which destination topics there may be.

    Attributes:
        allowed: shell patterns of their names.
        max: how many there may be.
        max_queues: queues that each may have.
        to_kafka: those whose messages go to a Kafka topic as well, with its name.
        dedup: those that show a name once.
        schemas: those whose tables have columns for the bodies.
        retention: the age at which rows of their tables go, in ms, by topic; `default` for all others; 0: never.
    """

    allowed: tuple[str, ...]
    max: int
    max_queues: int
    to_kafka: Mapping[str, str] = field(hash=False)
    dedup: Mapping[str, Dedup] = field(hash=False)
    retention: Mapping[str, Age] = field(hash=False)
    schemas: Mapping[str, TopicSchema] = field(hash=False)

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
    """The delays that a message may have.

    Attributes:
        levels_ms: delays of the levels 1, 2, ... in ms.
        levels: the same as written, for example `30s`.
        max_ms: the longest delay.
    """

    levels_ms: tuple[int, ...]
    levels: tuple[str, ...]
    max_ms: int


@dataclass(frozen=True)
class GatewayConfig:
    """Limits of a gateway for RocketMQ's clients; the defaults are RocketMQ's.

    Attributes:
        max_properties: user properties of a message.
        max_property_size: bytes of its tag, keys and user properties together.
        max_message_group: bytes of its message group.
        min_invisible_ms: the shortest invisible duration with which a client receives.
    """

    max_properties: int
    max_property_size: int
    max_message_group: int
    min_invisible_ms: int


@dataclass(frozen=True)
class MaintenanceConfig:
    """When tables are compacted, and what is kept for how long.

    Attributes:
        interval_ms: time between runs of maintenance in the coordinator; 0: none.
        retention_ms: age after their end at which rows of all but topic tables may be deleted.
        file_retention_ms: how long unused files of these tables are kept.
        topic_file_retention_ms: how long unused files of topic tables are kept.
    """

    interval_ms: int
    retention_ms: int
    file_retention_ms: int
    topic_file_retention_ms: int


@dataclass(frozen=True)
class MetricsConfig:
    """Where the coordinator serves its metrics and its health.

    Attributes:
        port: of `/metrics` and `/healthz`; 0: none.
        host: the address that it listens on.
    """

    port: int = 0
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class AcceptConfig:
    """Losses and changes of Kafka that stop a start unless the operator accepts them once.

    Attributes:
        lost_range: Kafka no longer holds records that never landed.
        other_cluster: this is another Kafka cluster than before.
        recreated_topic: a Kafka topic was deleted and created again.
    """

    lost_range: bool = False
    other_cluster: bool = False
    recreated_topic: bool = False
