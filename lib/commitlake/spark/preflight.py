"""Checks of the machine, in Python before Java starts: Java reports what is missing by a stack trace, or late."""

from __future__ import annotations

import os
import pwd
import re
import resource
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from commitlake.errors import SetupError

if TYPE_CHECKING:
    from commitlake.config import Config

_LEAST_FILES, _MANY_FILES = 1_024, 65_536
_LEAST_HEAP = 512 << 20
"""Spark itself demands 450 MiB of the heap that Java reports, which is a little less than the heap that it is given."""
_LEAST_FREE = 64 << 20
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_IMPORTED = {
    *("click", "deltalake", "duckdb", "kafka", "numpy", "pandas", "prometheus_client", "psycopg", "pyarrow", "rich"),
    *("sqlglot", "typer", "yaml", *sys.stdlib_module_names),
}


def _lack(what: str, value: str, allowed: str, remedy: str) -> str:
    """The text about a requirement that the machine does not meet."""
    return f"{what}: {value}; allowed is {allowed}; {remedy}"


OPTIMISED = _lack(
    "python",
    "-O, or PYTHONOPTIMIZE is set",
    "neither, since assertions of kafka-python do work: without them it reaches no broker",
    "leave them out",
)


def check(settings: Mapping[str, str], *, is_one_machine: bool) -> None:
    """Check the machine.

    Raises:
        SetupError: the machine lacks something; the text names all that it lacks.
    """
    heap = settings.get("spark.driver.memory") or os.environ.get("SPARK_DRIVER_MEMORY", "1g")
    host = () if is_one_machine else _host()
    _refuse(_optimised(), _user(), _files(), _heap(heap), host, _space("TMPDIR", _temp()))


def check_coordinator(config: Config, *, is_shared: Callable[[], bool]) -> None:
    """Check what a coordinator needs in addition.

    Another coordinator of its warehouse may hold the port (`is_shared`); the start reports that one.

    Raises:
        SetupError: the machine lacks something; the text names all that it lacks.
    """
    from commitlake.config.locations import is_local, local_path

    places = {"warehouse": config.warehouse, "checkpoints": config.checkpoints}
    local = [_space(name, local_path(place)) for name, place in places.items() if is_local(place)]
    _refuse(*local, (lack for lack in _port(config.metrics.host, config.metrics.port) if not is_shared()))


def check_imports() -> None:
    """Check PYTHONPATH, before any module is imported that it may hide; on Databricks it is not the user's.

    Raises:
        SetupError: a directory there hides a module.
    """
    if "DATABRICKS_RUNTIME_VERSION" not in os.environ:  # as in config/databricks.py: `config` imports YAML
        _refuse(_hidden(os.environ.get("PYTHONPATH", "")))


def _refuse(*found: Iterator[str] | tuple[()]) -> None:
    if lacks := [lack for each in found for lack in each]:
        raise SetupError("\n".join(lacks))


def _optimised() -> Iterator[str]:
    if sys.flags.optimize:
        yield OPTIMISED


def _user() -> Iterator[str]:
    """Hadoop asks the system for the name of the user that runs it."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        line = f"commitlake:x:{os.getuid()}:{os.getgid()}::/tmp:/bin/sh"
        value = f"user id {os.getuid()}, which has no entry in /etc/passwd"
        yield _lack(
            "user", value, "one with a name, which Hadoop needs", f"add one, for example {line}, or run as another user"
        )


def _files() -> Iterator[str]:
    """Raises the limit, as Java does, up to 65 536: processes that are started inherit it. Python alone would not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    now, most = (sys.maxsize if each == resource.RLIM_INFINITY else each for each in (soft, hard))
    if most < _LEAST_FILES:
        remedy = "raise it with ulimit -n, or in systemd with LimitNOFILE"
        yield _lack("open files", f"at most {most}", f"a limit of {_LEAST_FILES} or more", remedy)
    elif now < min(most, _MANY_FILES):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, _MANY_FILES), hard))


def _heap(given: str) -> Iterator[str]:
    match = re.fullmatch(r"(\d{1,12})([kmgt]?)", given.strip().lower())
    if not match or int(match[1]) * _UNITS[match[2]] < _LEAST_HEAP:
        remedy = "change --driver-memory in COMMITLAKE_SPARK_ARGS"
        yield _lack("spark.driver.memory", given, "512m or more, a whole number with m or g", remedy)


def _host() -> Iterator[str]:
    """Executors connect to an address of the driver."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        if "SPARK_LOCAL_IP" not in os.environ:
            value, remedy = f"{name} has no address ({error.strerror})", "add it to /etc/hosts, or set SPARK_LOCAL_IP"
            yield _lack("host name", value, "one that resolves", remedy)


def _temp() -> Path | None:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return None


def _space(what: str, place: Path | None) -> Iterator[str]:
    """Whether a disk has room for the files of a start; for a directory that is still to be made, its parent's disk."""
    allowed = f"at least {_LEAST_FREE >> 20} MiB free"
    if place is None:
        yield _lack(what, "no directory for temporary files can be written", allowed, "make room, or set TMPDIR to one")
        return
    from commitlake.config.disks import Disk  # imports YAML, which PYTHONPATH may hide

    disk = Disk.of(what, place)
    if disk.total and disk.free < _LEAST_FREE:
        ballast = " (commitlake doctor --make-room)" if what == "warehouse" else ""
        remedy = f"make room there{ballast}, or use a larger disk"
        yield _lack(what, f"{disk.free >> 20} MiB free on the disk of {place}", allowed, remedy)


def _port(host: str, port: int) -> Iterator[str]:
    if not port:
        return
    with socket.socket(family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            value, remedy = f"cannot listen on {host}:{port}: {error.strerror}", "stop what uses it, or choose another"
            yield _lack("metrics.port", value, "a free port, or 0 for none", remedy)


def family(host: str) -> socket.AddressFamily:
    """Address family to listen on `host`; `::` accepts connections by IPv4, too, where the system has both."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _hidden(paths: str) -> Iterator[str]:
    """Modules that hide those of Python or of CommitLake's packages; not in directories where these are installed."""
    for directory in filter(os.path.isdir, paths.split(os.pathsep)):
        entries: list[str] = []
        with suppress(PermissionError):  # Python skips it, too
            entries = sorted(os.listdir(directory))
        holds_real = "os.py" in entries or any(each.endswith((".dist-info", ".egg-info")) for each in entries)
        for entry in () if holds_real else entries:
            file, name = os.path.join(directory, entry), entry.removesuffix(".py")
            if name in _IMPORTED and (name != entry or os.path.exists(os.path.join(file, "__init__.py"))):
                remedy = "rename it, or leave its directory out"
                yield _lack(
                    "PYTHONPATH", f"{file} hides the module {name}", "directories without one of that name", remedy
                )
