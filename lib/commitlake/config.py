"""Configuration: one table of keys (`KEYS`), read from defaults, a YAML file, the environment, `--set`; later wins."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from commitlake.config_values import (
    EMBEDDED,
    LEVELS,
    directory,
    duration,
    flag,
    integer,
    is_local,
    levels,
    location,
    options,
    prefix,
    servers,
    size,
    texts,
)
from commitlake.errors import ConfigError

__all__ = ["KEYS", "Config", "KafkaConfig", "from_mapping", "is_local", "load"]

ENVIRONMENT_PREFIX = "COMMITLAKE__"
OPTIONS_KEY = "kafka.options"

_HOUR_MS = 3_600_000
_SECRET = re.compile(r"password|secret|jaas|token|credential|keystore\.key|private", re.IGNORECASE)


@dataclass(frozen=True)
class KafkaConfig:
    """Where Kafka is and how its topics are named; `options` use the Java client's dotted names."""

    bootstrap_servers: str
    topic_prefix: str
    queues: int
    options: Mapping[str, str] = field(hash=False)
    embedded_dir: str = ""
    embedded_port: int = 0

    @property
    def is_embedded(self) -> bool:
        """Whether the coordinator starts a broker of its own."""
        return self.bootstrap_servers == EMBEDDED

    def topic(self, name: str) -> str:
        """Return the full name of the Kafka topic `name`, for example `commitlake.half`."""
        return self.topic_prefix + name

    def resolved_options(self) -> dict[str, str]:
        """Return the options with `env:NAME` and `file:/path` replaced by what they point at.

        Resolved late, so that a configuration can be printed and sent around without its secrets.

        Raises:
            ConfigError: the variable is not set or the file is not readable.
        """
        return {name: _resolve(name, value) for name, value in self.options.items()}

    def masked_options(self) -> dict[str, str]:
        """Return the options as they may be shown: secrets as `***`, references as they are."""
        return {name: _masked(name, value) for name, value in self.options.items()}

    def __repr__(self) -> str:
        """Show everything but secrets."""
        return (
            f"KafkaConfig(bootstrap_servers={self.bootstrap_servers!r}, topic_prefix={self.topic_prefix!r}, "
            f"queues={self.queues}, options={self.masked_options()})"
        )


@dataclass(frozen=True)
class TransactionConfig:
    """When a transaction is checked and given up; all times in ms."""

    timeout_ms: int
    check_interval_ms: int
    check_max: int
    retention_ms: int
    op_park_time_ms: int
    reject: bool


@dataclass(frozen=True)
class TopicsConfig:
    """Which destination topics there may be: shell patterns, how many, and queues in each."""

    allowed: tuple[str, ...]
    max: int
    max_queues: int


@dataclass(frozen=True)
class DelayConfig:
    """Delay levels, in ms and as written, and the longest delay in ms."""

    levels_ms: tuple[int, ...]
    levels: tuple[str, ...]
    max_ms: int


@dataclass(frozen=True)
class MaintenanceConfig:
    """When tables are compacted, and how long what is done with is kept; all times in ms."""

    interval_ms: int
    retention_ms: int
    file_retention_ms: int
    topic_file_retention_ms: int


@dataclass(frozen=True)
class AcceptConfig:
    """What an operator accepts once that otherwise stops the start."""

    lost_range: bool = False
    other_cluster: bool = False
    recreated_topic: bool = False


@dataclass(frozen=True)
class Config:
    """A whole, checked configuration. Immutable and picklable; durations in ms, sizes in bytes."""

    warehouse: str
    checkpoints: str
    kafka: KafkaConfig
    trigger_interval_ms: int
    transaction: TransactionConfig
    topics: TopicsConfig
    delay: DelayConfig
    max_message_size: int
    maintenance: MaintenanceConfig
    accept: AcceptConfig = AcceptConfig()

    @property
    def scratch(self) -> str:
        """This warehouse's place below `checkpoints`, which coordinators of other warehouses may share."""
        return f"{self.checkpoints.rstrip('/')}/{hashlib.sha256(self.warehouse.encode()).hexdigest()[:12]}"

    def describe(self) -> str:
        """Return one `key = value` line for each key, secrets masked."""
        return "\n".join(f"{key.name} = {key.value_in(self)}" for key in KEYS)


