"""Software on this machine: Java, Spark's home, and the jars that Ivy resolves."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlparse

from commitlake.errors import SetupError, installed_by

log = logging.getLogger(__name__)

# Versions tested together, by Spark's version. The connector requires a token provider of its own version, which not
# every repository has; that of 4.0 fits them all.
_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
_PACKAGES = {
    "4.0": ("io.delta:delta-spark_4.0_2.13:4.3.1", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"),
    "4.1": (
        "io.delta:delta-spark_4.1_2.13:4.3.1",
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.0?exclude={_TOKENS}",
        f"{_TOKENS}:4.0.0?transitive=false",
    ),
    "4.2": (
        "io.delta:delta-spark_4.2_2.13:4.4.0",
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0?exclude={_TOKENS}",
        f"{_TOKENS}:4.0.0?transitive=false",
    ),
}
_AVRO = {"4.0": "4.0.0", "4.1": "4.1.1", "4.2": "4.2.0"}
# Stateful queries of an earlier PySpark pass a float for an offset to pyarrow, which rejects it from 26 on.
_WITH_ARROW_26 = {"4.0": "4.0.5", "4.1": "4.1.4"}
LOCAL_FILES_PACKAGE = "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0"
"""Hadoop's local file system without a process for each file; see `session.LOCAL_SETTINGS`."""
KAFKA_BROKER_PACKAGE = os.environ.get("COMMITLAKE_BROKER_PACKAGE", "org.apache.kafka:kafka_2.13:4.1.1")

LANGUAGE = "-Duser.language=en -Duser.country=US"
"""Options of each JVM that is started here. Delta and Kafka number files in the machine's language. With Arabic, other
readers do not know its digits, nor does the next start in another language."""
# Spark 4 needs 17; Java 24 removed the SecurityManager calls that Hadoop makes.
_JAVA_VERSIONS = range(17, 24)
_RESOLVE_TIMEOUT_S = 900
_UNRESOLVED = re.compile(r"module not found|\[NOT FOUND|Host \S+ not found|Server access error")
"""Lines in which Ivy names what it has not found, and why, among a hundred others."""
_CACHE = "commitlake"


def home() -> str:
    """JVM option for the same home as in Python, where Ivy keeps its files: Java ignores HOME."""
    return shlex.quote(f"-Duser.home={Path.home()}")


def java() -> str:
    """Return the command of a Java that Spark can use: that of JAVA_HOME, else the one on the PATH.

    Raises:
        SetupError: there is none, or its version is not one of 17 to 23.
    """
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = "install Java 17 (for example openjdk-17-jre-headless) and set JAVA_HOME or the PATH to it"
    if not command or not Path(command).is_file():
        msg = f"no Java found{f' at JAVA_HOME={home}' if home else ' on the PATH'}; {advice}"
        raise SetupError(msg)
    printed = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', printed)
    if not version or int(version[1]) not in _JAVA_VERSIONS:
        msg = f"{command} is Java {version[1] if version else '(unknown version)'}; allowed is 17 to 23; {advice}"
        raise SetupError(msg)
    return command


def spark_home() -> Path:
    """Return SPARK_HOME, else the home of a spark-submit on the PATH, else that of the pyspark that is installed.

    Raises:
        SetupError: there is no Spark.
    """
    if "SPARK_HOME" in os.environ:
        return Path(os.environ["SPARK_HOME"])
    on_path = shutil.which("spark-submit")
    if on_path and (home := Path(on_path).resolve().parents[1]).joinpath("jars").is_dir():
        return home
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        msg = f"no Spark found; install it with {installed_by('spark')}, or set SPARK_HOME"
        raise SetupError(msg)
    return Path(found.origin).parent


def spark_version() -> str:
    """Return the version of the Spark that is used, for example `4.0.5`; empty where its home has no jars.

    Raises:
        SetupError: CommitLake does not run on this version.
    """
    cores = [path.stem.rpartition("-")[2] for path in (spark_home() / "jars").glob("spark-core_*.jar")]
    for version in cores:
        check_spark(version, f" at {spark_home()}")
    return "".join(cores[:1])


def check_spark(version: str, where: str = "") -> None:
    """Compare Spark's version with those that CommitLake runs on.

    Raises:
        SetupError: CommitLake does not run on this version, or it fails with the installed pyarrow.
    """
    if not version.startswith(tuple(f"{each}." for each in _PACKAGES)):
        msg = (
            f"this is Spark {version}{where}; CommitLake runs on Spark {', '.join(_PACKAGES)} with the Delta of the "
            "same release; use one of these, or let SPARK_HOME name it"
        )
        raise SetupError(msg)
    first = _WITH_ARROW_26.get(version[:3], "")
    with suppress(importlib.metadata.PackageNotFoundError):  # reported where it is needed
        arrow = importlib.metadata.version("pyarrow")
        if _numbers(arrow) >= (26,) and _numbers(version) < _numbers(first):
            remedy = f"use Spark {first} or newer, or pip install 'pyarrow<26'"
            msg = f"Spark {version}{where} fails with pyarrow {arrow}; {remedy}"
            raise SetupError(msg)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def packages() -> tuple[str, ...]:
    """Return Delta and the Kafka connector for the Spark that is used, as Maven names them.

    Raises:
        SetupError: CommitLake does not run on this version of Spark.
    """
    version = spark_version()
    given = os.environ.get("COMMITLAKE_PACKAGES")
    return tuple(given.split(",")) if given else _PACKAGES.get(version[:3], _PACKAGES["4.0"])


