"""Parsers of configuration values: each takes a value of YAML or of a command line, and returns the parsed value.

A parser raises ValueError, whose text says what is allowed.
"""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from commitlake.config import databricks, yaml_texts
from commitlake.config.locations import check_readable, has_scheme
from commitlake.config.secret_references import is_secret_reference
from commitlake.protocol.durations import DAY_MS, HOUR_MS, duration_ms, duration_text
from commitlake.protocol.encoding import plain_text
from commitlake.protocol.topic_names import NAME

T = TypeVar("T")

EMBEDDED = "embedded"
LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_LONGEST_MS = 36_500 * DAY_MS  # a century: `stored_at` plus any duration stays far inside 64 bits
_SIZE = re.compile(r"(\d{1,18})(B|KiB|MiB|GiB)?")
_SIZE_BYTES = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
LARGEST_MESSAGE = 15 << 20
"""Bytes. Spark reads the JSON of a batch as a VARIANT, which holds 16 MiB: a larger batch would be malformed."""
_SERVER = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\]):(\d{1,5})")


def plain(value: Any) -> Any:
    """A program's value as a file would have it: a member of `class Topic(str, Enum)` is its text, also in a map."""
    if isinstance(value, Mapping):
        return {plain(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return operator.index(value)
    return plain_text(value) if isinstance(value, str) else value


def _need(is_allowed: object, allowed: str) -> None:
    """Raise the error that says what is allowed, unless the value is."""
    if not is_allowed:
        raise ValueError(allowed)


def optional(parse: Callable[[Any], str]) -> Callable[[object], str]:
    """Return a parser that takes an empty value for none."""
    return lambda value: parse(value) if value else ""


def text(value: Any) -> str:
    """Parse any non-empty string."""
    _need(isinstance(value, str) and value.strip(), "a non-empty string")
    return plain_text(value).strip()


def location(value: object) -> str:
    """Parse a directory, made absolute, or a URI or catalog schema, kept as it is."""
    place = text(os.fspath(value) if isinstance(value, os.PathLike) else value)
    return place if has_scheme(place) else str(Path(place).expanduser().absolute())


def of_checkpoints(value: object) -> str:
    """Parse a location that only Spark writes to."""
    return databricks.of_spark(location(value))


def table_location(value: object) -> str:
    """Parse a location of tables, which deltalake can read."""
    place = location(value)
    check_readable(place)
    _need(
        not databricks.volume(place),
        "schema:<catalog>.<schema> or a URI of cloud storage; deltalake can't commit to a table in a volume",
    )
    return place


def address(value: object) -> str:
    """Parse a URL of HTTP, without a user or password in it."""
    url = urlsplit(text(value))
    is_plain = url.scheme in ("http", "https") and url.hostname and not ("@" in url.netloc or url.query or url.fragment)
    _need(is_plain, "https://HOST/PATH, without a user or password")
    return url.geturl().rstrip("/")


def reference(value: object) -> str:
    """Parse what says where a secret is."""
    _need(is_secret_reference(text(value)), "env:NAME, file:/path or, on Databricks, secret:scope/key")
    return text(value)


def servers(value: object) -> str:
    """Parse `embedded` or `host:port,host:port`."""
    addresses = [address.strip() for address in text(value).split(",")]
    matches = [_SERVER.fullmatch(address) for address in addresses]
    are_addresses = all(match and 0 < int(match[2]) < 1 << 16 for match in matches)
    _need(addresses == [EMBEDDED] or are_addresses, f"'{EMBEDDED}', or host:port,host:port,...")
    return ",".join(addresses)


def prefix(value: Any) -> str:
    """Parse a prefix of Kafka topic names; may be empty."""
    is_prefix = isinstance(value, str) and re.fullmatch(r"[a-zA-Z0-9._-]{0,200}", value)
    _need(is_prefix, "at most 200 of the characters a-z A-Z 0-9 . _ -")
    return plain_text(value)


def flag(value: object) -> bool:
    """Parse true or false, or what YAML takes for them."""
    parsed = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(str(value).lower())
    _need(parsed is not None, "true or false")
    return bool(parsed)


def integer(lowest: int, highest: int) -> Callable[[object], int]:
    """Return a parser of whole numbers from `lowest` to `highest`."""

    def parse(value: object) -> int:
        is_whole = not isinstance(value, bool) and re.fullmatch(r"\d{1,18}", str(value))
        _need(is_whole and lowest <= int(str(value)) <= highest, f"a whole number from {lowest} to {highest}")
        return int(str(value))

    return parse


def duration(lowest_ms: int = 0) -> Callable[[object], int]:
    """Return a parser of durations such as `500ms`, `6s`, `5m`, `72h`, `40d`, to ms, at least `lowest_ms`.

    Only a Python number may lack the unit, and means seconds: a text such as `10` or `1:30` may mean anything.
    """

    def parse(value: object) -> int:
        ms = duration_ms(value.strip() if isinstance(value, str) else value)
        allowed = f"a whole number with a unit, such as 500ms, 6s, 5m, 72h or 40d, from {lowest_ms}ms to 36500d"
        _need(ms is not None and lowest_ms <= ms <= _LONGEST_MS, allowed)
        return int(ms or 0)

    return parse


def choice(*allowed: str) -> Callable[[object], str]:
    """Return a parser of one of some words."""

    def parse(value: object) -> str:
        _need(value in allowed, " or ".join(allowed))
        return str(value)

    return parse


def size(value: object) -> int:
    """Parse a size such as `4MiB` to bytes."""
    match = _SIZE.fullmatch(str(value).strip())
    parsed = int(match[1]) * _SIZE_BYTES[match[2]] if match else 0
    _need(1 <= parsed <= LARGEST_MESSAGE, "bytes, or a number with B, KiB or MiB, from 1B to 15MiB")
    return parsed


def _loaded(value: object) -> Any:
    """The value as a file has it; a text in YAML, from a command line or the environment, is parsed."""
    return yaml_texts.load(value) if isinstance(value, str) else value


def texts(value: Any) -> tuple[str, ...]:
    """Parse a list of strings: YAML, or separated by commas or blanks."""
    if isinstance(value, str):
        value = yaml_texts.load(value) if value.lstrip().startswith("[") else re.split(r"[,\s]+", value.strip())
    are_texts = isinstance(value, list | tuple) and value and all(isinstance(item, str) and item for item in value)
    _need(are_texts, "a list of strings with at least one")
    return tuple(value)


def levels(value: object) -> tuple[str, ...]:
    """Parse the delay levels, a list of durations."""
    try:
        parsed = texts(value)
        for level in parsed:
            duration(1)(level)
    except ValueError as error:
        msg = f"a list of durations such as '{LEVELS}'"
        raise ValueError(msg) from error
    return parsed


_PLACES = "places"
_EVERY = "every"
_SUBJECTS = ("database", "table")
_RULE = (*_SUBJECTS, "match", "commit", "rollback", "user", "password", _EVERY, _PLACES)
"""Keys of a rule; it must have just one of the first two. All are texts, but for the last two."""


def rules(value: Any) -> dict[str, dict[str, Any]]:
    """Parse a map of producer groups to rules; their conditions are read where they are used."""
    value = _loaded(value)
    _need(
        isinstance(value, dict) and all(map(_is_rule, value.values())),
        f"a map of producer groups to maps with {', '.join(_RULE)}, of which it needs either database or table; "
        f"{_EVERY} is a duration, {_PLACES} is a list of directories or URIs, all others are texts",
    )
    return {
        str(group): {key: [*map(location, given)] if key == _PLACES else given for key, given in rule.items()}
        for group, rule in value.items()
    }


def _is_rule(rule: object) -> bool:
    if not isinstance(rule, dict) or not set(rule) <= set(_RULE) or len(set(rule).intersection(_SUBJECTS)) != 1:
        return False
    places = rule.get(_PLACES, [])
    well = isinstance(places, list) and all(isinstance(each, str) and each.strip() for each in places)
    return well and all(isinstance(given, str) for key, given in rule.items() if key not in (_EVERY, _PLACES))


def groups(value: Any) -> tuple[str, ...]:
    """Parse a list of producer groups whose names can be a part of a Kafka topic's; it may be empty."""
    value = _loaded(value)
    are_groups = isinstance(value, list | tuple) and all(
        isinstance(group, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,100}", group) for group in value
    )
    _need(are_groups, "a list of producer groups, each 1 to 100 of the characters a-z A-Z 0-9 . _ -")
    return tuple(dict.fromkeys(value))


def targets(value: Any) -> dict[str, str]:
    """Parse a map of destination topics to Kafka topics."""
    value = _loaded(value)
    are_targets = isinstance(value, dict) and all(
        isinstance(topic, str) and isinstance(target, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,249}", target)
        for topic, target in value.items()
    )
    _need(are_targets, "a map of topics to names of Kafka topics, each 1 to 249 of the characters a-z A-Z 0-9 . _ -")
    return dict(value)


_BY = ("keys", "message_id")
"""Columns that may be the name of a message."""
_DEDUP = ("by", "window")
_FILE = "file:"
JSON, AVRO = "json", "avro"
"""Formats of bodies."""
SUBJECT = "subject:"
"""Before the name under which a registry has a schema."""


class Dedup(NamedTuple):
    """How a topic shows a name once: `by` is the column that is the name, `window_ms` how long it is held."""

    by: str
    window_ms: int

    def __repr__(self) -> str:
        """The text of a configuration."""
        return f"{{by: {self.by}, window: {duration_text(self.window_ms)}}}"


def _by_topic(value: object, parse: Callable[[object], T], allowed: str) -> dict[str, T]:
    """Parse a map of destination topics to values; `parse` raises ValueError or OSError for one that is not allowed."""
    value = _loaded(value)
    try:
        if not isinstance(value, dict) or not all(NAME.fullmatch(str(topic)) for topic in value):
            raise ValueError
        return {str(topic): parse(given) for topic, given in value.items()}
    except (ValueError, OSError) as error:
        msg = f"a map of topics{allowed}"
        raise ValueError(msg) from error


def dedups(value: object) -> dict[str, Dedup]:
    """Parse a map of destination topics to the column that is a name there, and how long it is held, in ms."""
    allowed = " to maps such as {by: keys, window: 30d}; by is keys or message_id, window 1s or more"
    return _by_topic(value, _dedup, allowed)


def _dedup(given: object) -> Dedup:
    if not isinstance(given, dict) or not set(given) <= set(_DEDUP):
        raise ValueError
    by = given.get("by", _BY[0])
    if by not in _BY:
        raise ValueError
    return Dedup(by, duration(1_000)(given.get("window")))


class TopicSchema(NamedTuple):
    """How the bodies of a topic are parsed.

    Attributes:
        format: `JSON` or `AVRO`.
        schema: the columns as SQL has them; a schema of Avro, or the `SUBJECT` of one in the registry.
        registry: URL of the registry that has the schemas of bodies, or where that is, such as `env:NAME`; or empty.
    """

    format: str
    schema: str
    registry: str = ""

    def __repr__(self) -> str:
        """The text of a configuration."""
        registry = f", registry: {json.dumps(self.registry)}" if self.registry else ""
        return f"{{format: {self.format}, schema: {json.dumps(self.schema)}{registry}}}"


def schemas(value: object) -> dict[str, TopicSchema]:
    """Parse a map of destination topics to the format of their bodies, its columns, and for Avro a registry."""
    such = " to maps such as {format: json, schema: 'id BIGINT, amount DECIMAL(10, 2)'}"
    avro = "format avro has a schema of Avro, or a registry and subject:NAME; a URL with a password stands elsewhere"
    return _by_topic(value, _schema, f"{such}; the schema may stand in a file, file:/path; {avro}, as env:NAME")


def _schema(given: object) -> TopicSchema:
    if not isinstance(given, dict) or not {"format", "schema"} <= set(given) <= {*TopicSchema._fields}:
        raise ValueError
    kind, schema, registry = given["format"], given["schema"], str(given.get("registry", "")).strip()
    is_well = kind in (JSON, AVRO) and (kind == AVRO or not registry) and _is_registry(registry)
    # YAML reads the JSON of a schema of Avro, unless it is quoted.
    schema = json.dumps(schema) if isinstance(schema, dict) and kind == AVRO else str(schema).strip()
    if schema.startswith(_FILE):
        schema = Path(schema.removeprefix(_FILE)).read_text(encoding="utf-8").strip()
    if not is_well or not schema or (schema.startswith(SUBJECT) and not registry):
        raise ValueError
    return TopicSchema(kind, schema, registry)


def _is_registry(given: str) -> bool:
    """Whether it is no registry, says where its URL is, or is a URL without a password."""
    is_url = given.startswith(("http://", "https://")) and "@" not in given
    return not given or is_url or is_secret_reference(given)


class Age(int):
    """An age in ms, 0 for none; its text is that of a configuration."""

    def __repr__(self) -> str:
        """The text of a configuration."""
        return duration_text(self) if self else "none"


def ages(value: object) -> dict[str, Age]:
    """Parse a map of destination topics, or `default`, to an age; `none` for no limit."""
    age = duration(HOUR_MS)
    return _by_topic(
        value,
        lambda given: Age(0 if given in (None, "none") else age(given)),
        ", or default, to ages from 1h up, such as {default: none, clicks: 30d}",
    )


def options(value: Any) -> dict[str, str]:
    """Parse a map of Kafka client options to strings."""
    value = _loaded(value)
    are_options = isinstance(value, dict) and all(isinstance(item, str | int | float) for item in value.values())
    _need(are_options, "a map of the Java client's option names to strings or numbers")
    return {str(name): str(item).lower() if isinstance(item, bool) else str(item) for name, item in value.items()}
