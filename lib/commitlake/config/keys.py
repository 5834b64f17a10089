"""The configuration keys: the name, the parser, the default and the meaning of each, in one table.

Why not pydantic-settings: its compiled core cannot travel to a cluster with `--py-files`, and every producer would have
to install it. And each error names the key, the value and what is allowed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from commitlake.config import yaml_texts
from commitlake.config.secret_references import is_secret_reference
from commitlake.config.values import (
    EMBEDDED,
    LEVELS,
    address,
    ages,
    choice,
    dedups,
    directory,
    duration,
    flag,
    groups,
    integer,
    levels,
    of_checkpoints,
    options,
    prefix,
    reference,
    rules,
    schemas,
    servers,
    size,
    table_location,
    tables_beside,
    targets,
    text,
    texts,
)
from commitlake.errors import ConfigError
from commitlake.protocol.durations import HOUR_MS

OPTIONS_KEY = "kafka.options"
TO_KAFKA = "topics.to_kafka"
DEDUP = "topics.dedup"
RETENTION, SCHEMAS = "topics.retention", "topics.schemas"
CHECKS = "checks"
MAPS = frozenset({OPTIONS_KEY, TO_KAFKA, DEDUP, RETENTION, SCHEMAS, CHECKS})
"""Keys whose value is a map."""

_IN_ADDRESS = re.compile(
    r"(//[^:/?#@]*:).*(?=@)|([?&][^=&]*(?:passw|pwd|secret|token|credential|key|sig|odbc_connect)[^=&]*=)[^&]*",
    re.IGNORECASE,
)
"""A password in an address: its user's, which may have any characters, or that of a parameter."""
_SECRET = re.compile(r"password|secret|jaas|token|credential|keystore\.key|private", re.IGNORECASE)


@dataclass(frozen=True)
class Key:
    """One configuration key.

    Attributes:
        name: dotted name, as in the file.
        parse: makes the value from the one that was given; raises ValueError, whose text says what is allowed.
        default: passed to `parse` where no value was given.
        doc: the meaning, for docs/reference/configuration.md.
        path: where in `Config` the value is, for example `transaction.timeout_ms`.
    """

    name: str
    parse: Callable[[Any], Any]
    default: object
    doc: str
    path: str

    def value(self, given: object) -> Any:
        """Parse the value that was given.

        Raises:
            ConfigError: it is not allowed.
        """
        try:
            return self.parse(given)
        except (ValueError, yaml.YAMLError) as error:
            shown = "***" if self.name in (OPTIONS_KEY, CHECKS) else masked(self.name, repr(given))
            problem = yaml_texts.key_problem(error) if isinstance(error, yaml.YAMLError) else None
            allowed = "YAML" if isinstance(error, yaml.YAMLError) else error
            msg = f"{self.name}: {problem or f'{shown} is not allowed; allowed is {allowed}'}"
            raise ConfigError(msg) from None


def _key(name: str, parse: Callable[[Any], Any], default: object, doc: str) -> Key:
    return Key(name, parse, default, doc, path=name)


def _time(name: str, default: str, doc: str, lowest_ms: int = 0) -> Key:
    return Key(name, duration(lowest_ms), default, doc, path=f"{name}_ms")


