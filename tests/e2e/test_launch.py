"""A job under a real spark-submit: exit codes, signals, and what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / "lib"

JOBS = {
    "waits": """
        from commitlake.spark import process, session
        def run(arguments):
            stop = process.stop_on_signals()
            spark = session.build()
            print("READY", *arguments, spark.range(3).count(), flush=True)
            stop.wait()
            spark.stop()
            print("stopped cleanly", flush=True)
        process.main(run, exit_when_stopped=0)
    """,
    "ends": """
        from commitlake.spark import process
        process.main(lambda arguments: int(arguments[0]))
    """,
    "fails": """
        from commitlake import errors
        from commitlake.spark import process
        def run(arguments):
            raise errors.ConfigError("what is wrong, and what to do")
        process.main(run)
    """,
}


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    for name, text in JOBS.items():
        lines = [line.removeprefix(" " * 8) for line in text.splitlines()]
        (tmp_path / f"{name}.py").write_text("\n".join(lines))
    return tmp_path


def launch(jobs: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "commitlake.spark.submit", str(jobs), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(LIBRARY)},
        start_new_session=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_a_signal_to_the_process_or_its_group_ends_in_a_clean_stop(
    jobs: Path, number: signal.Signals, send: object
) -> None:
    process = launch(jobs, "waits", "--conf", "file", "--master", "local[2]", "--set", "a=b")
    assert process.stdout is not None
    assert process.stdout.readline() == "READY --conf file --set a=b 3\n"
    assert callable(send)
    send(process.pid, number)
    said, _ = process.communicate(timeout=60)
    assert "stopped cleanly" in said
    assert process.returncode == 0


@pytest.mark.parametrize("seconds", [0.8, 2.0])
def test_a_signal_before_the_driver_runs_is_not_lost(jobs: Path, seconds: float) -> None:
    process = launch(jobs, "waits", "--master", "local[2]")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(seconds)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_exit_code_of_the_job_is_that_of_the_launch(jobs: Path) -> None:
    process = launch(jobs, "ends", "7")
    said = process.communicate(timeout=60)
    assert process.returncode == 7
    assert said == ("", "")


def test_an_error_is_one_line_without_a_stack_trace(jobs: Path) -> None:
    process = launch(jobs, "fails")
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (said + errors).strip() == "error: what is wrong, and what to do"


def test_a_dry_run_prints_the_command(jobs: Path) -> None:
    process = launch(jobs, "ends", "--dry-run", "--master=local[3]", "7")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "spark-submit --master 'local[3]'" in said
    assert said.rstrip().endswith("ends.py 7")
