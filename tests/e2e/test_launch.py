"""Scripts and commands under a real spark-submit, `run` as an operator meets it: exit codes, signals, output."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support.lake import Lake
from tests.support.polling import patience, wait_for
from tests.support.running import FOREIGN, Coordinator, coordinator, foreign_modules

from commitlake.kafka.embedded import EmbeddedBroker

LIBRARY = Path(__file__).parents[2] / "lib"

JOBS = {
    "waits": """
        import time
        from commitlake.spark import process, session
        def run(arguments):
            stop = process.stop_on_signals()
            spark = session.build()
            print("READY", *arguments, spark.range(3).count(), flush=True)
            while not stop.is_set():
                time.sleep(0.1)
            spark.stop()
            print("stopped cleanly", flush=True)
        process.main(run, exit_when_stopped=0)
    """,
    "killed": """
        import os, signal
        from commitlake.spark import process
        process.main(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    """,
    "hungry": """
        from commitlake.spark import process, session
        def run(arguments):
            session.build().range(4).selectExpr("length(repeat(cast(id as string), 2000000000))").collect()
        process.main(run)
    """,
    "writes": """
        from commitlake.spark import process, session
        def run(arguments):
            session.build().range(3).write.format("delta").save(arguments[0])
        process.main(run)
    """,
    "ends": """
        from commitlake.spark import process
        process.main(lambda arguments: int(arguments[0]))
    """,
    "imports": """
        import importlib, sys
        from commitlake.spark import process, session
        def of_here(names):
            return [name for name in names if "/here/" in (importlib.import_module(name).__file__ or "")]
        def run(arguments):
            workers = session.build().sparkContext.parallelize([arguments], 1).map(of_here).collect()
            print(of_here(arguments), workers)
        process.main(run)
    """,
    "fails": """
        from commitlake import errors
        from commitlake.spark import process
        def run(arguments):
            raise errors.ConfigError("what is wrong, and what to do")
        process.main(run)
    """,
}


LAUNCH = """
import sys
from pathlib import Path
from commitlake.spark import submit
sys.exit(submit.launch(Path(sys.argv[1]), sys.argv[2:], name="test", master="local[2]"))
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    for name, text in JOBS.items():
        lines = [line.removeprefix(" " * 8) for line in text.splitlines()]
        (tmp_path / f"{name}.py").write_text("\n".join(lines))
    return tmp_path


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(LIBRARY)},
        start_new_session=True,
    )


def launch(script: Path, *arguments: str) -> subprocess.Popen[str]:
    return start("-c", LAUNCH, str(script), *arguments)


NO_SUCH_HOST = ["unshare", "--uts", "sh", "-c", 'hostname no-such-host-4711 && exec "$@"', "sh"]


@pytest.mark.parametrize(
    ("prefix", "language"),
    [
        ([], "ar-EG"),
        pytest.param([], "fa-IR", marks=pytest.mark.soak),
        pytest.param([], "tr-TR", marks=pytest.mark.soak),
        (NO_SUCH_HOST, "en-US"),
    ],
)
def test_tables_are_the_same_on_a_machine_of_another_language_or_without_a_known_name(
    jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: list[str], language: str
) -> None:
    """Delta numbered its log in Arabic digits then; Spark did not start where nobody knows the machine's name."""
    if prefix and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not have a host name of its own")
    name, _, country = language.partition("-")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Duser.language={name} -Duser.country={country}")
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    command = [*prefix, sys.executable, "-c", LAUNCH, str(jobs / "writes.py"), str(tmp_path / "table")]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(LIBRARY)}, check=True)
    assert f"{0:020}.json" in os.listdir(tmp_path / "table" / "_delta_log")
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().num_rows == 3


@pytest.mark.parametrize(
    ("send", "number"),
    [
        (os.kill, signal.SIGTERM),
        (os.killpg, signal.SIGINT),
        pytest.param(os.kill, signal.SIGINT, marks=pytest.mark.soak),
        pytest.param(os.killpg, signal.SIGTERM, marks=pytest.mark.soak),
    ],
)
def test_a_signal_to_the_process_or_its_group_ends_in_a_clean_stop(
    jobs: Path, number: signal.Signals, send: object
) -> None:
    process = launch(jobs / "waits.py", "--conf", "file", "--set", "a=b")
    assert process.stdout is not None
    assert process.stdout.readline() == "READY --conf file --set a=b 3\n"
    assert callable(send)
    send(process.pid, number)
    printed, _ = process.communicate(timeout=60)
    assert "stopped cleanly" in printed
    assert process.returncode == 0


