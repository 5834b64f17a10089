"""Class data sharing: Java takes the classes of Spark and Delta from an archive, instead of reading them from jars.

An archive belongs to one Java and one list of jars; a Java that can't use it starts without it. `cli.warm_up` makes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from commitlake.spark import runtime

MAKE = "COMMITLAKE_MAKE_CLASS_ARCHIVE"
"""Where the archive is written when Spark's JVM ends; set by `cli.warm_up` only."""
_QUIET = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


def java_options(java: str, jars: Iterable[str]) -> list[str]:
    """Options of a JVM that has these jars on its class path: to use the archive, to make it, or none."""
    if MAKE in os.environ:
        return [f"-XX:ArchiveClassesAtExit={os.environ[MAKE]}", *_QUIET]
    archive = path(java, jars)
    return [f"-XX:SharedArchiveFile={archive}", *_QUIET] if archive.exists() else []


def path(java: str, jars: Iterable[str]) -> Path:
    """Where the archive for this Java (its command) and these jars is, if there is one."""
    return runtime.cached_file("classes-{}.jsa", java, str(runtime.spark_home()), *jars)
