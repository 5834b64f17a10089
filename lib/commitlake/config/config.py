"""The configuration: read from defaults, a YAML file, the environment and `--set`; later ones win."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml

from commitlake.config import sections, yaml_texts
from commitlake.config.keys import CHECKS, KEY, OPTIONS_KEY, Key, key, masked, time
from commitlake.config.locations import CATALOG
from commitlake.config.values import of_checkpoints, optional, plain, rules, size, table_location
from commitlake.errors import ArgumentError, ConfigError
from commitlake.protocol.wire import Settings

ENVIRONMENT_PREFIX = "COMMITLAKE__"


def _masked(given: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of rules, without their secrets."""

    def shown(name: str, value: Any) -> object:
        return [masked(name, str(each)) for each in value] if isinstance(value, list) else masked(name, str(value))

    return str({group: {name: shown(name, value) for name, value in rule.items()} for group, rule in given.items()})


@dataclass(frozen=True)
class Config:
    """A whole, checked configuration, immutable and picklable: fields that are keys, and sections of such fields."""

    warehouse: str = key(
        table_location, "./warehouse", "where the tables are: a directory or URI, or schema:<catalog.schema>"
    )
    checkpoints: str = key(of_checkpoints, "./checkpoints", "where Spark keeps its checkpoints: a directory or URI")
    receipts: str = key(
        optional(table_location), "", "where consumers keep what they did; empty: the warehouse's name and _receipts"
    )
    receipts_retention_ms: int = time(
        "30d", "age at which receipts of messages that are done go; 0s: never", name="receipts.retention"
    )
    catalog: sections.CatalogConfig = field(default_factory=sections.CatalogConfig)
    kafka: sections.KafkaConfig = field(default_factory=sections.KafkaConfig)
    trigger_interval_ms: int = time(
        "1s", "time from round to round at least; what comes alone is read within 100 ms", 1
    )
    standby_after_ms: int = time("15s", "silence after which a standby takes over, off local disks", 1_000)
    transaction: sections.TransactionConfig = field(default_factory=sections.TransactionConfig)
    checks: Mapping[str, Mapping[str, Any]] = key(
        rules, {}, "by producer group: what answers its checks, a database or a table", _masked, repr=False
    )
    topics: sections.TopicsConfig = field(default_factory=sections.TopicsConfig)
    delay: sections.DelayConfig = field(default_factory=sections.DelayConfig)
    max_message_size: int = key(size, "4MiB", "the largest value of a record")
    gateway: sections.GatewayConfig = field(default_factory=sections.GatewayConfig)
    maintenance: sections.MaintenanceConfig = field(default_factory=sections.MaintenanceConfig)
    metrics: sections.MetricsConfig = field(default_factory=sections.MetricsConfig)
    accept: sections.AcceptConfig = field(default_factory=sections.AcceptConfig)

    @property
    def scratch(self) -> str:
        """This warehouse's place below `checkpoints`, which coordinators of other warehouses may share."""
        return f"{self.checkpoints.rstrip('/')}/{hashlib.sha256(self.warehouse.encode()).hexdigest()[:12]}"

    @property
    def is_in_catalog(self) -> bool:
        """Whether the tables are in a catalog's schema."""
        return self.warehouse.startswith(CATALOG)

    @property
    def tables_at(self) -> str:
        """The directory or URI below which the tables are; `schema:<catalog>.<schema>` where that is not known here."""
        return (self.is_in_catalog and self.catalog.location) or self.warehouse

    @property
    def signs_at(self) -> str:
        """Where its coordinator gives signs of life: in the warehouse; where that is a catalog, below `checkpoints`."""
        return self.scratch if self.is_in_catalog else self.warehouse

    @property
    def receipts_place(self) -> str:
        """Where the tables of consumers are: never inside the warehouse, to which only its coordinator writes.

        Raises:
            ConfigError: the warehouse is in a catalog, and `receipts` is empty.
        """
        if not self.receipts and self.is_in_catalog:
            msg = f"receipts: it is empty, and the warehouse is {self.warehouse}; give a directory or URI for receipts"
            raise ConfigError(msg)
        return self.receipts or f"{self.warehouse.rstrip('/')}_receipts"

    def limits(self, topics: Iterable[str]) -> Settings:
        """The limits that producers must respect, when these topics exist."""
        return Settings(
            max_message_size=self.max_message_size,
            delay_levels=self.delay.levels,
            delay_max_ms=self.delay.max_ms,
            reject_transactions=self.transaction.reject,
            queues=self.kafka.queues,
            max_queues=self.topics.max_queues,
            topics_allowed=self.topics.allowed,
            topics_max=self.topics.max,
            topics=tuple(sorted(topics)),
            check_topics=self.kafka.check_topics,
            batch_head=True,
            ruled_groups=tuple(sorted(self.checks)),
        )

    def describe(self) -> str:
        """Return one `key = value` line for each key, each value as a file may have it, secrets masked."""
        return "\n".join(f"{each.name} = {each.text(attrgetter(each.path)(self))}" for each in KEYS)


def _keys_of(section: Any, above: str = "") -> Iterator[Key]:
    for each in fields(section):
        path, found = f"{above}{each.name}", each.metadata.get(KEY)
        if found is None:
            yield from _keys_of(each.default_factory, f"{path}.")
        else:
            yield replace(found, name=found.name or path.removesuffix("_ms"), path=path)


KEYS = tuple(_keys_of(Config))
BY_NAME = {each.name: each for each in KEYS}
MAPS = frozenset(each.name for each in KEYS if each.default == {})
"""Keys whose value is a map."""