def test_neither_driver_nor_workers_run_a_file_of_the_working_directory(jobs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", LAUNCH, str(jobs / "imports.py"), *FOREIGN]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment["PYTHONPATH"] = str(LIBRARY)
    found = subprocess.run(
        command, cwd=foreign_modules(tmp_path), env=environment, capture_output=True, text=True, check=False
    )
    assert found.stdout == "[] [[]]\n", found.stderr


@pytest.mark.parametrize("seconds", [0.8, 2.0])
def test_a_signal_before_the_driver_runs_is_not_lost(jobs: Path, seconds: float) -> None:
    process = launch(jobs / "waits.py")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(seconds * patience())
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_kill_is_told(jobs: Path) -> None:
    process = launch(jobs / "killed.py")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert errors.endswith("killed (SIGKILL); nothing is lost: start it again\n")


def test_the_exit_code_of_the_script_is_that_of_the_launch(jobs: Path) -> None:
    process = launch(jobs / "ends.py", "7")
    printed = process.communicate(timeout=60)
    assert process.returncode == 7
    assert printed == ("", "")


def test_an_error_is_one_line_without_a_stack_trace(jobs: Path) -> None:
    process = launch(jobs / "fails.py")
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (printed, errors) == ("", "error: what is wrong, and what to do\n")


def test_a_dry_run_prints_the_command() -> None:
    process = start(
        "-m", "commitlake.tools.cli", "ledger", "--dry-run", "--master=local[3]", "--set=topics.max=7", "an id"
    )
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "spark-submit --master 'local[3]' --name commitlake-ledger " in printed
    assert printed.endswith(" ledger --set=topics.max=7 -- 'an id'\n")


@pytest.mark.parametrize(
    "command", [["-m", "commitlake.tools.cli", "ledger"], [str(LIBRARY.parent / "jobs" / "ledger.py")]]
)
def test_a_command_runs_in_the_driver_and_its_error_is_one_line(tmp_path: Path, command: list[str]) -> None:
    process = start(*command, f"--set=warehouse={tmp_path}", "--pending")
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert printed == ""
    assert errors.startswith(f"error: warehouse: there are no tables at {tmp_path}")
    assert errors.count("\n") == 1


def test_a_jvm_without_memory_is_one_line_that_says_what_to_raise(jobs: Path) -> None:
    process = launch(jobs / "hungry.py")
    _, errors = process.communicate(timeout=60 * patience())
    told = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert (process.returncode, len(told)) == (52, 1), errors
    assert "Spark ran out of memory" in told[0]
    assert "raise spark.driver.memory" in told[0]


ERROR_WITHIN_S = 20


@pytest.mark.parametrize(
    ("number", "send"),
    [
        pytest.param(signal.SIGTERM, os.kill, id="SIGTERM to the process", marks=pytest.mark.short(core_seconds=50)),
        pytest.param(signal.SIGINT, os.killpg, id="SIGINT to the group", marks=pytest.mark.soak),
    ],
)
def test_a_signal_ends_a_coordinator_with_0_and_leaves_nothing_behind_but_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    monkeypatch.setenv("COMMITLAKE_LOG", "INFO")
    monkeypatch.setenv("COMMITLAKE_LOG_FORMAT", "json")
    with coordinator(tmp_path) as running:
        said = running.ready()
        assert said["warehouse"] == str(running.warehouse)
        assert said["kafka"].startswith("127.0.0.1:")
        assert re.search(r"^READY .* new warehouse$", running.said, re.MULTILINE)
        assert len(running.group()) > 1
        send(running.process.pid, number)
        assert running.end() == 0
        wait_for(lambda: not running.group(), 15, running.group)
        lines = [line for line in running.said.splitlines() if not line.startswith("READY ")]
        told = [json.loads(line) for line in lines]
    assert {"commitlake.tools.cli.commands"} <= {line["logger"] for line in told}
    assert any(line["message"].startswith("stopping") for line in told)
    assert not any("stack" in line for line in told)


@pytest.mark.long
def test_the_command_stop_ends_one_coordinator_with_0_and_a_standby_takes_over(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    def stop() -> tuple[int, str]:
        done = start("-m", "commitlake.tools.cli", "stop", f"--set=warehouse={tmp_path / 'warehouse'}")
        printed, errors = done.communicate(timeout=120 * patience())
        return done.returncode, printed + errors

    where = {"kafka__bootstrap_servers": broker.bootstrap_servers, "kafka__topic_prefix": "stopped."}
    with coordinator(tmp_path, kafka__queues=2, **where) as active:
        active.ready()
        with coordinator(tmp_path, "--standby", kafka__queues=2, **where) as standby:
            standby.until(lambda: "standing by" in standby.said, 120)
            code, said = stop()
            assert code == 0
            told = r"asking the coordinator to stop: host .*, pid \d+, epoch 1\nthe coordinator has ended\n$"
            assert re.search(told, said), said
            assert active.end() == 0, active.said
            assert "stopping, as `commitlake stop` asks" in active.said
            standby.ready()
            time.sleep(10)
            assert standby.process.poll() is None, standby.said  # the request was for the other one
            assert stop()[0] == 0
            assert standby.end() == 0, standby.said
    assert stop() == (3, "no coordinator runs on this warehouse\n")
    assert not (tmp_path / "warehouse" / "_stop").exists()


@pytest.mark.soak
def test_available_now_works_off_what_is_there_and_exits_0(broker: EmbeddedBroker, tmp_path: Path) -> None:
    place = tmp_path / "a,b"
    place.mkdir()
    lake = Lake(broker.bootstrap_servers, "now.", place)
    lake.commit("t")
    lake.close()
    where = {"kafka__bootstrap_servers": broker.bootstrap_servers, "kafka__topic_prefix": "now."}
    with coordinator(place, "--available-now", kafka__queues=2, **where) as running:
        assert running.end(150) == 0, running.said
        assert [row["body"] for row in lake.topic("orders")] == [b"t"]
        assert DeltaTable(str(running.warehouse / "epochs")).to_pyarrow_table().num_rows == 1


def assert_short_error(running: Coordinator, *words: str) -> None:
    begun = time.monotonic()
    assert running.end(240) != 0
    assert time.monotonic() - begun < ERROR_WITHIN_S * patience()
    assert all(word in running.said for word in words), running.said
    assert "Traceback" not in running.said
    assert "\tat " not in running.said
    assert len(running.said.splitlines()) <= 10, running.said


@pytest.mark.short(core_seconds=30)
def test_a_wrong_bootstrap_server_is_named(tmp_path: Path) -> None:
    with coordinator(tmp_path, kafka__bootstrap_servers="127.0.0.1:1") as running:
        assert_short_error(running, "127.0.0.1:1", "kafka.bootstrap_servers")


def test_a_warehouse_that_can_not_be_written_is_named(broker: EmbeddedBroker, tmp_path: Path) -> None:
    (tmp_path / "warehouse").write_text("a file where a directory should be")
    with coordinator(tmp_path, kafka__bootstrap_servers=broker.bootstrap_servers) as running:
        assert_short_error(running, str(tmp_path / "warehouse"))


@pytest.mark.parametrize("key", ["warehouse", pytest.param("checkpoints", marks=pytest.mark.soak)])
def test_a_place_in_a_directory_that_is_not_there_is_refused(tmp_path: Path, key: str) -> None:
    """A path that was cut short or mistyped would be a second, empty warehouse."""
    place: dict[str, Any] = {key: tmp_path / "cut" / "short"}
    with coordinator(tmp_path, **place) as running:
        assert_short_error(running, f"{key}: {tmp_path}/cut/short is not allowed: the directory {tmp_path}/cut is not")
    assert not (tmp_path / "cut").exists()


def test_a_damaged_table_is_named_with_its_file(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """390 lines of the stacks of two languages."""
    half = tmp_path / "warehouse" / "half"
    for _ in range(3):
        write_deltalake(str(half), pa.table({"n": [1]}), mode="append")
    gone = half / "_delta_log" / f"{1:020}.json"
    gone.unlink()
    with coordinator(tmp_path, kafka__bootstrap_servers=broker.bootstrap_servers) as running:
        assert_short_error(running, f"error: the table at {half} is damaged: {gone} is missing; bring it back")


@pytest.mark.soak
def test_a_second_coordinator_on_an_embedded_broker_names_the_first(tmp_path: Path) -> None:
    with coordinator(tmp_path) as first:
        first.ready()
        with coordinator(tmp_path) as second:
            assert_short_error(second, "another coordinator", f"host {socket.gethostname()}", "epoch 1")
        first.process.terminate()
        assert first.end() == 0
