"""The command line: what it accepts, where it runs, and that help costs nothing. No Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import duckdb
import pytest
import typer
from tests.support.running import foreign_modules
from typer.testing import CliRunner

import commitlake
from commitlake import config
from commitlake.errors import CommitLakeError, ConfigError
from commitlake.spark import process, submit
from commitlake.tools.cli import app, options, output, questions

ROOT = Path(__file__).parents[2]
COMMANDS = ("run", "stop", "ledger", "audit", "admin", "maintain", "erase")
QUESTIONS = (
    "demo",
    "find",
    "rejected",
    "topics",
    "stats",
    "doctor",
    "backup",
    "report",
    "send",
    "consume",
    "delayed",
    "recall",
    "unfinished",
    "groups",
    "send-again",
    "gateway",
    "iceberg",
    "config",
    "tx",
    "database",
)
LINES = (
    ("run", "--conf", "conf/local.yaml", "--set", "kafka.queues=2", "--set", "delay.max=1d"),
    ("run", "--available-now"),
    ("ledger", "--summary"),
    ("ledger", "--pending", "--conf=conf/local.yaml"),
    ("ledger", "some id", "--set=topics.max=7"),
    ("ledger", "--", "-id"),
    ("audit", "--set", "warehouse=there"),
    ("maintain",),
    ("stop", "--conf=conf/local.yaml"),
    ("admin", "resume", "id", "--remark", "", "--set", "kafka.bootstrap_servers=k:1"),
    ("admin", "commit", "--remark", "--force", "--set", "kafka.bootstrap_servers=k:1", "--", "-id"),
)


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (process.MEETING_PLACE, "PYSPARK_GATEWAY_PORT", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was given to spark-submit."""
    calls: list[dict[str, Any]] = []

    def launch(script: Path, arguments: list[str], **how: Any) -> int:
        calls.append({"script": script, "arguments": arguments, **how})
        return 7

    monkeypatch.setattr(submit, "launch", launch)
    return calls


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The work that commands did in the driver."""
    from commitlake.tools.audit import admin
    from commitlake.tools.cli import commands

    calls: list[tuple[Any, ...]] = []

    def record(name: str, result: object = 0) -> Callable[..., object]:
        def work(*arguments: Any, **options: Any) -> object:
            calls.append((name, [str(each) for each in arguments], options))
            return result

        return work

    for name in ("run", "stop", "show_ledger", "audit", "maintain", "first_half_message"):
        monkeypatch.setattr(commands, name, record(name))
    monkeypatch.setattr(admin, "send", record("send"))
    return calls


def invoke(*line: str) -> int:
    return CliRunner().invoke(app.app, list(line)).exit_code


def in_driver(monkeypatch: pytest.MonkeyPatch, *line: str) -> int:
    with monkeypatch.context() as inside:
        inside.setenv(process.MEETING_PLACE, "there")
        inside.setattr(process, "exit_on_signals", lambda _: nullcontext())
        return invoke(*line)


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_the_driver_runs_the_command_that_was_launched(
    monkeypatch: pytest.MonkeyPatch,
    launched: list[dict[str, Any]],
    done: list[tuple[Any, ...]],
    line: tuple[str, ...],
) -> None:
    assert invoke(*line) == 7
    assert done == []
    (call,) = launched
    assert in_driver(monkeypatch, *call["arguments"]) == 0
    handed_over = done.copy()
    done.clear()
    assert in_driver(monkeypatch, *line) == 0
    assert handed_over == done != []


def test_the_launch_gets_its_own_options_and_the_driver_does_not(
    monkeypatch: pytest.MonkeyPatch, launched: list[dict[str, Any]]
) -> None:
    invoke("audit", "--master", "local[3]", "--dry-run")
    monkeypatch.setenv("MASTER", "spark://there:1")
    invoke("ledger", "--pending")
    invoke("run", "--master=local")
    monkeypatch.setenv("MASTER", "")
    invoke("ledger", "--summary")
    assert [(call["name"], call["master"], call["dry_run"], call["short_lived"]) for call in launched] == [
        ("commitlake-audit", "local[3]", True, False),
        ("commitlake-ledger", "spark://there:1", False, True),
        ("commitlake-run", "local", False, False),
        ("commitlake-ledger", "local[*]", False, True),
    ]
    assert [call["arguments"] for call in launched[:3]] == [["audit"], ["ledger", "--pending"], ["run"]]
    assert all(call["script"].is_file() for call in launched)


def test_a_decision_on_a_known_half_message_is_sent_without_spark(
    launched: list[dict[str, Any]], done: list[tuple[Any, ...]]
) -> None:
    line = ("admin", "rollback", "id", "--remark", "why", "--at", "1-22", "--set", "kafka.bootstrap_servers=k:1")
    assert invoke(*line) == 0
    assert [(name, arguments[1:]) for name, arguments, _ in done] == [("send", ["ROLLBACK", "id", "1-22", "why"])]
    assert launched == []
    assert invoke(*line, "--dry-run") == 7
    assert len(done) == 1


@pytest.mark.parametrize(
    "line",
    [
        ("explode",),
        ("run", "--explode"),
        ("run", "too much"),
        ("config", "--master", "local"),
        ("ledger",),
        ("ledger", "id", "--pending"),
        ("ledger", "--summary", "--pending"),
        ("admin", "commit", "id"),
        ("admin", "explode", "id", "--remark", "why"),
        ("admin", "commit", "id", "--remark", "why", "--at", "here"),
        ("tx", "show"),
        ("tx", "list", "--reason", "NOSUCH"),
        ("tx", "rollback", "--remark", "why", "--state", "PENDING"),
        ("tx", "rollback", "id", "--remark", "why", "--state", "COMMITTED"),
        ("rejected", "--reason", "NOSUCH"),
        ("unfinished", "orders"),
        ("send-again",),
        ("gateway", "--listen"),
        ("iceberg",),
        ("database", "create"),
        ("database", "create", "sqlite://", "--print"),
        ("database", "tidy"),
        ("database", "tidy", "sqlite://", "--older-than", "long"),
        ("topics", "--explode"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_found_before_anything_starts(launched: list[dict[str, Any]], line: tuple[str, ...]) -> None:
    assert invoke(*line) == 2
    assert launched == []


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "ledger --pending",
        "audit",
        "maintain",
        "unfinished t --group=g",
        "send-again t --group=g",
        "gateway",
        "iceberg --catalog=sqlite://",
        "groups",
        "config",
    ],
)
@pytest.mark.parametrize("wrong", ["--set=no.such=key", "--set=kafka.queues=many", "--conf=no/such/file"])
def test_a_wrong_configuration_is_one_short_error_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    launched: list[dict[str, Any]],
    command: str,
    wrong: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["commitlake", *command.split(), wrong])
    with pytest.raises(SystemExit) as exit_:
        app.main()
    assert exit_.value.code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert launched == []


def test_an_embedded_broker_needs_an_address_for_administrators(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], launched: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(sys, "argv", ["admin.py", "commit", "id", "--remark", "why"])
    with pytest.raises(SystemExit):
        app.main("admin")
    assert "READY line" in capsys.readouterr().err
    assert launched == []


def test_the_fixed_port_of_an_embedded_broker_is_its_address() -> None:
    fixed = options.with_address(config.from_mapping({"kafka.embedded_port": 19092}))
    assert fixed.kafka.bootstrap_servers == "127.0.0.1:19092"
    named = {"kafka.bootstrap_servers": "kafka:9092", "kafka.embedded_port": 19092}
    assert options.with_address(config.from_mapping(named)).kafka.bootstrap_servers == "kafka:9092"
    with pytest.raises(ConfigError, match=r"READY line .* or fix its port with kafka\.embedded_port"):
        options.with_address(config.from_mapping({}))


@pytest.mark.parametrize(
    ("module", "extra"), [("pyspark", "all"), ("duckdb", "consumer"), ("pyarrow.compute", "consumer")]
)
def test_a_missing_module_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str, extra: str
) -> None:
    def missing(*_: object) -> None:
        raise ModuleNotFoundError(name=module)

    monkeypatch.setattr(options, "load", missing)
    monkeypatch.setattr(sys, "argv", ["commitlake", "audit"])
    with pytest.raises(SystemExit):
        app.main()
    told = f"error: the Python module {module} is missing; install it with pip install '/path/to/clone[{extra}]'"
    assert capsys.readouterr().err.startswith(told)


def test_the_configuration_is_printed_without_its_secrets() -> None:
    found = CliRunner().invoke(app.app, ["config", "--set=kafka.options.sasl.password=hunter2"])
    assert found.exit_code == 0
    assert "transaction.timeout = 6s" in found.output
    assert "'sasl.password': '***'" in found.output
    assert "hunter2" not in found.output


def test_a_rule_that_can_not_be_read_is_an_error_of_the_configuration() -> None:
    for address, told in (("postgresql://h/db", ""), ("h/db", "write postgresql://HOST/DATABASE")):
        found = CliRunner().invoke(app.app, ["config", f"--set=checks={{g: {{database: '{address}'}}}}"])
        assert f"checks = {{'g': {{'database': '{address}'}}}}" in found.output
        assert (found.exit_code == 0) == (told == "")
        assert told in str(found.exception)


HELP = """
import json, sys
started = []
sys.addaudithook(lambda event, arguments: started.append(event) if event in ("subprocess.Popen", "os.exec") else None)
from commitlake.tools.cli import app
for line in json.loads(sys.argv[1]):
    sys.argv = ["commitlake", *line]
    try:
        app.main()
    except SystemExit:
        print(json.dumps([line, started, sorted(sys.modules)]), file=sys.stderr)
