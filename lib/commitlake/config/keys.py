"""Configuration keys: each is a field of `Config` or of one of its sections, with parser, default and meaning.

Why not pydantic-settings: its compiled core cannot travel to a cluster with `--py-files`, and every producer would have
to install it. And each error names the key, the value and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from commitlake.config import yaml_texts
from commitlake.config.secret_references import is_secret_reference
from commitlake.config.values import duration
from commitlake.errors import ConfigError
from commitlake.protocol.durations import duration_text

OPTIONS_KEY = "kafka.options"
CHECKS = "checks"
KEY = "key"
"""Name of a field's `Key` in the metadata of the field."""

_IN_ADDRESS = re.compile(
    r"(//[^:/?#@]*:).*(?=@)|([?&][^=&]*(?:passw|pwd|secret|token|credential|key|sig|odbc_connect)[^=&]*=)[^&]*",
    re.IGNORECASE,
)
"""A password in an address: its user's, which may have any characters, or that of a parameter."""
_SECRET = re.compile(r"password|secret|jaas|token|credential|keystore\.key|private", re.IGNORECASE)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str([*value] if isinstance(value, tuple) else value)


@dataclass(frozen=True)
class Key:
    """One configuration key.

    Attributes:
        parse: makes the value from the one that was given; raises ValueError, whose text says what is allowed.
        default: passed to `parse` where no value was given.
        doc: the meaning, for docs/reference/configuration.md.
        text: makes the text of a configuration from a value, without its secrets.
        name: dotted name, as in the file.
        path: where in `Config` the value is, for example `transaction.timeout_ms`.
    """

    parse: Callable[[Any], Any]
    default: object
    doc: str
    text: Callable[[Any], str] = _text
    name: str = ""
    path: str = ""

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


def key(
    parse: Callable[[Any], Any],
    default: object,
    doc: str,
    text: Callable[[Any], str] = _text,
    name: str = "",
    *,
    repr: bool = True,
) -> Any:
    """A field with the value of a key, which has the field's name unless `name` is given; maps can't be hashed."""
    own, is_hashed = Key(parse, default, doc, text, name), False if isinstance(default, dict) else None
    return field(default_factory=lambda: own.value(default), metadata={KEY: own}, hash=is_hashed, repr=repr)


def time(default: str, doc: str, lowest_ms: int = 0, name: str = "") -> Any:
    """A field, whose name ends with `_ms`, for a duration of `lowest_ms` or more; the key's name lacks this end."""
    return key(duration(lowest_ms), default, doc, duration_text, name)


def masked(option: str, value: str) -> str:
    """The value of a key, a Kafka option or a rule, as it may be shown: a secret as `***`, a reference as it is."""
    return "***" if _SECRET.search(option) and not is_secret_reference(value) else _IN_ADDRESS.sub(r"\1\2***", value)
