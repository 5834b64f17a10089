"""Runs a job under spark-submit: packages and settings, signals, exit code. `spark-submit.sh` calls this.

Signals. spark-submit starts a JVM and that starts the driver's Python. A JVM ends with code 143 on SIGTERM, which would
end the driver in the middle of a batch, so it is started with SIGTERM, SIGINT and SIGHUP ignored, and Java leaves an
ignored signal alone. The driver's Python takes them up again (`process.main`) and leaves its process id in a
directory; a signal to this process is sent on to it. So a signal to this process or to the whole group, at any moment,
ends in the driver's clean stop, and its exit code is the exit code of all.
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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from commitlake.errors import CommitLakeError
from commitlake.spark import process, runtime, session

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LIBRARY = Path(__file__).parents[2]
# Long-lived jobs earn back what the optimising compiler costs; all others end before that.
_LONG_LIVED = ("run", "audit", "maintain")
# Printed by every JVM that Spark starts, and about Spark's own choice.
_NOISE = b"WARNING: Using incubator modules: jdk.incubator.vector"


def main(arguments: Sequence[str]) -> int:
    """Run the job whose folder and name come first, with the other arguments; return its exit code.

    Takes out of the arguments `--master` (else MASTER, else `local[*]`) and `--dry-run`, which only prints the command.
    """
    jobs, name, *rest = arguments
    master, is_dry_run, others = _own_options(rest)
    with tempfile.TemporaryDirectory(prefix="commitlake-launch-") as place:
        try:
            command, environment = _command(Path(jobs, f"{name}.py"), master, others, Path(place))
        except CommitLakeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        if is_dry_run:
            print(shlex.join(command))
            return 0
        return _run(command, environment, Path(place))


def _own_options(arguments: list[str]) -> tuple[str, bool, list[str]]:
    master, is_dry_run, others = os.environ.get("MASTER") or "local[*]", False, []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--master" or argument.startswith("--master="):
            master = argument.partition("=")[2] or next(remaining, master)
        elif argument == "--dry-run":
            is_dry_run = True
        else:
            others.append(argument)
    return master, is_dry_run, others


def _command(script: Path, master: str, arguments: list[str], place: Path) -> tuple[list[str], dict[str, str]]:
    command, environment = runtime.spark_submit()
    command += ["--master", master, "--name", f"commitlake-{script.stem}"]
    for name, value in session.submit_settings(master, short_lived=script.stem not in _LONG_LIVED).items():
        command += ["--conf", f"{name}={value}"]
    if not master.startswith("local"):
        command += ["--py-files", str(_zipped(place))]
    command += [*shlex.split(os.environ.get("COMMITLAKE_SPARK_ARGS", "")), str(script), *arguments]
    paths = filter(None, [str(_LIBRARY), environment.get("PYTHONPATH")])
    columns = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0
    own = {"PYTHONPATH": os.pathsep.join(paths), process.MEETING_PLACE: str(place), process.TERMINAL: str(columns)}
    return command, environment | own


def _zipped(place: Path) -> Path:
    """Return an archive of this package for the executors of a cluster."""
    archive = place / "commitlake.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for file in sorted((_LIBRARY / "commitlake").rglob("*.py")):
            target.write(file, file.relative_to(_LIBRARY))
    return archive


def _run(command: list[str], environment: dict[str, str], place: Path) -> int:
    def forward(*_: object) -> None:
        (place / "stop").touch()  # for a driver that has not begun yet
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((place / "pid").read_text()), signal.SIGTERM)

    def be_deaf() -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    for number in SIGNALS:
        signal.signal(number, forward)
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, preexec_fn=be_deaf)  # noqa: PLW1509 - no thread runs yet
    assert process.stderr is not None
    reader = threading.Thread(target=_without_noise, args=(process.stderr,), daemon=True)
    reader.start()
    code = process.wait()
    reader.join(timeout=1)
    return code if code >= 0 else 128 - code


def _without_noise(errors: IO[bytes]) -> None:
    for line in errors:
        if not line.startswith(_NOISE):
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # before there was anything to stop
        sys.exit(process.STOPPED)
