"""Runs a script in Spark's driver, by spark-submit: packages and settings, signals, exit code.

Signals. spark-submit starts a JVM, and that starts the driver's Python. A JVM ends with code 143 on SIGTERM, which
would end the driver in the middle of a batch. So the JVM is started with SIGTERM, SIGINT and SIGHUP ignored, and Java
leaves an ignored signal alone. The driver's Python handles them again (`process.exit_on_signals`) and writes its
process id into a directory; this process forwards its signals to that id. So a signal to this process or to the whole
group, at any moment, leads to the driver's clean stop. The driver's exit code is the exit code of all.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from commitlake.errors import out_of_memory
from commitlake.spark import cluster_mode, executors, given, log_lines, process, runtime, session

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_KILLED = 128 + signal.SIGKILL
"""Exit code of the JVM when the driver's Python was killed."""
_OUT_OF_MEMORY = 52
"""Exit code with which Spark ends a JVM in which a task ran out of memory."""
_LIBRARY = Path(__file__).parents[2]
# Printed by every JVM that Spark starts, and about Spark's own choice.
_NOISE = b"WARNING: Using incubator modules: jdk.incubator.vector"


def launch(
    script: Path,
    arguments: Sequence[str],
    *,
    name: str,
    master: str,
    short_lived: bool = True,
    avro: bool = False,
    dry_run: bool = False,
) -> int:
    """Run a Python script in Spark's driver and return its exit code.

    Args:
        script: must call `process.exit_on_signals`, for example by `process.main`.
        arguments: the script's arguments.
        name: the application's name, shown in Spark's UI.
        master: Spark's master, for example `local[*]`.
        short_lived: whether the script ends within minutes, so that a quick start beats top speed.
        avro: whether the script parses Avro, for which Spark needs one more jar.
        dry_run: print the spark-submit command instead.

    Raises:
        SetupError: no fitting Java or Spark, or jars that cannot be resolved.
        ConfigError: what the configuration names can't travel to a driver on the cluster.
    """
    travels = session.is_cluster_mode(master, arguments)
    settings = session.submit_settings(master, short_lived, avro=avro, travels=travels)  # checks the machine
    with tempfile.TemporaryDirectory(prefix="commitlake-launch-") as directory:
        place = Path(directory)
        command, environment = runtime.spark_submit()
        command += ["--master", master, "--name", name]
        words, home = given.from_environment(), runtime.spark_home()
        words += [] if travels else ["--deploy-mode", "client"]
        if not session.is_one_machine(master):
            more, arguments = _shipped(place, arguments, is_cluster_mode=travels)
            settings |= more
            if "PYSPARK_PYTHON" not in os.environ:  # the driver's own interpreter, which executors do not have
                environment.pop("PYSPARK_PYTHON", None)
        command += [*given.arguments(settings, words, home), str(script), *arguments]
        if dry_run:
            print(shlex.join(command))
            return 0
        if travels:
            return cluster_mode.submit(command, environment, master)
        return _run(
            command, environment | _own_variables(place, environment) | session.local_environment(master), place
        )


def _own_variables(place: Path, environment: Mapping[str, str]) -> dict[str, str]:
    paths = filter(None, [str(_LIBRARY), environment.get("PYTHONPATH")])
    # In these locales Java knows ASCII only, and turns other letters of a path into `?`. Where only LANG names one,
    # Python itself changes it.
    is_ascii = environment.get("LC_ALL") in ("C", "POSIX")
    return {
        **({"LC_ALL": "C.UTF-8"} if is_ascii else {}),
        "PYTHONPATH": os.pathsep.join(paths),
        process.MEETING_PLACE: str(place),
        process.TERMINAL: str(process.terminal_columns()),
    }


def _shipped(place: Path, arguments: Sequence[str], *, is_cluster_mode: bool) -> tuple[dict[str, str], Sequence[str]]:
    """Settings that give the cluster this package, and the others unless a Python is named that has them."""
    zipped = str(_zipped(place))
    chosen = session.chosen()
    is_python_named = "spark.pyspark.python" in chosen or "PYSPARK_PYTHON" in os.environ
    if is_cluster_mode:
        is_python_named |= cluster_mode.PYTHON in chosen  # whose executors run the driver's Python
        more, arguments = cluster_mode.settings(place, arguments, is_python_named=is_python_named)
        # By the name that Spark gives them for all machines, the driver on the cluster would look for them here.
        own = {"spark.yarn.dist.pyFiles": zipped, f"spark.yarn.appMasterEnv.{given.VARIABLE}": _tuned()}
        return own | more, arguments
    own = {} if is_python_named else executors.settings()
    return {"spark.submit.pyFiles": zipped, "spark.pyspark.driver.python": sys.executable, **own}, arguments


def _tuned() -> str:
    """The operator's arguments that win over what the driver sets later; no others, as YARN shows them to all."""
    chosen, names = given.settings(given.from_environment()), {*session.TUNING, "spark.sql.shuffle.partitions"}
    return shlex.join(f"--conf={name}={value}" for name, value in chosen.items() if name in names)


def _zipped(place: Path) -> Path:
    """Return an archive of this package for the executors of a cluster."""
    archive = place / "commitlake.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for file in sorted((_LIBRARY / "commitlake").rglob("*.py")):
            target.write(file, file.relative_to(_LIBRARY))
    return archive


def _run(command: list[str], environment: dict[str, str], place: Path) -> int:
    def to_driver(number: signal.Signals) -> None:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((place / "pid").read_text()), number)

    def forward(*_: object) -> None:
        (place / "stop").touch()  # for a driver that has not begun yet
        to_driver(signal.SIGTERM)

    def ignore() -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    for number in _SIGNALS:
        signal.signal(number, forward)
    spark = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, preexec_fn=ignore)  # noqa: PLW1509 - no thread runs yet
    assert spark.stderr is not None
    reader = threading.Thread(target=_without_noise, args=(spark.stderr,), daemon=True)
    reader.start()
    code = spark.wait()
    if code in (-signal.SIGKILL, _KILLED, _OUT_OF_MEMORY):  # the driver would keep its port and broker for seconds
        to_driver(signal.SIGKILL)
    reader.join(timeout=1)
    if code == _OUT_OF_MEMORY:  # Python reports only that its JVM is gone
        sys.stderr.write(log_lines.error(out_of_memory("java.lang.OutOfMemoryError")))
        return code
    with suppress(FileNotFoundError):
        sys.stderr.write((place / "error").read_text(encoding="utf-8"))
    if code in (-signal.SIGKILL, _KILLED):
        sys.stderr.write("killed (SIGKILL); nothing is lost: start it again\n")
    return code if code >= 0 else 128 - code


def _without_noise(errors: IO[bytes]) -> None:
    for line in errors:
        if not line.startswith(_NOISE):
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
