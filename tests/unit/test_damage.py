"""Damaged tables and full disks: each command says in one line which file it is, and what to do."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.support import topic_table
from tests.support.killing import ENVIRONMENT, python
from tests.support.misfortune import SmallDisk
from tests.support.topic_table import half, written

from commitlake.config import Config, disks, from_mapping
from commitlake.errors import WarehouseError
from commitlake.reading import damage
from commitlake.spark import process, submit
from commitlake.tables import TABLES
from commitlake.tools import backup as copied
from commitlake.tools.cli import app

COPY = "bring it back from a copy"
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """One with all tables; `half` and the topic have five commits each."""
    place = tmp_path / "warehouse"
    rows = {"half": [half(1, "k1")], "destinations": [{"topic": "orders"}]}
    for name in TABLES:
        written(place, name, *rows.get(name, []))
    for number in range(2, 6):
        written(place, "half", half(number, "k1"))
        topic_table.write(place, "orders", [topic_table.message(number)])
    return place


def log(table: Path, number: int = -1) -> Path:
    return sorted((table / "_delta_log").glob("0*.json"))[number]


def data(table: Path) -> Path:
    return min(path for path in table.rglob("*.parquet") if "_delta_log" not in path.parts)


def cut(file: Path, size: int = 100) -> Path:
    file.write_bytes(file.read_bytes()[:size])
    return file


def deleted(file: Path) -> Path:
    shutil.rmtree(file) if file.is_dir() else file.unlink()
    return file


def with_checkpoint(table: Path) -> Path:
    DeltaTable(str(table)).create_checkpoint()
    return next(table.glob("_delta_log/*.checkpoint.parquet"))


def with_checksum(table: Path) -> Path:
    """The newest file of a log, beside which stands what Spark writes after it."""
    numbers = {"tableSizeBytes": 1, "numFiles": 1, "numMetadata": 1, "numProtocol": 1}
    log(table).with_suffix(".crc").write_text(json.dumps(numbers))
    return log(table)


LOGS: dict[str, Callable[[Path], Path]] = {
    "a file in the middle of a log is gone": lambda table: deleted(log(table, 2)),
    "the first file of a log is gone": lambda table: deleted(log(table, 0)),
    "a log is gone": lambda table: deleted(table / "_delta_log"),
    "the newest file of a log is cut": lambda table: cut(log(table)),
    "the newest file of a log is gone, and its checksum is not": lambda table: deleted(with_checksum(table)),
    "the newest file of a log is empty": lambda table: cut(log(table), 0),
    "a checkpoint is cut": lambda table: cut(with_checkpoint(table)),
}
FILES: dict[str, Callable[[Path], Path]] = {
    "a data file is gone": lambda table: deleted(data(table)),
    "a data file is cut": lambda table: cut(data(table)),
}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command on a warehouse; its exit code, and all that it has printed."""
    monkeypatch.setattr(process, "_log_to_terminal", lambda: None)

    def run(place: Path, *words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["commitlake", f"--set=warehouse={place}"])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app.main(*words)
        return int(str(ended.value)), "".join(capsys.readouterr())

    return run


@pytest.mark.parametrize("how", [*LOGS, *FILES])
@pytest.mark.parametrize("name", ["half", "topics/orders"])
def test_damage_is_told_in_a_line_that_names_the_file(
    warehouse: Path, tmp_path: Path, command: Command, name: str, how: str
) -> None:
    """`doctor` said "ok tables", `topics` left the topic out, others ended in traces of DuckDB and Rust."""
    file = {**LOGS, **FILES}[how](warehouse / name)
    code, output = command(warehouse, "doctor")
    (told,) = [line for line in output.splitlines() if "  tables " in line]
    assert code == 1 and told.startswith("LOOK") and str(file) in told and COPY in told
    need = [["topics"]] if name != "half" else [["tx", "list"], ["report", f"--out={tmp_path}/page.html"]]
    for words in (*need, ["find", "k1"]):
        code, output = command(warehouse, *words)
        (line,) = output.splitlines()
        assert code == 1 and line.startswith("error: ") and str(file) in line and COPY in line, line


def test_a_backup_and_doctor_know_all_tables() -> None:
    assert {*TABLES} == {*copied.TABLES}


