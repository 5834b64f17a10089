"""Places of tables and checkpoints: a directory, a URI such as `s3a://bucket/path`, or `schema:<catalog>.<schema>`."""

from __future__ import annotations

import re
from pathlib import Path

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def has_scheme(place: str) -> bool:
    """Whether `place` is a URI or a catalog schema, and not a plain path."""
    return _SCHEME.match(place) is not None


def is_local(place: str) -> bool:
    """Whether `place` is a directory of this machine: a plain path or a `file:` URI."""
    return place.startswith("file:") or not has_scheme(place)


def local_path(place: str) -> Path:
    """The path of a local place, which may be written `/dir`, `file:/dir` or `file:///dir`."""
    return Path(re.sub("^file:/*", "/", place))