def load(
    path: str | os.PathLike[str] | None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Config:
    """Read a configuration: `overrides` win over the environment, that over the file, that over defaults.

    Args:
        path: a YAML file, or None for defaults only.
        overrides: what was given with `--set`, each `key=value`, for example `transaction.timeout=10s`.
        environ: the environment, for example `COMMITLAKE__TRANSACTION__TIMEOUT`; None for that of the process.

    Raises:
        ConfigError: the file is not readable, a key is unknown or a value is not allowed.
    """
    return _build(given_values(path, overrides, environ))


def given_values(
    path: str | os.PathLike[str] | None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> dict[str, object]:
    """The values that `load` reads, by their keys' dotted names, as they were given: secrets are references."""
    values: dict[str, object] = {}
    _override(values, _flatten(_read_file(path)).items() if path else ())
    _override(values, _from_environment(os.environ if environ is None else environ).items())
    _override(values, [_split(override) for override in overrides])
    return values


def from_mapping(values: Mapping[str, object]) -> Config:
    """Return the configuration of `values`: nested as in the file, or with dotted names; defaults for the rest.

    Raises:
        ConfigError: a key is unknown or a value is not allowed.
    """
    flat: dict[str, object] = {}
    _override(flat, _flatten(plain(values)).items())
    return _build(flat)


Conf = Config | str | os.PathLike[str] | Mapping[str, object]
"""A configuration as callers give it: a `Config`, the path of a file, or its keys and values."""


def of(conf: Conf) -> Config:
    """Return the `Config` of a configuration as callers give it: itself, the path of a file, or its keys and values.

    Raises:
        ArgumentError: it is none of these.
        ConfigError: the file is not readable, a key is unknown or a value is not allowed.
    """
    if isinstance(conf, Config):
        return conf
    if isinstance(conf, Mapping):
        return from_mapping(conf)
    try:
        return load(os.fspath(conf))
    except TypeError as error:
        msg = f"the configuration is {conf!r:.100}; give the path of a YAML file, or a map of keys to values"
        raise ArgumentError(msg) from error


def _read_file(path: str | os.PathLike[str]) -> Mapping[str, object]:
    try:
        parsed = yaml_texts.load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        msg = f"cannot read the configuration {path}: {reason}; name a readable YAML file"
        raise ConfigError(msg) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)  # only the place: the line itself may hold a password
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = yaml_texts.key_problem(error)
        told = f"{where}: {problem}" if problem else f" is not YAML{where}"
        msg = f"the configuration {path}{told}"
        raise ConfigError(msg) from None
    if not isinstance(parsed, dict):
        found = "is empty: it may have been cut short" if parsed is None else "is not a map of keys to values"
        msg = f"the configuration {path} {found}; write `key: value` lines; without a file all keys have their defaults"
        raise ConfigError(msg)
    return parsed


def _flatten(values: Mapping[str, object], above: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for part, value in values.items():
        name = f"{above}{part}"
        is_section = any(key.name.startswith(f"{name}.") for key in KEYS)
        if isinstance(value, Mapping) and name not in MAPS:
            _add(flat, _flatten(value, f"{name}."))
        elif isinstance(value, Mapping) and name == OPTIONS_KEY:
            _add(flat, {f"{name}.{option}": each for option, each in value.items()})
        elif not (is_section and value is None):  # a section with nothing below it
            _add(flat, {name: value})
    return flat


def _add(flat: dict[str, object], more: Mapping[str, object]) -> None:
    twice = next((name for name in more if name in flat), None)
    if twice is not None:
        msg = f"{twice}: it is given twice in one place, in two spellings; leave one out"
        raise ConfigError(msg)
    flat |= more


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in sorted(name for name in environ if name.startswith(ENVIRONMENT_PREFIX)):
        _add(found, {name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "."): environ[name]})
    return found


def _split(override: str) -> tuple[str, object]:
    name, equals, value = override.partition("=")
    if not equals:
        name = re.split(r"[:\s]", override)[0]  # what follows may be a password
        msg = f"--set {name}: '=' is missing; write --set key=value, for example --set transaction.timeout=10s"
        raise ConfigError(msg)
    return name.strip(), value


def _override(values: dict[str, object], changes: Iterable[tuple[str, object]]) -> None:
    for name, value in changes:
        option = name.removeprefix(f"{OPTIONS_KEY}.")
        if option == name:
            values[name] = value
        else:
            values[OPTIONS_KEY] = {**BY_NAME[OPTIONS_KEY].value(values.get(OPTIONS_KEY) or {}), option: value}


def _build(values: Mapping[str, object]) -> Config:
    for name in values:
        if name not in BY_NAME:
            raise unknown_key(name, values[name])
    given: dict[str, dict[str, Any]] = {}
    for each in KEYS:
        section, _, attribute = each.path.rpartition(".")
        given.setdefault(section, {})[attribute] = each.value(values.get(each.name, each.default))
    kinds: dict[str, Any] = {kind.name: kind.default_factory for kind in fields(Config)}
    return Config(**given.pop(""), **{name: kinds[name](**found) for name, found in given.items()})


def unknown_key(name: str, value: object) -> ConfigError:
    """The error about a key that does not exist, with the nearest ones."""
    close = difflib.get_close_matches(name, BY_NAME, n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    # A map may belong to a misspelt key and have a password in it; below these, the value may be a misplaced password.
    is_map = str(value).lstrip().startswith(("{", "["))
    shown = "***" if is_map or name.startswith(("kafka", "catalog", CHECKS)) else masked(name, str(value))
    msg = f"unknown configuration key {name}; {hint}its value is {shown}; known keys: {', '.join(BY_NAME)}"
    return ConfigError(msg)
