"""Databricks, where it differs from other Sparks: whether this process runs there, and places in its volumes."""

from __future__ import annotations

import os
from pathlib import Path

_RUNTIME = "DATABRICKS_RUNTIME_VERSION"
_VOLUMES = "/Volumes/"
_SCHEME = "dbfs:"


def is_here() -> bool:
    """Whether this process runs on Databricks: on a cluster, or serverless."""
    return _RUNTIME in os.environ


def version() -> str:
    """The version of Databricks' runtime, such as `17.3`; empty elsewhere."""
    return os.environ.get(_RUNTIME, "")


def of_spark(place: str) -> str:
    """A place as Spark names it: on Databricks `/Volumes/...` is no directory of the driver's disk."""
    return f"{_SCHEME}{place}" if is_here() and place.startswith(_VOLUMES) else place


def volume(place: str) -> Path | None:
    """The directory by which Databricks shows a place in a volume to Python; None for any other place."""
    path = place.removeprefix(_SCHEME)
    return Path(path) if path.startswith(_VOLUMES) and (path != place or is_here()) else None


def volume_of(place: Path) -> Path:
    """The root of the volume that a directory is in: /Volumes/<catalog>/<schema>/<volume>."""
    return Path(_VOLUMES, *place.relative_to(_VOLUMES).parts[:3])


def is_out_of_reach(place: str) -> bool:
    """Whether a place is in a volume, and this is no machine of Databricks; macOS may have a disk of that name."""
    path = place.removeprefix(_SCHEME)
    return not is_here() and path.startswith(_VOLUMES) and not Path(*Path(path).parts[:3]).is_dir()
