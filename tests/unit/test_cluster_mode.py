"""Cluster mode: what travels to a driver on the cluster, and what must not."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from commitlake.errors import ConfigError, SetupError
from commitlake.spark import cluster_mode, executors, given, process, submit
from commitlake.tools.cli.app import app

SCRIPT = Path(__file__)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The launcher's directory; the working directory is another, with a configuration."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "lake.yaml").write_text("kafka:\n  bootstrap_servers: k:9092\n")
    travels = tmp_path / "travels"
    travels.mkdir()
    return travels


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A launcher, which ends next, leaves its handlers of signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def settings(place: Path, *arguments: str) -> tuple[dict[str, str], list[str]]:
    return cluster_mode.settings(place, arguments, is_python_named=True)


def travelled(place: Path) -> dict[str, object]:
    read = yaml.safe_load((place / "commitlake.yaml").read_text())
    assert isinstance(read, dict)
    return read


def test_file_environment_and_sets_become_one_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITLAKE__KAFKA__QUEUES", "3")
    own, words = settings(place, "run", "--conf=lake.yaml", "--set=warehouse=hdfs://n/lake", "--standby")
    assert words == ["run", "--conf=commitlake.yaml", "--standby"]
    found = travelled(place)
    assert (found["kafka.bootstrap_servers"], found["kafka.queues"]) == ("k:9092", "3")
    assert found["warehouse"] == "hdfs://n/lake"
    assert str(place / "commitlake.yaml") in own["spark.files"].split(",")


def test_a_relative_place_is_that_of_the_launchers_directory(place: Path) -> None:
    settings(place, "run", "--set=warehouse=lake")
    assert travelled(place)["warehouse"] == str(Path("lake").absolute())


def test_a_secrets_file_travels_with_the_configuration(place: Path) -> None:
    Path("pw").write_text("geheim")
    own, _ = settings(place, "run", "--set=kafka.options.ssl.key.password=file:pw")
    copy = place / "secret-0"
    assert travelled(place)["kafka.options"] == {"ssl.key.password": "file:secret-0"}
    assert (copy.read_text(), copy.stat().st_mode & 0o777) == ("geheim", 0o600)
    assert str(copy) in own["spark.files"].split(",")
    assert "geheim" not in str(own) + (place / "commitlake.yaml").read_text()


def test_a_secrets_file_of_the_clusters_machines_is_named_as_it_was(place: Path) -> None:
    settings(place, "run", "--set=kafka.options.ssl.key.password=file:/not/here")
    assert travelled(place)["kafka.options"] == {"ssl.key.password": "file:/not/here"}


def test_a_secret_in_a_variable_is_refused_with_the_way_that_is_clean(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAAS", "geheim")
    with pytest.raises(ConfigError, match=r"kafka.options.sasl.jaas.config: env:JAAS .*file:/path") as error:
        settings(place, "run", "--set=kafka.options.sasl.jaas.config=env:JAAS")
    assert "geheim" not in str(error.value)


def test_a_secret_in_a_rule_is_refused_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "geheim")
    rule = "checks:\n  shop: {database: 'postgresql://u@h/d', password: 'env:PW'}\n"
    Path("rule.yaml").write_text(rule)
    with pytest.raises(ConfigError, match=r"checks.shop.password: env:PW"):
        settings(place, "run", "--conf=rule.yaml")


def test_secrets_in_a_map_that_is_one_text_are_found_too(place: Path) -> None:
    Path("pw").write_text("geheim")
    rule = "checks={shop: {database: 'postgresql://u@h/d', password: '%s'}}"
    with pytest.raises(ConfigError, match=r"checks.shop.password: env:PW"):
        settings(place, "run", f"--set={rule % 'env:PW'}")
    settings(place, "run", f"--set={rule % 'file:pw'}")
    assert travelled(place)["checks"] == {"shop": {"database": "postgresql://u@h/d", "password": "file:secret-0"}}


def test_a_mistake_is_told_before_anything_is_submitted(place: Path) -> None:
    with pytest.raises(ConfigError, match="unknown configuration key wharehouse"):
        settings(place, "run", "--set=wharehouse=x")


def launched(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: str = "",
    command: str = "run",
    master: str = "yarn",
) -> list[str]:
    """The words of spark-submit."""
    monkeypatch.setenv("COMMITLAKE_SPARK_ARGS", f"--deploy-mode cluster {more}")
    monkeypatch.setattr("commitlake.spark.runtime.jars", lambda _: ["/jars/delta.jar"])
    assert submit.launch(SCRIPT, [command], name="test", master=master, dry_run=True) == 0
    return shlex.split(capsys.readouterr().out)


@pytest.mark.usefixtures("place")
def test_the_command_needs_nothing_of_this_machine_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(executors, "of_driver", lambda: ["pytz"])
    monkeypatch.setenv("COMMITLAKE_LOG", "INFO")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    own = (
        "spark.yarn.appMasterEnv.PYTHONPATH=/own",
        "spark.executorEnv.PYTHONPATH=/own",
        "spark.yarn.dist.pyFiles=/o.zip",
    )
    words = launched(monkeypatch, capsys, " --conf ".join(["--files /etc/krb5.conf", *own]))
    found = dict(word.split("=", 1) for word in words if "=" in word)
    assert found["spark.submit.deployMode"] == "cluster"
    assert found["spark.archives"].endswith(f"#{executors.DIRECTORY}")
    paths = [found[f"spark.{whose}.PYTHONPATH"] for whose in ("yarn.appMasterEnv", "executorEnv")]
    assert paths == [f"{executors.DIRECTORY}:/own"] * 2
    assert re.fullmatch(r".*/commitlake\.zip,/o\.zip", found["spark.yarn.dist.pyFiles"])
    assert found["spark.yarn.appMasterEnv.COMMITLAKE_LOG"] == "INFO"
    assert found["spark.yarn.submit.waitAppCompletion"] == "false"
    assert "spark.pyspark.driver.python" not in found
    names = [Path(each).name for each in found["spark.files"].split(",")]
    assert names == ["commitlake.yaml", "log4j2.properties", "krb5.conf"]
    options = found["spark.driver.extraJavaOptions"].split()
    assert "-Dlog4j2.configurationFile=log4j2.properties" in options
    assert not any(option.startswith("-Duser.home") for option in options)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", ["spark.pyspark.python", "spark.yarn.appMasterEnv.PYSPARK_PYTHON"])
def test_beside_a_named_python_no_package_travels(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = launched(monkeypatch, capsys, f"--conf {name}=/opt/python")
    assert f"{name}=/opt/python" in words
    assert not any("spark.archives" in word or "PYTHONPATH" in word for word in words)


@pytest.mark.parametrize(("mode", "is_probed"), [("cluster", False), ("client", True)])
def test_a_port_is_probed_on_the_drivers_machine_only(
    mode: str, is_probed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMITLAKE_SPARK_ARGS", f"--deploy-mode {mode}")
    monkeypatch.setattr(submit, "launch", lambda *_, **__: 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(app, ["run", "--master=yarn", f"--set=metrics.port={port}"])
    assert ("cannot listen on" in str(done.exception)) == is_probed, done.output
    assert is_probed or done.exit_code == 0


@pytest.mark.usefixtures("place")
def test_settings_that_the_driver_would_override_travel_to_it_and_secrets_do_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = {"spark.sql.shuffle.partitions": "8", "spark.sql.streaming.pollingDelay": "2s"}
    wanted = {**tuned, "spark.pyspark.python": "/opt/python", "spark.hadoop.fs.s3a.secret.key": "geheim"}
    words = launched(monkeypatch, capsys, " ".join(f"--conf {name}={value}" for name, value in wanted.items()))
    (there,) = [word for word in words if word.startswith("spark.yarn.appMasterEnv.COMMITLAKE_SPARK_ARGS=")]
    assert given.settings(shlex.split(there.partition("=")[2])) == tuned


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("command", "master"), [("audit", "yarn"), ("stop", "local[2]"), ("run", "local[2]")])
def test_a_command_that_answers_and_one_machine_keep_the_driver_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, master: str
) -> None:
    words = launched(monkeypatch, capsys, "--conf spark.pyspark.python=/opt/python", command, master)
    assert [word for word in words if "deployMode" in word] == ["spark.submit.deployMode=client"]
    assert not any("waitAppCompletion" in word or "configurationFile=log4j2.properties" in word for word in words)


def submitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str, master: str = "yarn", *words: str) -> int:
    """The exit code of `run` with a spark-submit that does what a line of shell says."""
    own = tmp_path / "spark" / "bin" / "spark-submit"
    own.parent.mkdir(parents=True)
    own.write_text(f"#!/bin/sh\n{does}\n")
    own.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(own.parents[1]))
    monkeypatch.setenv("COMMITLAKE_SPARK_ARGS", "--deploy-mode cluster")
    monkeypatch.setattr("commitlake.spark.runtime.jars", lambda _: ["/jars/delta.jar"])
    monkeypatch.setattr(executors, "archive", lambda _: tmp_path / "packages.tar.gz")
    return submit.launch(SCRIPT, ["run", *words], name="commitlake-run", master=master)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("master", "conf", "told"),
    [
        ("yarn", {}, "HADOOP_CONF_DIR is not set"),
        ("k8s://api", {"HADOOP_CONF_DIR": "/conf"}, "--deploy-mode cluster is for --master yarn"),
    ],
)
def test_where_the_driver_cannot_go_nothing_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, master: str, conf: dict[str, str], told: str
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    for name, value in conf.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SetupError, match=told):
        submitted(monkeypatch, tmp_path, f"touch {tmp_path}/tried", master)
    assert not (tmp_path / "tried").exists()


@pytest.mark.usefixtures("place")
def test_a_launcher_that_is_ended_leaves_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Path("pw").write_text("geheim")
    monkeypatch.setenv("HADOOP_CONF_DIR", "/conf")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        submitted(
            *(monkeypatch, tmp_path, "ls -d $(dirname $0)/../../commitlake-launch-*/secret-0 && kill -TERM $PPID"),
            *("yarn", "--set=kafka.options.ssl.key.password=file:pw"),
        )
    assert ended.value.code == process.STOPPED
    assert list(tmp_path.glob("commitlake-launch-*")) == []


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("named", ["", "/opt/python"])
def test_of_pythons_only_the_one_that_the_operator_names_travels(
    named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/conf")
    monkeypatch.setenv("PYTHONPATH", "lib")
    monkeypatch.setenv("PYSPARK_PYTHON", named) if named else monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert submitted(monkeypatch, tmp_path, "env") == 0
    said = capfd.readouterr().out
    pythons = [line for line in said.splitlines() if re.match("PYTHONPATH|PYSPARK.*PYTHON", line)]
    assert pythons == ([f"PYSPARK_PYTHON={named}"] if named else [])
    assert "yarn logs -applicationId" in said


@pytest.mark.parametrize(
    ("container", "later"),
    [
        ("container_1410901177871_0001_01_000001", False),
        ("container_e17_1410901177871_0001_02_000001", True),
        ("container_1410901177871_0001_03_000001", True),
        ("", False),
    ],
)
def test_a_further_attempt_of_an_application_stands_by(
    monkeypatch: pytest.MonkeyPatch, container: str, later: bool
) -> None:
    monkeypatch.setenv("CONTAINER_ID", container)
    assert cluster_mode.is_later_attempt() is later
