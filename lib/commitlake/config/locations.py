"""Places of tables and checkpoints: a directory, a URI such as `s3a://bucket/path`, or `schema:<catalog>.<schema>`."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

CATALOG = "schema:"
"""Begin of a warehouse whose tables are in a catalog's schema."""
JVM_LOCK = ".coordinator.jvm.lock"
"""File of a local warehouse that the JVM of its coordinator holds a lock on."""
SIGN_OF_LIFE = "_coordinator"
"""File of any other warehouse that its coordinator rewrites at short intervals, and deletes at a clean stop."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_FILE = re.compile("^file:/*", re.IGNORECASE)
_ALIASES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb", "gcs": "gs"}
"""Schemes by which programs name the same bucket differently."""
_UNREADABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\\\[\]^|\x00-\x1f\x7f]")
"""In a local path: deltalake reads an escape and a backslash as in a URL, and crashes on the rest."""
_UNCLEAR = re.compile(r"[\\%?#\s\x00-\x1f\x7f]|/\.{0,2}(/|$)")
"""Escapes, queries, `.`, `..` and empty parts of a URI: libraries read them in different ways."""


def has_scheme(place: str) -> bool:
    """Whether `place` is a URI or a catalog schema, and not a plain path."""
    return _SCHEME.match(place) is not None


def is_local(place: str) -> bool:
    """Whether `place` is a directory of this machine: a plain path or a `file:` URI."""
    return _FILE.match(place) is not None or not has_scheme(place)


def local_path(place: str) -> Path:
    """The path of a local place, which may be written `/dir`, `file:/dir` or `file:///dir`."""
    return Path(_FILE.sub("/", place))


def check_readable(place: str) -> None:
    """Reject a local directory whose name deltalake takes for another one, or can't read.

    Raises:
        ValueError: it is such a directory; the text says what is allowed.
    """
    if is_local(place) and (found := _UNREADABLE.search(str(local_path(place).absolute()))):
        msg = (
            f"a directory without {found[0]!r} in its path, which deltalake can't read; rename it, or give a link to it"
        )
        raise ValueError(msg)


def not_there(place: str) -> str | None:
    """Text for an error where a local directory does not exist; None where it does, or is not local."""
    if not is_local(place) or local_path(place).is_dir():
        return None
    return f"the directory {place} is not there; a relative path counts from the working directory, here {Path.cwd()}"


def no_parent(place: str) -> str | None:
    """Text for an error where a local directory can't be made: its parent does not exist, or it is `/`; else None.

    A path that was cut short or mistyped must not become a second, empty warehouse.
    """
    if not is_local(place):
        return None
    above = local_path(place).absolute().parent
    if above == local_path(place):
        return f"{place} is not allowed: it is the root of the file system; give a directory in it"
    if above.is_dir():
        return None
    return f"{place} is not allowed: the directory {above} is not there; give a place in one that is, or make it"


def parts(place: str) -> tuple[str, ...]:
    """Parts by which a place is compared: its scheme, then each directory; symbolic links and `..` are resolved.

    Raises:
        ValueError: it is a URI that can be read in several ways, or an impossible path.
    """
    if is_local(place):
        return ("file", *local_path(place).resolve().parts)
    rest = place.partition(":")[2].removeprefix("//").rstrip("/")
    if not rest or _UNCLEAR.search(f"/{rest}"):
        msg = f"{place[:80]!r} has no place, or one that programs may read in several ways"
        raise ValueError(msg)
    return likely_parts(place)


def likely_parts(place: str) -> tuple[str, ...]:
    """The same by the usual reading, for a place that nobody tries to disguise, such as `hdfs:///lake`."""
    if is_local(place):
        return parts(place)
    scheme, _, rest = place.partition(":")
    path = posixpath.normpath(f"/{rest.lstrip('/')}")
    return (_ALIASES.get(scheme.lower(), scheme.lower()), *path.strip("/").split("/"))


def is_within(inner: tuple[str, ...], outer: tuple[str, ...]) -> bool:
    """Whether the place `inner` is `outer` or below it, both as `parts`."""
    return inner[: len(outer)] == outer
