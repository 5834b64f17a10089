"""Values that say where a secret is, so that a configuration can be shown and sent around without it."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from commitlake.errors import ConfigError

SCHEMES = ("env", "file", "secret")


def is_secret_reference(value: str) -> bool:
    """Whether a value only says where a secret is."""
    scheme, colon, _ = value.partition(":")
    return bool(colon) and scheme in SCHEMES


def resolve(key: str, value: str) -> str:
    """The secret that `env:NAME`, `file:/path` or, on Databricks, `secret:scope/key` names; any other value as it is.

    Raises:
        ConfigError: the variable is not set, or the file or secret is not readable.
    """
    scheme, _, target = value.partition(":")
    try:
        if scheme == "env":
            return os.environ[target]
        if scheme == "file":
            return Path(target).read_text(encoding="utf-8").strip()
        if scheme == "secret":
            return _databricks_secret(key, *target.split("/", 1))
    except KeyError as error:
        msg = f"{key}: the environment variable {target} is not set; set it, or change the option"
        raise ConfigError(msg) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        msg = f"{key}: cannot read {target}: {reason}; make the file readable, or change the option"
        raise ConfigError(msg) from error
    return value


def _databricks_secret(key: str, scope: str, name: str = "") -> str:
    try:
        runtime: Any = importlib.import_module("databricks.sdk.runtime")  # there on every cluster, and nowhere else
        return str(runtime.dbutils.secrets.get(scope=scope, key=name))
    except ImportError as error:
        msg = f"{key}: 'secret:' names a secret of Databricks; elsewhere use env:NAME or file:/path"
        raise ConfigError(msg) from error
    except Exception as error:  # of Databricks
        msg = f"{key}: cannot read the secret {scope}/{name}: {type(error).__name__}; create or allow it"
        raise ConfigError(msg) from error
