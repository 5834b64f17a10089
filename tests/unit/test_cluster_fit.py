"""What is refused at a start on a cluster, by what an operator configured."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.support.killing import ENVIRONMENT

from commitlake import config
from commitlake.errors import ConfigError, SetupError
from commitlake.spark import cluster, executors, runtime, session

MASTER = "spark://spark-1.example.com:7077"
PLACES = {"warehouse": "hdfs://name/lake", "checkpoints": "hdfs://name/checkpoints"}
BROKER = {"kafka.bootstrap_servers": "kafka-1.example.com:9092"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"warehouse": "/lake"}, "warehouse: /lake is a directory of the driver's machine"),
        ({"warehouse": "file:///lake"}, "warehouse: file:///lake is a directory of the driver's machine"),
        ({"checkpoints": "/scratch"}, "checkpoints: /scratch is a directory of the driver's machine"),
        ({"kafka.bootstrap_servers": "embedded"}, "'embedded' is not allowed with the master spark://"),
    ],
)
def test_what_only_the_driver_sees_is_refused_with_a_remote_master(changes: dict[str, object], named: str) -> None:
    conf = config.from_mapping({**PLACES, **BROKER, **changes})
    with pytest.raises(ConfigError, match="use the master local"):
        cluster._refuse_local_places(conf, MASTER)
    with pytest.raises(ConfigError) as caught:
        cluster._refuse_local_places(conf, MASTER)
    assert named in str(caught.value)


def test_places_that_all_see_pass() -> None:
    cluster._refuse_local_places(config.from_mapping({**PLACES, **BROKER}), MASTER)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,4]"])
def test_local_masters_are_one_machine(master: str) -> None:
    assert session.is_one_machine(master)


@pytest.mark.parametrize("master", [MASTER, "yarn", "k8s://https://host:443", "local-cluster[2,1,1024]"])
def test_other_masters_have_executors_of_their_own(master: str) -> None:
    assert not session.is_one_machine(master)


@pytest.mark.parametrize("address", ["localhost:9092", "127.0.0.1:9092", "127.1.2.3:9092", "[::1]:9092"])
def test_loopback_addresses_are_known(address: str) -> None:
    assert cluster._is_loopback(address)


@pytest.mark.parametrize("address", ["kafka:9092", "10.0.0.1:9092", "localhost.example.com:9092", "[2001:db8::1]:9092"])
def test_other_addresses_are_not_loopback(address: str) -> None:
    assert not cluster._is_loopback(address)


@pytest.mark.parametrize("version", ["4.0.5", "4.0.11", "4.1.4", "4.2.0", "4.2.1"])
def test_spark_4_0_to_4_2_pass(version: str) -> None:
    runtime.check_spark(version)


@pytest.mark.parametrize(("version", "first"), [("4.0.0", "4.0.5"), ("4.0.4", "4.0.5"), ("4.1.3", "4.1.4")])
def test_a_spark_that_fails_with_the_newest_pyarrow_is_refused_beside_it(
    monkeypatch: pytest.MonkeyPatch, version: str, first: str
) -> None:
    """Its stateful queries die of a TypeError, with the first rows."""
    monkeypatch.setattr("importlib.metadata.version", lambda _: "26.0.1")
    with pytest.raises(SetupError, match=rf"Spark {version} fails with pyarrow 26.0.1; use Spark {first} or newer, or"):
        runtime.check_spark(version)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "25.0.1")
    runtime.check_spark(version)


@pytest.mark.parametrize("version", ["3.5.9", "4.3.0", "4.10.0", "5.0.0"])
def test_another_spark_is_refused_by_name(version: str) -> None:
    with pytest.raises(SetupError, match=rf"this is Spark {version} at /opt/spark; CommitLake runs"):
        runtime.check_spark(version, " at /opt/spark")


def test_the_home_of_another_spark_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(SetupError, match=rf"this is Spark 3.5.1 at {tmp_path}"):
        runtime.packages()


@pytest.mark.parametrize(("version", "delta"), [("4.0.5", "_4.0_"), ("4.1.4", "_4.1_"), ("4.2.0", "_4.2_")])
def test_delta_and_connector_are_those_of_the_spark_that_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, delta: str
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"spark-core_2.13-{version}.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("COMMITLAKE_PACKAGES", raising=False)
    assert f"io.delta:delta-spark{delta}2.13" in runtime.packages()[0]
    assert f"spark-sql-kafka-0-10_2.13:{version[:3]}" in runtime.packages()[1]


def test_executors_get_the_packages_of_the_driver_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(executors, "_SHIPPED", ("pytz", "a-package-that-is-not-there"))
    made = executors.archive()
    with tarfile.open(made) as packed:
        assert "pytz/__init__.py" in packed.getnames()
    written = made.stat().st_mtime_ns
    assert executors.archive() == made
    assert made.stat().st_mtime_ns == written
    assert executors.settings()["spark.archives"] == f"{made}#{executors.DIRECTORY}"


def test_what_executors_import_needs_neither_delta_nor_a_kafka_client() -> None:
    imported = "import sys, commitlake.coordinator.coordination.state"
    code = f"{imported}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert {"numpy", "pandas"} <= set(done.stdout.split())
    assert {"delta", "kafka", "yaml", "typer"} & set(done.stdout.split()) == set()
