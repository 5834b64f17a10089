"""The wheel, installed into clean environments as users do it: the producer, a consumer without Spark, the coordinator.

COMMITLAKE_WHEEL names one that is built already.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.killing import ROOT, kill
from tests.support.polling import wait_for

import commitlake
from commitlake.kafka.embedded import EmbeddedBroker

PRODUCES = """
import sys
from commitlake import LocalTransactionState, Message, TransactionListener, TransactionMQProducer

class Paid(TransactionListener):
    def execute_local_transaction(self, message, arg):
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message):
        return LocalTransactionState.COMMIT_MESSAGE

with TransactionMQProducer("shop", Paid(), bootstrap_servers=sys.argv[1]) as producer:
    print(producer.send_message_in_transaction(Message("orders", "one espresso", keys="order-1")).transaction_id)
"""
CONSUMES = """
import sys
import commitlake

with commitlake.consume({"warehouse": sys.argv[1]}, "orders", group="points", follow=False) as messages:
    for message in messages:
        print(message.keys, message.body.decode())
        message.done()
"""


class Environment:
    """A virtual environment with the wheel, and nothing of the clone."""

    def __init__(self, place: Path, wheel: Path, extras: str = "") -> None:
        self.place = place
        # Without the path that a Spark session of this process sets: pip would take the wheel for installed.
        installing = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        pip = [str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *constraints, f"{wheel}{extras}"], check=True, env=installing)

    def command(self, *words: str) -> list[str]:
        return [str(self.place / "bin" / words[0]), *words[1:]]

    def variables(self, path: str = "/nonexistent") -> dict[str, str]:
        """Those of a machine without Java, unless `path` leads to one."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "XDG_CACHE_HOME") if name in os.environ}
        return kept | {"PATH": f"{self.place / 'bin'}:{path}"}

    def run(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            self.command(*words), cwd=self.place, env=self.variables(), capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def has(self, module: str) -> bool:
        return "None" not in self.run("python", "-c", f"import importlib.util as u; print(u.find_spec({module!r}))")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: what setuptools keeps in `build` goes into the next wheel, also when it was deleted."""
    if given := os.environ.get("COMMITLAKE_WHEEL"):
        return Path(given).absolute()
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "lib", source / "lib", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-m", "build", "--wheel", source], check=True, capture_output=True)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("bare"), wheel)


@pytest.fixture(scope="module")
def consumer(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("consumer"), wheel, "[consumer]")


@pytest.fixture(scope="module")
def spark_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("spark-only"), wheel, "[spark]")


@pytest.fixture
def conf(tmp_path: Path, broker: EmbeddedBroker) -> Path:
    file = tmp_path / "conf.yaml"
    kafka = {"bootstrap_servers": broker.bootstrap_servers, "queues": 2}
    places = {name: str(tmp_path / name) for name in ("warehouse", "checkpoints")}
    file.write_text(json.dumps({**places, "kafka": kafka}))
    return file


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {str(path.relative_to(ROOT / "lib")) for path in (ROOT / "lib" / "commitlake").rglob("*.*")}
    assert {name for name in names if ".dist-info/" not in name} == {name for name in package if ".pyc" not in name}
    assert any(name.endswith("/LICENSE") for name in names)


def test_the_bare_wheel_has_the_command_and_names_the_extra_that_is_missing(bare: Environment) -> None:
    assert bare.run("commitlake", "--version") == f"commitlake {commitlake.__version__}\n"
    assert not any(map(bare.has, ("pyspark", "deltalake", "duckdb", "pyarrow", "pandas")))
    told = "pip install '/path/to/clone[consumer]'"
    assert told in bare.run("commitlake", "topics", code=1)
    assert told in bare.run("python", "-c", "import commitlake as c; c.consume", code=1)
    assert "module pyspark is missing" in bare.run("commitlake", "run", code=1)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_what_the_bare_wheel_sends_and_spark_decides_the_consumer_reads_without_spark(
    bare: Environment, consumer: Environment, running: Path, conf: Path, broker: EmbeddedBroker
) -> None:
    transaction = bare.run("python", "-c", PRODUCES, broker.bootstrap_servers).strip()
    warehouse = str(conf.parent / "warehouse")
    wait_for(lambda: list(Path(warehouse).glob("topics/orders/_delta_log/*.json")), 120)
    wait_for(lambda: "order-1" in consumer.run("python", "-c", CONSUMES, warehouse), 120)
    shown = consumer.run("commitlake", "tx", "show", transaction, "--conf", str(conf))
    assert "COMMITTED" in shown
    assert "orders" in consumer.run("commitlake", "topics", "--conf", str(conf))
    consumer.run("commitlake", "unfinished", "orders", "--group", "points", "--conf", str(conf), code=3)
    assert not any(map(consumer.has, ("pyspark", "delta")))


@pytest.fixture
def running(spark_only: Environment, conf: Path) -> Iterator[Path]:
    """A coordinator that `commitlake run --conf` started, and that SIGTERM ends with code 0; yields its output."""
    said = conf.with_name("said")
    with said.open("w") as output:
        process = subprocess.Popen(
            spark_only.command("commitlake", "run", "--conf", str(conf), "--master", "local[2]"),
            cwd=conf.parent,
            env=spark_only.variables(os.environ["PATH"]),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for(lambda: "READY" in said.read_text() or process.poll() is not None, 600, said.read_text)
        assert process.poll() is None, said.read_text()
        yield said
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, said.read_text()
    finally:
        kill(process)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_the_jars_of_the_image_are_all_there_after_its_last_step(spark_only: Environment, tmp_path: Path) -> None:
    """The image's steps by hand: no container here, so its environment is `spark_only`, its user's home a new one."""
    (step,) = re.findall(r"^RUN (commitlake .+)$", (ROOT / "conf" / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    variables = spark_only.variables(os.environ["PATH"]) | {"_JAVA_OPTIONS": f"-Duser.home={tmp_path}"}
    variables = {name: value for name, value in variables.items() if name != "XDG_CACHE_HOME"} | {"HOME": str(tmp_path)}
    command = spark_only.command(*step.split())
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (jars,) = re.findall(r"spark.driver.extraClassPath=(\S+\.jar)", done.stdout)
    assert all(Path(jar).is_relative_to(tmp_path) and Path(jar).exists() for jar in jars.split(":"))
    assert list((tmp_path / ".cache" / "commitlake").glob("jars-*.txt"))  # by which a start asks Ivy nothing