def test_a_listed_topic_without_a_table_is_told(warehouse: Path, command: Command) -> None:
    shutil.rmtree(warehouse / "topics" / "orders")
    for words in ("doctor", "topics"):
        code, output = command(warehouse, words)
        assert code == 1 and f"{warehouse}/topics/orders, which `destinations` lists; {COPY}" in output, output
    shutil.rmtree(warehouse / "deliveries")
    assert f"there is no table at {warehouse}/deliveries; start the" in command(warehouse, "doctor")[1]


@pytest.mark.parametrize("how", LOGS)
def test_a_start_and_a_backup_refuse_a_log_that_lacks_something(warehouse: Path, tmp_path: Path, how: str) -> None:
    damage.refuse(warehouse, TABLES)
    for name in ("half", "topics/orders"):
        shutil.copytree(warehouse / name, warehouse.parent / "kept")
        file = LOGS[how](warehouse / name)
        with pytest.raises(WarehouseError, match=f"{name} is damaged: {file}.*{COPY}"):
            damage.refuse(warehouse, TABLES)
        with pytest.raises(WarehouseError, match=f"{name} is damaged: {file}.*{COPY}"):
            copied.backup(str(warehouse), tmp_path / "copy")
        shutil.rmtree(warehouse / name)
        (warehouse.parent / "kept").rename(warehouse / name)
    damage.refuse(warehouse, TABLES)


def test_a_log_that_was_shortened_and_a_garbled_hint_are_no_damage(warehouse: Path, command: Command) -> None:
    """Delta does without `_last_checkpoint`, and a checkpoint stands for all commits up to it."""
    with_checkpoint(warehouse / "half")
    for number in range(3):
        log(warehouse / "half", 0).unlink()
        (warehouse / "half" / "_delta_log" / "_last_checkpoint").write_text('{"version":')
        damage.refuse(warehouse, TABLES)
        assert command(warehouse, "tx", "list")[0] == 0, number
    (warehouse / "topics" / "begun" / "_delta_log").mkdir(parents=True)  # a creation that was cut short
    topic_table.write(warehouse.parent / "other", "x", [topic_table.message(1)])
    shutil.copytree(warehouse.parent / "other" / "topics" / "x", warehouse / "exports")
    shutil.rmtree(warehouse / "exports" / "_delta_log")  # none of ours
    damage.refuse(warehouse, TABLES)


def test_too_many_open_files_are_no_mistake_of_a_condition(warehouse: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    for number in range(6, 60):
        written(warehouse, "half", half(number, "k1"))
    line = [sys.executable, "-m", "commitlake.tools.cli", "tx", "list", f"--set=warehouse={warehouse}"]
    done = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, check=False, preexec_fn=few)
    (told,) = done.stderr.splitlines()
    assert done.returncode == 1 and "Too many open files" in told and "ulimit -n" in told and "--where" not in told


@pytest.mark.parametrize("library", ["IO Error: Cannot open file: {}", "Unable to open file {} (os error 13)"])
def test_what_this_user_may_not_read_needs_no_copy(library: str) -> None:
    assert damage.remedy(library.format("/lake/half/a.parquet Permission denied")).startswith("run this as a user that")
    assert damage.remedy(library.format("/lake/half/a.parquet No such file")) == damage.REMEDY