"""


def test_help_starts_and_loads_nothing() -> None:
    lines = [["--help"], ["-h"], *[[command, "--help"] for command in (*COMMANDS, *QUESTIONS)]]
    environment = {"PATH": "/nowhere", "PYTHONPATH": str(ROOT / "lib")}
    found = subprocess.run(
        [sys.executable, "-c", HELP, json.dumps(lines)], capture_output=True, text=True, check=True, env=environment
    )
    told = [json.loads(line) for line in found.stderr.splitlines()]
    assert [line for line, *_ in told] == lines
    for line, started, modules in told:
        assert started == [], line
        assert {"pyspark", "py4j", "kafka", "numpy", "pandas", "rich"}.isdisjoint(modules), line
    usages = re.findall(r"^Usage: commitlake (\S+)", found.stdout, re.MULTILINE)
    assert usages == ["[OPTIONS]", "[OPTIONS]", *COMMANDS, *QUESTIONS]


def test_help_lists_all_commands() -> None:
    listed = CliRunner().invoke(app.app, ["--help"]).output.split("Commands:\n")[1]
    assert [line.split()[0] for line in listed.splitlines()] == [*COMMANDS, *QUESTIONS]
    assert "..." not in listed


def test_the_command_alone_shows_its_help() -> None:
    alone, helped = CliRunner().invoke(app.app, []), CliRunner().invoke(app.app, ["--help"])
    assert (alone.exit_code, alone.output) == (0, helped.output)


def test_the_version_is_that_of_the_package() -> None:
    found = CliRunner().invoke(app.app, ["--version"])
    assert (found.exit_code, found.output) == (0, f"commitlake {commitlake.__version__}\n")


@pytest.mark.parametrize("command", [*COMMANDS, *QUESTIONS, "tx list", "tx hanging", "tx commit"])
def test_help_has_no_type_of_python(command: str) -> None:
    shown = CliRunner().invoke(app.app, [*command.split(), "--help"]).output.split("Options:")[1]
    assert "<" not in shown


def test_each_job_is_a_command() -> None:
    for job in (ROOT / "jobs").glob("*.py"):
        found = subprocess.run([sys.executable, job, "--help"], capture_output=True, text=True, check=True)
        assert found.stdout.startswith(f"Usage: commitlake {job.stem} ")


def run_script(clone: Path, python: str, *given: str, cwd: Path | None = None) -> str:
    """What a copy of the script prints, beside an environment that is set up and whose Python is this shell script."""
    (clone / "java").write_text("#!/bin/sh\n")
    for name in ("setup.py", "constraints.txt"):
        (clone / name).touch()
    script = clone / "spark-submit.sh"
    script.write_text((ROOT / "spark-submit.sh").read_text())
    of_clone = clone / ".venv" / "bin" / "python"
    of_clone.parent.mkdir(parents=True)
    of_clone.write_text(f"#!/bin/sh\n{python}\n")
    for command in (script, of_clone, clone / "java"):
        command.chmod(0o755)
    stamp = subprocess.run(["cksum"], input="", capture_output=True, text=True, check=True).stdout
    (clone / ".venv" / ".commitlake-all").write_text(stamp)
    environment = {**os.environ, "PATH": f"{clone}:{os.environ['PATH']}"}
    for name in ("JAVA_HOME", "PYTHONPATH"):
        environment.pop(name, None)
    return subprocess.run([script, *given], capture_output=True, text=True, check=True, env=environment, cwd=cwd).stdout


def test_the_script_runs_no_file_of_the_directory_that_it_is_called_from(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "lib").symlink_to(ROOT / "lib")
    told = run_script(clone, f'exec {sys.executable} "$@"', "config", cwd=foreign_modules(tmp_path))
    assert "warehouse = " in told


@pytest.mark.parametrize(
    ("given", "handed_over"),
    [
        ([], ["demo"]),
        (["--dir", "a b"], ["demo", "--dir", "a b"]),
        (["--help"], ["--help"]),
        (["-h"], ["-h"]),
        (["run", "--help"], ["run", "--help"]),
        (["ledger", "an id", "--set=a=b c"], ["ledger", "an id", "--set=a=b c"]),
    ],
)
def test_the_script_hands_its_arguments_over(tmp_path: Path, given: list[str], handed_over: list[str]) -> None:
    found = run_script(tmp_path, 'for word in "$@"; do echo "$word"; done', *given)
    assert found.splitlines() == ["-m", "commitlake.tools.cli", *handed_over]


ROWS = [("orders", 1, None), ("a much longer [name]" * 10, 22, True)]


def test_a_watched_answer_is_drawn_over_the_last_one_without_an_empty_screen_between(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, drawn = iter(["a long line\nand another\n", "short\n"]), []
    monkeypatch.setattr(questions, "_WATCH_S", 0)

    def work() -> int:
        drawn.append(capsys.readouterr().out)
        if (answer := next(answers, None)) is None:
            raise KeyboardInterrupt
        print(answer, end="")
        return output.FOUND

    assert questions.repeat(True, work) == output.FOUND
    home, line, below = "\x1b[H", "\x1b[K\n", "\x1b[J"
    assert drawn == ["", f"{home}a long line{line}and another{line}{below}", f"{home}short{line}{below}"]


def test_a_table_in_a_pipe_is_plain_text_as_wide_as_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(["topic", "n", "holds"], ROWS)
    assert capsys.readouterr().out.splitlines() == [
        f"{'topic':200}  n   holds",
        f"{'orders':200}  1",
        f"{ROWS[1][0]}  22  True",
    ]


def test_a_table_on_a_terminal_fits_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(process.TERMINAL, "60")
    monkeypatch.setenv("TERM", "xterm")
    output.show(["topic", "n", "holds"], ROWS)
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 60
    assert "[name]" in "".join(lines)
    assert any("orders" in line and "1" in line for line in lines)


@pytest.mark.parametrize(("given", "age_ms"), [((), 360_000), (("--older-than", "0s"), 0)])
def test_what_hangs_is_as_old_as_the_option_says_also_where_that_is_nothing(
    given: tuple[str, ...], age_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def answer(_: object, wanted: Any, *__: object, **___: object) -> int:
        asked.append(wanted)
        return 3

    monkeypatch.setattr(questions, "transactions", answer)
    assert invoke("tx", "hanging", "--set", "transaction.check_interval=118s", *given) == 3
    assert asked[0].older_than_ms == age_ms


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("tx list --reason NOSUCH", "'NOSUCH' is not one of DIRECT, CHECK, ADMIN, CHECK_MAX, EXPIRED, ORPHAN"),
        ("rejected --reason CHECK", "'CHECK' is not one of WRONG_TRANSACTION_ID,"),
        ("tx rollback --remark why --state PENDING", "--state alone does not choose"),
        ("tx resume id --remark why --state PENDING", "RESUME changes only what is DISCARDED; leave --state out"),
    ],
)
def test_a_filter_that_can_choose_nothing_is_refused_with_what_is_allowed(line: str, told: str) -> None:
    output = CliRunner().invoke(app.app, line.split()).output
    assert told in " ".join(output.split())


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("groups --set=warehouse=nosuch", "nosuch is not there; a relative path counts from the working directory"),
        ("groups --set=warehouse=hdfs://x/y", "hdfs://x/y_receipts/group_logs can't be read here; without Spark"),
        ("doctor --set=warehouse=hdfs://x/y", "hdfs://x/y can't be read here; without Spark"),
        ("doctor --set=warehouse=schema:a.b", "schema:a.b can't be read here; name the place"),
    ],
)
def test_a_warehouse_that_is_not_there_or_only_for_spark_is_told(line: str, told: str) -> None:
    done = CliRunner().invoke(app.app, line.split())
    assert done.exit_code == 1
    assert told in f"{done.output} {done.exception}"
    assert isinstance(done.exception, SystemExit | CommitLakeError)


def test_a_command_gets_an_option_that_launches_have_too() -> None:
    given = []

    def send(settings: config.Config, dry_run: bool = options.flag("--dry-run", "Only print.")) -> None:
        given.append((settings.topics.max, dry_run))

    commands = typer.Typer()
    commands.command()(options.command(send))
    assert CliRunner().invoke(commands, ["--dry-run", "--set=topics.max=7"]).exit_code == 0
    assert given == [(7, True)]


def test_an_empty_condition_is_told() -> None:
    with pytest.raises(ConfigError, match=r"--where: .*; give a condition on columns of half and transactions"):
        questions.asked(lambda: duckdb.connect().execute("SELECT 1 WHERE ()").fetchall(), where="")
