"""The Python of executors: the versions that they have, and the packages that are shipped to them.

Executors need CommitLake, numpy, pandas and pyarrow, in the driver's versions; a driver on the cluster needs more.
CommitLake is shipped as a zip. The others hold compiled libraries, which Python does not import from a zip. So an
archive holds them, which Spark unpacks beside each process. No interpreter is in it: that of a virtual environment is a
link to the driver's disk.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import socket
import sys
import tarfile
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from commitlake.errors import SetupError
from commitlake.spark import runtime

log = logging.getLogger(__name__)

_MODULES = ("commitlake", "numpy", "pandas", "pyarrow")
_OF_SPARK = ("pyspark", "py4j")
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


def settings(packages: Iterable[str] = ("numpy", "pandas", "pyarrow")) -> dict[str, str]:
    """Settings of Spark that ship packages, and name the interpreter: one of the driver's version on the PATH."""
    return {
        "spark.archives": f"{archive(packages)}#{DIRECTORY}",
        "spark.executorEnv.PYTHONPATH": DIRECTORY,
        "spark.pyspark.python": f"python{sys.version_info[0]}.{sys.version_info[1]}",
    }


def of_driver() -> list[str]:
    """The packages that a driver imports: the requirements of CommitLake's extra `all`.

    Raises:
        SetupError: CommitLake is on the path only, and not installed.
    """
    try:
        return _required(metadata.distribution("commitlake"), {"all"})
    except metadata.PackageNotFoundError as error:
        msg = "commitlake is not installed here, so its packages are not known; start from ./spark-submit.sh"
        raise SetupError(msg) from error


def archive(packages: Iterable[str]) -> Path:
    """The archive of packages and of all that they require, in the user's cache; made once for each set of versions.

    Raises:
        SetupError: it cannot be written.
    """
    found = _with_required(packages)
    made = runtime.cached_file("packages-{}.tar.gz", sys.version, *(f"{each.name}=={each.version}" for each in found))
    if not made.exists():
        log.info("packing %s for the cluster", ", ".join(each.name for each in found))
        part = made.with_suffix(f".{os.getpid()}")
        try:
            _pack(found, part)
            part.replace(made)
        except OSError as error:
            msg = f"cannot write {made}: {error.strerror}; make room, or set XDG_CACHE_HOME to a place with room"
            raise SetupError(msg) from error
    return made


def _with_required(packages: Iterable[str]) -> list[metadata.Distribution]:
    found: dict[str, metadata.Distribution] = {}
    left = list(packages)
    while left:
        name, _, extras = left.pop().lower().replace("_", "-").rstrip("]").partition("[")
        if name not in found and name not in _OF_SPARK:
            with suppress(metadata.PackageNotFoundError):  # one for another system or version
                found[name] = metadata.distribution(name)
                left += _required(found[name], set(extras.split(",")))
    return [found[name] for name in sorted(found)]


def _required(of: metadata.Distribution, extras: Collection[str]) -> list[str]:
    """The requirements of a distribution, as `name` or `name[extra]`."""
    wanted = re.compile(rf"""extra == ["']({"|".join(map(re.escape, extras))})["']""")
    lines = [each for each in of.requires or () if "extra ==" not in each or wanted.search(each)]
    return [re.split(r"[^\w.\-\[\],]", each, maxsplit=1)[0] for each in lines]


def _pack(found: list[metadata.Distribution], target: Path) -> None:
    with tarfile.open(target, "w:gz", compresslevel=1) as packed:  # higher levels take longer than they save
        for each in found:
            for file in each.files or ():
                inside = file.as_posix()
                if not inside.startswith(("..", *_LEFT_OUT)) and "__pycache__" not in inside:
                    packed.add(str(file.locate()), inside, recursive=False)
