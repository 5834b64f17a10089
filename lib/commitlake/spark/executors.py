"""The Python of executors: the versions that they have, and the packages that are shipped to them.

Executors need CommitLake, numpy, pandas and pyarrow, in the driver's versions. CommitLake is shipped as a zip. The
others hold compiled libraries, which Python does not import from a zip, so they are shipped as an archive that Spark
unpacks beside each executor. It holds no interpreter: that of a virtual environment is a link to the driver's disk.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import tarfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from commitlake.errors import SetupError
from commitlake.spark import runtime

log = logging.getLogger(__name__)

_MODULES = ("commitlake", "numpy", "pandas", "pyarrow")
_SHIPPED = ("numpy", "pandas", "pyarrow", "python-dateutil", "pytz", "six", "tzdata")
_LEFT_OUT = ("pandas/tests/", "pyarrow/tests/", "pyarrow/include/", "pyarrow/src/")
"""Half of the files, and never imported."""
_STATE_MACHINE = "commitlake.coordinator.coordination.state"
"""The module that a round runs on executors."""
DIRECTORY = "commitlake_packages"
_STEADY_S = 1.0
_MOST_WAIT_S = 15.0


class Look(NamedTuple):
    """The name of a process's machine, and the versions of the modules that it has."""

    host: str
    versions: tuple[tuple[str, str], ...]


def look() -> Look:
    """The machine and the versions of this process.

    Raises:
        ImportError: a module that executors need is missing.
    """
    importlib.import_module(_STATE_MACHINE)
    found = tuple((name, str(importlib.import_module(name).__version__)) for name in _MODULES)
    return Look(socket.gethostname(), (("python", f"{sys.version_info[0]}.{sys.version_info[1]}"), *found))


def await_all(spark: SparkSession) -> None:
    """Waits until no more executors register: the number of cores decides into how many tasks the work is cut."""
    context: Any = spark.sparkContext._jsc
    last, since, begun = 0, time.monotonic(), time.monotonic()
    while (now := time.monotonic()) - begun < _MOST_WAIT_S:
        count = context.sc().getExecutorMemoryStatus().size()  # the driver is one of them
        if count != last:
            last, since = count, now
        elif count > 1 and now - since > _STEADY_S:
            return
        time.sleep(_STEADY_S / 10)


def look_around(spark: SparkSession) -> set[Look]:
    """The machines and versions of the executors, by a task for each of their cores.

    Raises:
        Exception: as a task or Spark raised it: an executor cannot import a module, or has no such Python.
    """
    cores = spark.sparkContext.defaultParallelism
    return set(spark.sparkContext.parallelize(range(cores), cores).map(lambda _: look()).collect())


def settings() -> dict[str, str]:
    """Settings of Spark that ship the packages, and name the interpreter: one of the driver's version on the PATH."""
    return {
        "spark.archives": f"{archive()}#{DIRECTORY}",
        "spark.executorEnv.PYTHONPATH": DIRECTORY,
        "spark.pyspark.python": f"python{sys.version_info[0]}.{sys.version_info[1]}",
    }


def archive() -> Path:
    """The archive of the packages that this process has, in the user's cache; made once for each set of versions.

    Raises:
        SetupError: it cannot be written.
    """
    found = list(_distributions())
    made = runtime.cached_file("packages-{}.tar.gz", sys.version, *(f"{each.name}=={each.version}" for each in found))
    if not made.exists():
        log.info("packing %s for executors", ", ".join(each.name for each in found))
        part = made.with_suffix(f".{os.getpid()}")
        try:
            _pack(found, part)
            part.replace(made)
        except OSError as error:
            msg = f"cannot write {made}: {error.strerror}; make room, or set XDG_CACHE_HOME to a place with room"
            raise SetupError(msg) from error
    return made


def _distributions() -> Iterator[metadata.Distribution]:
    for name in _SHIPPED:
        try:
            yield metadata.distribution(name)
        except metadata.PackageNotFoundError:  # a version of pandas that does not need it
            continue


def _pack(found: list[metadata.Distribution], target: Path) -> None:
    with tarfile.open(target, "w:gz", compresslevel=1) as packed:  # higher levels take longer than they save
        for each in found:
            for file in each.files or ():
                inside = file.as_posix()
                if not inside.startswith(("..", *_LEFT_OUT)) and "__pycache__" not in inside:
                    packed.add(str(file.locate()), inside, recursive=False)