def test_a_directory_that_this_user_may_not_read_is_no_damage(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """DuckDB says that no file matches; root may read all, so here the system is told to refuse."""
    stat, closed = Path.stat, str(data(warehouse / "half"))

    def refusing(path: Path, **more: bool) -> os.stat_result:
        if str(path) == closed:
            raise PermissionError(13, "Permission denied", closed)
        return stat(path, **more)

    monkeypatch.setattr(Path, "stat", refusing)
    code, output = command(warehouse, "doctor")
    assert code == 1 and f"'{closed}'; run this as a user that may read it" in output
    os.unlink(closed)
    code, output = command(warehouse, "tx", "list")
    assert code == 1 and f"Permission denied: '{closed}'; run this as a user that may read it" in output


def test_an_error_that_nobody_thought_of_is_a_line_unless_a_stack_is_asked_for(tmp_path: Path) -> None:
    script = "from commitlake.spark import process\nwith process.short_errors():\n    {}['no']"
    for level, is_shown in (("WARNING", False), ("DEBUG", True)):
        done = python("-c", script, COMMITLAKE_LOG=level)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == "error: KeyError: 'no'; COMMITLAKE_LOG=DEBUG shows where"
        assert ("Traceback" in done.stderr) == is_shown


def test_a_file_that_spark_can_not_read_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """`ledger --summary` said `Py4JJavaError: ...; COMMITLAKE_LOG=DEBUG shows where` of it."""
    told = "Checksum error: file:/lake/half/queue=2/a.parquet at 0 exp: -16 got: 92"

    def launch(*_: object, **__: object) -> int:
        raise RuntimeError(told)

    monkeypatch.setattr(submit, "launch", launch)
    expected = f"error: cannot read a file of a table: {told}; {damage.REMEDY}\n"
    assert command(tmp_path, "ledger", "--summary") == (1, expected)


@pytest.mark.parametrize("level", ["WARNING", "DEBUG"])
def test_a_stop_during_a_start_shows_no_stack_of_the_call_that_it_interrupts(level: str) -> None:
    """As py4j does it."""
    script = (
        "import logging, os, signal\nfrom commitlake.spark import process\n"
        "def job(_):\n    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    except KeyboardInterrupt:\n        logging.exception('while sending')\n        raise\n"
        "process.main(job, exit_when_stopped=0)"
    )
    done = python("-c", script, COMMITLAKE_LOG=level)
    assert (done.returncode, "Traceback" in done.stderr) == (0, level == "DEBUG")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Config]:
    """A configuration whose warehouse has a disk of its own."""
    with SmallDisk(tmp_path / "disk", 100 << 20) as small:
        if not small.is_mounted:
            pytest.skip("mounting a tmpfs takes root")
        there = {"warehouse": str(small.place / "warehouse"), "checkpoints": str(tmp_path / "checkpoints")}
        yield from_mapping(there)


def fill(place: Path, size: int) -> None:
    place.mkdir(parents=True, exist_ok=True)
    with (place / "others").open("ab") as file:
        os.posix_fallocate(file.fileno(), file.tell(), size)


def test_room_is_told_of_each_disk_and_the_ballast_gives_some(disk: Config, command: Command) -> None:
    place = Path(disk.warehouse)
    place.mkdir()
    found = {each.key: each for each in disks.disks(disk)}
    assert set(found) == {"warehouse", "checkpoints"}
    assert found["warehouse"].total == 100 << 20 < found["checkpoints"].total
    assert disks.short(disk) == ""
    (place / disks.BALLAST).touch()  # as a kill leaves it while it is made
    for _ in range(2):
        disks.keep_ballast(disk)
        assert found["warehouse"].free - next(disks.disks(disk)).free == 5 << 20
    fill(place, next(disks.disks(disk)).free)
    with pytest.raises(OSError, match="No space left"):
        (place / "more").write_bytes(b"x" * 9_000)
    assert disks.short(disk) == f"warehouse {place}: 0 MiB of 100 MiB free"
    told = disks.with_room("IOException: No space left on device", disk)
    assert f"warehouse {place}: 0 MiB of 100 MiB free; checkpoints {disk.checkpoints}: " in told
    assert disks.with_room("another", disk) == "another"
    code, output = command(place, "doctor", "--make-room")
    assert code == 1 and "5 MiB are free again" in output, output
    (place / "more").write_bytes(b"x" * 9_000)
    assert disks.short(disk), "what the ballast gives is for maintenance"
    disks.keep_ballast(disk)
    assert disks.free_ballast(disk) == 0, "there is no room for another one"


def test_a_disk_without_room_for_more_files_is_short_too(disk: Config, tmp_path: Path) -> None:
    """Of small files as Delta's the inodes of an ordinary ext4 are used up when a third of its bytes is."""
    subprocess.run(["mount", "-o", "remount,nr_inodes=1000", str(tmp_path / "disk")], check=True)
    assert disks.short(disk) == ""
    for number in range(960):
        (tmp_path / "disk" / str(number)).touch()
    assert disks.short(disk).endswith(" MiB of 100 MiB free, as far as its inodes go")
    assert disks.full(disk) == ""
    for number in range(20):
        (tmp_path / "disk" / f"more-{number}").touch()
    assert disks.full(disk).endswith(" MiB of 100 MiB free, as far as its inodes go")