def _resolve(name: str, value: str) -> str:
    scheme, _, target = value.partition(":")
    try:
        if scheme == "env":
            return os.environ[target]
        if scheme == "file":
            return Path(target).read_text(encoding="utf-8").strip()
    except KeyError as error:
        msg = f"{OPTIONS_KEY}.{name}: the environment variable {target} is not set; set it, or change the option"
        raise ConfigError(msg) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        msg = f"{OPTIONS_KEY}.{name}: cannot read {target}: {reason}; make the file readable, or change the option"
        raise ConfigError(msg) from error
    return value


def _masked(name: str, value: str) -> str:
    is_reference = value.startswith(("env:", "file:"))
    return "***" if _SECRET.search(name) and not is_reference else value


@dataclass(frozen=True)
class Key:
    """One configuration key: dotted name, parser, default, meaning, and its place in `Config` if named differently."""

    name: str
    parse: Callable[[Any], Any]
    default: object
    doc: str
    attribute: str = ""

    @property
    def path(self) -> str:
        """Where in `Config` the value stands, for example `transaction.timeout_ms`."""
        return self.attribute or self.name

    def value_in(self, config: Config) -> str:
        """Return the value in `config` as it may be shown."""
        value: Any = config.kafka.masked_options() if self.name == OPTIONS_KEY else config
        for part in self.path.split(".") if value is config else ():
            value = getattr(value, part)
        return f"{value}ms" if self.path.endswith("_ms") else str(value)


def _time(name: str, default: str, doc: str, lowest_ms: int = 0) -> Key:
    return Key(name, duration(lowest_ms), default, doc, f"{name}_ms")


KEYS: tuple[Key, ...] = (
    Key("warehouse", location, "./warehouse", "where the tables are: a directory or URI, or schema:<catalog.schema>"),
    Key("checkpoints", location, "./checkpoints", "where Spark keeps its checkpoints: a directory or URI"),
    Key("kafka.bootstrap_servers", servers, EMBEDDED, "host:port,... or 'embedded' for a broker of its own"),
    Key("kafka.topic_prefix", prefix, "commitlake.", "put before each Kafka topic's name"),
    Key("kafka.queues", integer(1, 4_096), 4, "partitions of half, op, messages and check"),
    Key(OPTIONS_KEY, options, {}, "passed to every Kafka client; values may be env:NAME or file:/path"),
    Key("kafka.embedded_dir", directory, "", "where the embedded broker keeps its data; empty: inside the warehouse"),
    Key("kafka.embedded_port", integer(0, 65_535), 0, "loopback port of the embedded broker; 0: any that is free"),
    _time("trigger_interval", "1s", "time from one micro-batch to the next", 1),
    _time("transaction.timeout", "6s", "age of a half message at its first check"),
    _time("transaction.check_interval", "30s", "time from one check to the next", 1),
    Key("transaction.check_max", integer(0, 30_000), 15, "checks before a transaction is discarded"),
    _time("transaction.retention", "72h", "age at which an open transaction is discarded", 1),
    _time("transaction.op_park_time", "10m", "how long an op waits for its half message"),
    Key("transaction.reject", flag, False, "refuse new half messages"),
    Key("topics.allowed", texts, ["*"], "shell patterns of the destination topics"),
    Key("topics.max", integer(1, 100_000), 1_000, "destination topics there may be"),
    Key("topics.max_queues", integer(1, 1 << 20), 64, "queues a destination topic may have"),
    Key("delay.levels", levels, LEVELS, "delays of the levels 1, 2, ..."),
    _time("delay.max", "40d", "the longest delay", 1),
    Key("max_message_size", size, "4MiB", "the largest value of a record"),
    _time("maintenance.interval", "10m", "time between runs of maintenance in the coordinator; 0s: none"),
    _time("maintenance.retention", "30d", "age after their end at which rows of all but topic tables may go"),
    _time("maintenance.file_retention", "1h", "how long files that a table no longer uses are kept", _HOUR_MS),
    _time("maintenance.topic_file_retention", "7d", "the same of topic tables: a reader's longest absence", _HOUR_MS),
    Key("accept.lost_range", flag, False, "start though Kafka no longer holds records that never landed"),
    Key("accept.other_cluster", flag, False, "start though this is another Kafka cluster than before"),
    Key("accept.recreated_topic", flag, False, "start though a Kafka topic was deleted and created again"),
)
_BY_NAME = {key.name: key for key in KEYS}


