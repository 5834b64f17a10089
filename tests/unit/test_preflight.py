"""What a machine lacks is told in a line before any JVM starts: the real limits, ports, users and modules."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.killing import held, python
from tests.support.misfortune import SmallDisk

from commitlake import config
from commitlake.errors import SetupError
from commitlake.reading.questions.tables import opened
from commitlake.spark import preflight, submit
from commitlake.tools import doctor

ROOT = Path(__file__).parents[2]
WELL = {"spark.driver.memory": "2g"}


def run(*words: str, before: Sequence[str] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """`commitlake run` with words of its own; a coordinator that begins to start is a failure."""
    own = {**os.environ, "PYTHONPATH": str(ROOT / "lib"), "JAVA_HOME": "/nowhere", **environment}
    command = [*before, sys.executable, "-m", "commitlake.tools.cli", "run", *words]
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False, timeout=300)


FEW_FILES = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")


@pytest.mark.parametrize(
    ("before", "environment", "told"),
    [
        (FEW_FILES, {}, "open files: at most 256; allowed is a limit of 1024 or more; raise it with ulimit -n"),
        ((), {"COMMITLAKE_SPARK_ARGS": "--driver-memory 400m"}, "spark.driver.memory: 400m; allowed is 512m or more"),
        ((), {"COMMITLAKE_SPARK_ARGS": "--driver-memory=2gb"}, "spark.driver.memory: 2gb; allowed is 512m or more"),
        ((), {"PYTHONOPTIMIZE": "1"}, "python: -O, or PYTHONOPTIMIZE is set; allowed is neither"),
        ((), {}, "no Java found at JAVA_HOME=/nowhere"),
    ],
)
def test_a_machine_that_lacks_something_is_told_in_a_line(
    tmp_path: Path, before: Sequence[str], environment: dict[str, str], told: str
) -> None:
    done = run(f"--set=warehouse={tmp_path}/w", f"--set=checkpoints={tmp_path}/c", before=before, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {told}")
    assert done.stderr.count("\n") == 1


def test_clients_of_kafka_refuse_a_python_that_leaves_assertions_out() -> None:
    program = "import commitlake; commitlake.DefaultMQProducer('g', bootstrap_servers='127.0.0.1:1').start()"
    done = python("-O", "-c", program)
    assert "SetupError: python: -O, or PYTHONOPTIMIZE is set; allowed is neither, since assertions" in done.stderr


def test_all_that_is_lacking_is_told_at_once_and_soon(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as caught:
        begun = time.monotonic()
        preflight._refuse(preflight._heap("1m"), preflight._heap("x"))
    assert time.monotonic() - begun < 1
    assert len(str(caught.value).splitlines()) == 2


def test_a_taken_port_of_metrics_is_told_before_java_starts_where_it_is_needed_at_once(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = run(f"--set=metrics.port={port}")
        assert done.stderr.startswith(
            f"error: metrics.port: cannot listen on 127.0.0.1:{port}: Address already in use;"
        )
        for mode in ("--standby", "--available-now"):  # which serves none
            assert "no Java found" in run(mode, f"--set=metrics.port={port}").stderr
        with held(tmp_path):  # the start names its coordinator
            assert "no Java found" in run(f"--set=metrics.port={port}", f"--set=warehouse={tmp_path}").stderr
    assert "no Java found" in run(f"--set=metrics.port={port}").stderr


@pytest.mark.parametrize("key", ["warehouse", "checkpoints"])
def test_a_full_disk_is_told_with_the_place_before_java_starts(tmp_path: Path, key: str) -> None:
    with SmallDisk(tmp_path / "disk") as disk:
        if not disk.is_mounted:
            pytest.skip("this user may not mount a disk")
        given = {"warehouse": f"{tmp_path}/w", "checkpoints": f"{tmp_path}/c", key: f"{disk.place}/new/place"}
        with disk.full():
            done = run(*(f"--set={name}={place}" for name, place in given.items()))
        told = f"error: {key}: 0 MiB free on the disk of {disk.place}/new/place; allowed is at least 64 MiB free"
        assert done.stderr.startswith(told)
        assert ("--make-room" in done.stderr) == (key == "warehouse"), "only there is a file to be deleted"
        preflight.check_coordinator(config.from_mapping(given), is_shared=lambda: False)


def test_a_file_system_that_tells_no_size_is_taken_for_one_with_room() -> None:
    """As some network file systems; of those here /proc is one."""
    given = config.from_mapping({"warehouse": "/proc/self/lake", "checkpoints": "/proc/self/checkpoints"})
    preflight.check_coordinator(given, is_shared=lambda: False)
    with opened(given.warehouse) as tables:
        assert doctor._disk(tables, given).is_well


def test_without_a_directory_for_temporary_files_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where all of a container's file system is read-only."""

    def none() -> str:
        raise FileNotFoundError

    monkeypatch.setattr("tempfile.gettempdir", none)
    with pytest.raises(
        SetupError, match=r"^TMPDIR: no directory for temporary files can be written; allowed is at least"
    ):
        submit.launch(tmp_path / "script.py", [], name="commitlake-run", master="local[1]")