KEYS: tuple[Key, ...] = (
    _key(
        "warehouse",
        table_location,
        "./warehouse",
        "where the tables are: a directory or URI, or schema:<catalog.schema>",
    ),
    _key("checkpoints", of_checkpoints, "./checkpoints", "where Spark keeps its checkpoints: a directory or URI"),
    _key(
        "receipts", tables_beside, "", "where consumers keep what they did; empty: the warehouse's name and _receipts"
    ),
    Key(
        *("receipts.retention", duration(), "30d", "age at which receipts of messages that are done go; 0s: never"),
        path="receipts_retention_ms",
    ),
    _key("catalog.location", tables_beside, "", "of a warehouse in a catalog: the directory or URI of its schema"),
    _key("catalog.url", address, "", "or Unity Catalog's REST API, https://HOST/api/2.1/unity-catalog"),
    _key("catalog.token", reference, "", "its token: env:NAME, file:/path or secret:scope/key"),
    _key("kafka.bootstrap_servers", servers, EMBEDDED, "host:port,... or 'embedded' for a broker of its own"),
    _key("kafka.topic_prefix", prefix, "commitlake.", "put before each Kafka topic's name"),
    _key("kafka.queues", integer(1, 4_096), 4, "partitions of half, op, messages and check"),
    _key("kafka.check_topics", groups, [], "producer groups with a check topic of their own"),
    _key(
        OPTIONS_KEY, options, {}, "options of all Kafka clients; values may be env:NAME, file:/path, secret:scope/key"
    ),
    _key("kafka.embedded_dir", directory, "", "where the embedded broker keeps its data; empty: inside the warehouse"),
    _key("kafka.embedded_port", integer(0, 65_535), 0, "loopback port of the embedded broker; 0: any that is free"),
    _time("trigger_interval", "1s", "time from round to round at least; what comes alone is read within 100 ms", 1),
    _time("standby_after", "15s", "silence after which a standby takes over, off local disks", 1_000),
    _time("transaction.timeout", "6s", "age of a half message at its first check"),
    _time("transaction.check_interval", "30s", "time from the answer UNKNOWN to the next check", 1),
    _time("transaction.check_repeat", "5m", "pause before an unanswered check is sent again; doubles to 1h", 1),
    _key("transaction.check_max", integer(0, 30_000), 15, "answered checks before a transaction is discarded"),
    _key("transaction.unanswered", choice("wait", "count"), "wait", "whether an unanswered check waits or counts"),
    _time("transaction.retention", "72h", "age at which an open transaction is discarded", 1),
    _time("transaction.op_park_time", "10m", "how long an op waits for its half message"),
    _key("transaction.reject", flag, False, "refuse new half messages"),
    _key(CHECKS, rules, {}, "by producer group: what answers its checks, a database or a table"),
    _key("topics.allowed", texts, ["*"], "shell patterns of the destination topics"),
    _key("topics.max", integer(1, 100_000), 1_000, "destination topics there may be"),
    _key("topics.max_queues", integer(1, 1 << 20), 64, "queues a destination topic may have"),
    _key(TO_KAFKA, targets, {}, "topics that go to Kafka topics as well, for example {orders: orders-committed}"),
    _key(DEDUP, dedups, {}, "topics that show a name once"),
    _key(RETENTION, ages, {}, "by topic, or default: age at which rows of its table go, for example {clicks: 30d}"),
    _key(
        SCHEMAS, schemas, {}, "by topic: columns for its bodies, for example {orders: {format: json, schema: id INT}}"
    ),
    _key("delay.levels", levels, LEVELS, "delays of the levels 1, 2, ..."),
    _time("delay.max", "40d", "the longest delay", 1),
    _key("max_message_size", size, "4MiB", "the largest value of a record"),
    _key("gateway.max_properties", integer(0, 100_000), 128, "user properties of a message that a gateway takes"),
    _key("gateway.max_property_size", size, "16KiB", "bytes of its tag, keys and user properties together"),
    _key("gateway.max_message_group", size, "63B", "bytes of its message group"),
    _time("gateway.min_invisible", "10s", "the shortest invisible duration of a receive", 1),
    _time("maintenance.interval", "10m", "time between runs of maintenance in the coordinator; 0s: none"),
    _time("maintenance.retention", "30d", "age after their end at which rows of all but topic tables may go"),
    _time("maintenance.file_retention", "1h", "how long files that a table no longer uses are kept", HOUR_MS),
    _time("maintenance.topic_file_retention", "7d", "the same of topic tables: a reader's longest absence", HOUR_MS),
    _key("metrics.port", integer(0, 65_535), 0, "port of /metrics and /healthz in the coordinator; 0: none"),
    _key("metrics.host", text, "127.0.0.1", "address that it listens on; 0.0.0.0, or :: with IPv6: all of them"),
    _key("accept.lost_range", flag, False, "start though Kafka no longer holds records that never landed"),
    _key("accept.other_cluster", flag, False, "start though this is another Kafka cluster than before"),
    _key("accept.recreated_topic", flag, False, "start though a Kafka topic was deleted and created again"),
)
BY_NAME = {key.name: key for key in KEYS}


def masked(option: str, value: str) -> str:
    """The value of a key, a Kafka option or a rule, as it may be shown: a secret as `***`, a reference as it is."""
    return "***" if _SECRET.search(option) and not is_secret_reference(value) else _IN_ADDRESS.sub(r"\1\2***", value)


def unknown_key(name: str, value: object) -> ConfigError:
    """The error about a key that does not exist, with the nearest ones."""
    close = difflib.get_close_matches(name, BY_NAME, n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    # A map may belong to a misspelt key and have a password in it; below these, the value may be a misplaced password.
    is_map = str(value).lstrip().startswith(("{", "["))
    shown = "***" if is_map or name.startswith(("kafka", "catalog", CHECKS)) else masked(name, str(value))
    msg = f"unknown configuration key {name}; {hint}its value is {shown}; known keys: {', '.join(BY_NAME)}"
    return ConfigError(msg)