def load(path: str | None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Config:
    """Read a configuration: `overrides` (`key=value`) win over the environment, that over the file, that over defaults.

    Args:
        path: a YAML file, or None for defaults only.
        overrides: what was given with `--set`, for example `transaction.timeout=10s`.
        environ: the environment, for example `COMMITLAKE__TRANSACTION__TIMEOUT`; None for that of the process.

    Raises:
        ConfigError: the file is not readable, a key is unknown or a value is not allowed.
    """
    values: dict[str, object] = {}
    _override(values, _flatten(_read_file(path)).items() if path else ())
    _override(values, _from_environment(os.environ if environ is None else environ))
    _override(values, [_split(override) for override in overrides])
    return _build(values)


def from_mapping(values: Mapping[str, object]) -> Config:
    """Return the configuration that `values` say: nested as in the file, or with dotted names; defaults for the rest.

    Raises:
        ConfigError: a key is unknown or a value is not allowed.
    """
    flat: dict[str, object] = {}
    _override(flat, _flatten(values).items())
    return _build(flat)


def _read_file(path: str) -> Mapping[str, object]:
    try:
        parsed = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        msg = f"cannot read the configuration {path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}"
        raise ConfigError(msg) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)  # only the place: the line itself may hold a password
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        msg = f"the configuration {path} is not YAML{where}"
        raise ConfigError(msg) from None
    if not isinstance(parsed or {}, dict):
        msg = f"the configuration {path} is not a map of keys to values"
        raise ConfigError(msg)
    return parsed or {}


def _flatten(values: Mapping[str, object], above: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for part, value in values.items():
        name = f"{above}{part}"
        is_section = any(key.name.startswith(f"{name}.") for key in KEYS)
        if isinstance(value, Mapping) and name != OPTIONS_KEY:
            flat |= _flatten(value, f"{name}.")
        elif not (is_section and value is None):  # a section with nothing below it
            flat[name] = value
    return flat


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, object]]:
    names = sorted(name for name in environ if name.startswith(ENVIRONMENT_PREFIX))
    return [(name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "."), environ[name]) for name in names]


def _split(override: str) -> tuple[str, object]:
    name, equals, value = override.partition("=")
    if not equals:
        msg = f"--set {override}: '=' is missing; write --set key=value, for example --set transaction.timeout=10s"
        raise ConfigError(msg)
    return name.strip(), value


def _override(values: dict[str, object], changes: Iterable[tuple[str, object]]) -> None:
    for name, value in changes:
        option = name.removeprefix(f"{OPTIONS_KEY}.")
        if option == name:
            values[name] = value
        else:
            values[OPTIONS_KEY] = {**_parse(_BY_NAME[OPTIONS_KEY], values.get(OPTIONS_KEY) or {}), option: value}


def _build(values: Mapping[str, object]) -> Config:
    for name in values:
        if name not in _BY_NAME:
            raise ConfigError(_unknown(name, values[name]))
    sections: dict[str, dict[str, Any]] = {
        "": {},
        "kafka": {},
        "transaction": {},
        "topics": {},
        "delay": {},
        "maintenance": {},
        "accept": {},
    }
    for key in KEYS:
        section, _, attribute = key.path.rpartition(".")
        sections[section][attribute] = _parse(key, values.get(key.name, key.default))
    sections["delay"]["levels_ms"] = tuple(map(duration(), sections["delay"]["levels"]))
    return Config(
        kafka=KafkaConfig(**sections["kafka"]),
        transaction=TransactionConfig(**sections["transaction"]),
        topics=TopicsConfig(**sections["topics"]),
        delay=DelayConfig(**sections["delay"]),
        maintenance=MaintenanceConfig(**sections["maintenance"]),
        accept=AcceptConfig(**sections["accept"]),
        **sections[""],
    )


def _parse(key: Key, value: object) -> Any:
    try:
        return key.parse(value)
    except (ValueError, yaml.YAMLError) as error:
        shown = "***" if key.name == OPTIONS_KEY else repr(value)
        allowed = "YAML" if isinstance(error, yaml.YAMLError) else error
        msg = f"{key.name}: {shown} is not allowed; allowed is {allowed}"
        raise ConfigError(msg) from None


def _unknown(name: str, value: object) -> str:
    close = difflib.get_close_matches(name, _BY_NAME, n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    # Below `kafka` it may be an option in the wrong place, and so a password.
    told = "***" if name.startswith("kafka") else _masked(name, str(value))
    return f"unknown configuration key {name}; {hint}its value is {told}; known keys: {', '.join(_BY_NAME)}"