def avro_package() -> str:
    """Return Spark's functions for Avro, for the Spark that is used; its own jars have what they need.

    Raises:
        SetupError: CommitLake does not run on this version of Spark.
    """
    version = _AVRO.get(spark_version()[:3], _AVRO["4.0"])
    return f"org.apache.spark:spark-avro_2.13:{version}?transitive=false"


def spark_submit() -> tuple[list[str], dict[str, str]]:
    """Return the spark-submit to use and the environment it needs.

    SPARK_HOME wins over a spark-submit on the PATH, and that over the one of the installed pyspark. Variables of a
    spark-submit that runs this process are left out: the child is a new application.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_GATEWAY", "_PYSPARK"))
    }
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    environment["PYTHONSAFEPATH"] = "1"  # Spark's workers run `python -m`, which would run a kafka.py that lies there
    on_path = shutil.which("spark-submit")
    if "SPARK_HOME" not in os.environ and on_path:
        return [on_path], environment
    environment["SPARK_HOME"] = str(spark_home())
    return [str(spark_home() / "bin" / "spark-submit")], environment


def jars(packages: Sequence[str]) -> list[str]:
    """Return paths of the jars of Maven `packages` and of all they need.

    A package is `group:artifact:version`, with the options of Spark's `ivy://` after it: `?transitive=false`,
    `?exclude=group:artifact`.

    The first time Ivy resolves them into the user's cache (seconds to a minute). The list is kept, so that later calls
    take no time and need no network.

    Raises:
        SetupError: they cannot be resolved.
    """
    known = cached_file("jars-{}.txt", *packages, str(spark_home()))  # one for each set of packages and Spark
    paths = known.read_text(encoding="utf-8").splitlines() if known.exists() else []
    if not paths or not all(map(os.path.exists, paths)):
        paths = _resolve(packages)
        partial = known.with_suffix(f".{os.getpid()}")
        partial.write_text("\n".join(paths), encoding="utf-8")
        partial.replace(known)
    return paths


def cached_file(name: str, *of: str) -> Path:
    """Return the path in the user's cache of a file that is made of `of`; a digest of these replaces `{}` in its name.

    Raises:
        SetupError: another user owns the cache or may write to it, and could put jars and classes there.
    """
    directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", _CACHE)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        directory = Path(tempfile.gettempdir(), f"{_CACHE}-{os.getuid()}")
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
    _check_own(directory)
    return directory / name.format(hashlib.sha256("\n".join(of).encode()).hexdigest()[:16])


def _check_own(directory: Path) -> None:
    link, found = directory.lstat(), directory.stat()  # a link of the user's own may lead to a larger disk
    owners = {link.st_uid, found.st_uid} - {os.getuid(), 0}
    if owners or not stat.S_ISDIR(found.st_mode) or found.st_mode & stat.S_IWOTH:
        msg = (
            f"{directory} is not a directory of this user's alone, and others could put jars there; remove it, or set "
            "XDG_CACHE_HOME to a directory that only you can write to"
        )
        raise SetupError(msg)


def _resolve(packages: Sequence[str]) -> list[str]:
    java()
    log.info("resolving %s", ", ".join(packages))
    command, environment = spark_submit()
    command += ["--master", "local[1]", "--driver-java-options", f"{LANGUAGE} {home()}"]
    if (ivy := cached_file("ivy")).parent.name != _CACHE:  # nothing can be written to the home
        command += ["--conf", f"spark.jars.ivy={ivy}"]
    command += [str(Path(__file__).with_name("print_jars.py")), *packages]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=_RESOLVE_TIMEOUT_S
        )
        output, is_whole = done.stdout + done.stderr, done.returncode == 0
    except subprocess.TimeoutExpired:
        output, is_whole = f"no end after {_RESOLVE_TIMEOUT_S} s", False
    except OSError as error:
        output, is_whole = f"{command[0]}: {error.strerror}", False
    found = re.findall(r"^jar:(.+)$", output, re.MULTILINE)
    if not (found and is_whole):  # of several packages those before the missing one are printed
        lines = output.strip().splitlines()
        told = (line.strip(": \t").partition(" url=")[0] for line in lines if _UNRESOLVED.search(line))
        last = "\n".join(list(dict.fromkeys(told)) or lines[-8:])
        msg = f"cannot resolve {', '.join(packages)}; is the Maven repository in reach?\n{last}"
        raise SetupError(msg)
    return list(dict.fromkeys(unquote(urlparse(jar).path) for jar in found))