def test_a_user_without_a_name_is_told_before_hadoop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    preflight.check(WELL, is_one_machine=True)
    monkeypatch.setattr(os, "getuid", lambda: 3_987_654_321)
    with pytest.raises(
        SetupError, match=r"^user: user id 3987654321, which has no entry in /etc/passwd.* add one, for"
    ):
        preflight.check(WELL, is_one_machine=True)


def test_on_a_cluster_the_name_of_the_machine_resolves_or_it_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host-4711.invalid")
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    preflight.check(WELL, is_one_machine=True)
    with pytest.raises(SetupError, match=r"^host name: no-such-host-4711.invalid has no address .*set SPARK_LOCAL_IP$"):
        preflight.check(WELL, is_one_machine=False)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    preflight.check(WELL, is_one_machine=False)


def test_a_limit_of_open_files_that_may_be_raised_is_raised() -> None:
    program = (
        "import resource; from commitlake.spark import preflight; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (300, 2_000)); preflight.check({}, is_one_machine=True); "
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = python("-c", program, check=True)
    assert done.stdout == "2000 2000\n"


@pytest.mark.parametrize("hidden", ["yaml.py", "kafka/__init__.py", "queue.py", "typer.py"])
@pytest.mark.parametrize("command", ["run", "doctor"])
def test_a_module_that_hides_one_of_ours_is_named(tmp_path: Path, hidden: str, command: str) -> None:
    file = tmp_path / hidden
    file.parent.mkdir(exist_ok=True)
    file.write_text("raise SystemExit('it was run')")
    path = f"{ROOT / 'lib'}{os.pathsep}{tmp_path}"
    done = python("-m", "commitlake.tools.cli", command, "--help", PYTHONPATH=path)
    first = tmp_path / hidden.partition("/")[0]
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: PYTHONPATH: {first} hides the module {first.stem}; allowed is directories")


def test_what_hides_nothing_may_stand_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark, installed, folder = tmp_path / "spark", tmp_path / "installed", tmp_path / "folder"
    for made in (spark / "pyspark", installed / "yaml", installed / "PyYAML-6.dist-info", folder / "kafka"):
        made.mkdir(parents=True)
    for package in (spark / "pyspark", installed / "yaml"):
        (package / "__init__.py").touch()
    paths = [spark, installed, folder, os.path.dirname(os.__file__), tmp_path / "none", ROOT / "lib", ROOT]
    closed, listdir = tmp_path / "closed", os.listdir
    closed.mkdir()

    def listed(place: str) -> list[str]:
        if place == str(closed):  # to root no directory is closed; Python passes it, too
            raise PermissionError(13, "Permission denied", place)
        return listdir(place)

    monkeypatch.setattr(os, "listdir", listed)
    assert list(preflight._hidden(os.pathsep.join(map(str, [closed, *paths])))) == []
