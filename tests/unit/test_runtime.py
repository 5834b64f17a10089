"""What a start runs on: Java and Spark, its jars and class archive, an operator's own arguments, a cluster."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.killing import python

from commitlake import config
from commitlake.errors import ConfigError, SetupError
from commitlake.spark import class_archive, cluster, executors, given, preflight, runtime, session

SCRIPT = Path(__file__).parents[2] / "spark-submit.sh"


def java_that_says(directory: Path, text: str) -> None:
    command = directory / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    command.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('openjdk version "11.0.2"', "Java 11"),
        ('java version "1.8.0_1"', "Java 8"),
        ('openjdk version "25"', "Java 25"),
    ],
)
def test_a_wrong_java_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, named: str
) -> None:
    java_that_says(tmp_path, text)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="install Java 17") as caught:
        runtime.java()
    assert named in str(caught.value)


def test_a_missing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="no Java found at JAVA_HOME"):
        runtime.java()


def test_java_17_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that_says(tmp_path, 'openjdk version "17.0.15" 2025-04-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert runtime.java() == str(tmp_path / "bin" / "java")


def test_spark_home_wins_over_the_path_and_that_over_the_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert runtime.spark_submit()[0] == [str(runtime.spark_home() / "bin" / "spark-submit")]
    on_path = tmp_path / "spark-submit"
    on_path.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert runtime.spark_submit()[0] == [str(on_path)]
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert runtime.spark_submit()[0] == ["/opt/spark/bin/spark-submit"]


def test_the_script_refuses_a_machine_without_java(tmp_path: Path) -> None:
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run([SCRIPT, "run"], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert "install Java 17" in done.stderr


def test_the_script_refuses_a_machine_without_a_fitting_python(tmp_path: Path) -> None:
    copy = tmp_path / "spark-submit.sh"  # beside no .venv
    copy.write_text(SCRIPT.read_text())
    for name in ("setup.py", "constraints.txt"):
        (tmp_path / name).touch()
    environment = os.environ | {"PYTHON": "/bin/false"}
    done = subprocess.run(["bash", copy, "run"], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert "no Python 3.11" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_where_the_home_can_not_be_written_the_cache_is_a_directory_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = runtime.cached_file("jars-{}.txt", "a").parent
    assert (made.parent, stat.S_IMODE(made.stat().st_mode)) == (tmp_path, 0o700)
    assert runtime.cached_file("jars-{}.txt", "a").parent == made


@pytest.mark.parametrize("prepare", ["writable", "of another", "a link of another"])
def test_jars_from_a_directory_that_others_can_write_to_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "commitlake"
    if prepare == "writable":
        cache.mkdir()
        cache.chmod(0o777)
    elif os.getuid():
        pytest.skip("only root gives files away")
    elif prepare == "of another":
        cache.mkdir()
        os.chown(cache, 4_711, 4_711)
        monkeypatch.setattr("os.getuid", lambda: 1_000)
    else:
        (tmp_path / "mine").mkdir()
        cache.symlink_to(tmp_path / "mine")
        os.chown(cache, 4_711, 4_711, follow_symlinks=False)
    with pytest.raises(SetupError, match=r"not a directory of this user's alone.*set XDG_CACHE_HOME"):
        runtime.cached_file("jars-{}.txt", "a")


def test_an_old_python_is_named_with_those_that_are_allowed() -> None:
    program = "import sys; sys.version_info = (3, 10, 13); import commitlake"
    done = python("-c", program)
    assert "SetupError: this is Python 3.10" in done.stderr
    assert "runs on Python 3.11 and newer" in done.stderr


WITHOUT_NETWORK = """
:: problems summary ::
:::: WARNINGS
\tHost repo1.maven.org not found. url=https://repo1.maven.org/maven2/g/b/1/b-1.pom

\tHost repo1.maven.org not found. url=https://repo1.maven.org/maven2/g/b/1/b-1.jar

\t\tmodule not found: g#b;1

\t==== local-m2-cache: tried

\t  file:/root/.m2/repository/g/b/1/b-1.pom

\t\t::::::::::::::::::::::::::::::::::::::::::::::

\t\t:: g#b;1: not found

\t\t::::::::::::::::::::::::::::::::::::::::::::::

:: USE VERBOSE OR DEBUG MESSAGE LEVEL FOR MORE DETAILS
26/11/28 10:13:34 INFO ShutdownHookManager: Shutdown hook called
26/11/28 10:13:34 INFO ShutdownHookManager: Deleting directory /tmp/spark-b082e3e9
"""


def submit_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str = "[NOT FOUND  ] g#b;1!b.jar") -> Path:
    """A spark-submit that keeps what it was given, prints one jar and misses the other; returns the file."""
    java_that_says(tmp_path, 'openjdk version "17.0.15" 2025-04-15')
    given, submit = tmp_path / "given", tmp_path / "bin" / "spark-submit"
    submit.write_text(f'#!/bin/sh\necho "$@" >{given}\necho jar:/there.jar\ncat >&2 <<EOF\n{told}\nEOF\nexit 1\n')
    submit.chmod(0o755)
    homes = {"JAVA_HOME": tmp_path, "SPARK_HOME": tmp_path, "HOME": tmp_path / "a home"}
    for name, value in {**homes, "XDG_CACHE_HOME": tmp_path / "cache"}.items():
        monkeypatch.setenv(name, str(value))
    return given


def test_of_several_packages_none_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jars before the missing one are printed; kept as the whole list, they would fail every later start."""
    submit_that_fails(tmp_path, monkeypatch)
    with pytest.raises(SetupError, match=r"cannot resolve g:a:1, g:b:1; is the Maven.*\n\[NOT FOUND  \] g#b;1!b.jar$"):
        runtime.jars(["g:a:1", "g:b:1"])
    assert not list((tmp_path / "cache").rglob("jars-*"))


def test_without_a_network_the_host_and_the_module_are_named_and_nothing_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_that_fails(tmp_path, monkeypatch, WITHOUT_NETWORK)
    with pytest.raises(SetupError) as caught:
        runtime.jars(["g:a:1", "g:b:1"])
    assert str(caught.value).splitlines()[1:] == ["Host repo1.maven.org not found.", "module not found: g#b;1"]


@pytest.mark.parametrize("is_writable", [True, False])
def test_jars_go_to_the_home_that_is_given_in_english_or_where_it_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_writable: bool
) -> None:
    """By itself Java takes the language of the machine, and the home of /etc/passwd, which services have none of."""
    given = submit_that_fails(tmp_path, monkeypatch)
    if not is_writable:
        monkeypatch.setenv("XDG_CACHE_HOME", str(given.parent / "bin" / "java"))  # a file
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SetupError):
        runtime.jars(["g:a:1"])
    elsewhere = "" if is_writable else f"--conf spark.jars.ivy={tmp_path}/commitlake-{os.getuid()}/ivy "
    options = f"-Duser.language=en -Duser.country=US '-Duser.home={tmp_path}/a home' {elsewhere}"
    assert f"--driver-java-options {options}{Path(runtime.__file__).parent}" in given.read_text()


LAUNCH = """
import sys, pathlib
from commitlake.spark import submit
sys.exit(submit._run(["sh", "-c", sys.argv[2]], {}, pathlib.Path(sys.argv[1])))
"""


@pytest.mark.parametrize("end", ["kill -9 $$", "exit 52"])
def test_where_java_has_ended_by_itself_the_drivers_python_ends_too(tmp_path: Path, end: str) -> None:
    """It held the port of metrics and the embedded broker for 14 s more, so that the next start was refused."""
    driver = subprocess.Popen(["sleep", "60"])
    (tmp_path / "pid").write_text(str(driver.pid))
    python("-c", LAUNCH, str(tmp_path), end)
    gone = driver.poll()
    driver.kill()
    driver.wait()
    assert gone == -signal.SIGKILL


JAVA = "/usr/bin/java"
JARS = ["/jars/a.jar", "/jars/b.jar"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(class_archive.MAKE, raising=False)


def test_without_an_archive_java_gets_no_option() -> None:
    assert class_archive.java_options(JAVA, JARS) == []


def test_with_an_archive_java_uses_it_and_says_nothing_of_it() -> None:
    class_archive.path(JAVA, JARS).touch()
    first, *others = class_archive.java_options(JAVA, JARS)
    assert first == f"-XX:SharedArchiveFile={class_archive.path(JAVA, JARS)}"
    assert "-Xshare:auto" in others, "a Java that can't use it must start all the same"


def test_other_jars_have_another_archive() -> None:
    assert class_archive.path(JAVA, JARS) != class_archive.path(JAVA, JARS[:1])


def test_making_one_never_uses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class_archive.path(JAVA, JARS).touch()
    monkeypatch.setenv(class_archive.MAKE, "/new.jsa")
    assert class_archive.java_options(JAVA, JARS)[0] == "-XX:ArchiveClassesAtExit=/new.jsa"


def test_the_class_path_has_no_jar_that_spark_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ["/ivy/io.delta_delta-spark_4.0_2.13-4.3.1.jar", "/ivy/org.slf4j_slf4j-api-1.7.36.jar"]
    monkeypatch.setattr(runtime, "jars", lambda _: found)
    assert session.jars_of_one_machine() == found[:1]


@pytest.mark.parametrize("master", ["local[2]", "spark://here:7077"])
def test_only_who_parses_avro_gets_sparks_functions_for_it(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    monkeypatch.setattr(runtime, "jars", lambda packages: [f"/ivy/{packages[0]}.jar"])
    monkeypatch.setattr(preflight, "check", lambda *_, **__: None)
    monkeypatch.setattr(runtime, "java", lambda: JAVA)
    name = "spark.driver.extraClassPath" if master.startswith("local") else "spark.jars"
    without, beside = (session.submit_settings(master, avro=avro)[name] for avro in (False, True))
    assert "spark-avro" not in without
    assert beside.startswith(without), "the archive of classes fits only what begins with its jars"
    assert re.search(r"spark-avro_2\.13:4\.\d\.\d", beside)


OWN = {"spark.jars": "/delta.jar", "spark.driver.extraJavaOptions": "-Xss8m", "spark.sql.shuffle.partitions": "2"}


def merged(home: Path, *words: str, own: Mapping[str, str] = OWN) -> dict[str, str]:
    found = given.arguments(own, words, home)
    return given.settings(found)


@pytest.mark.parametrize(
    "words",
    [
        ["--jars", "/s3.jar"],
        ["--jars=/s3.jar"],
        ["--conf", "spark.jars=/s3.jar"],
        ["--conf=spark.jars=/s3.jar"],
        ["-c", "spark.jars=/s3.jar"],
    ],
)
def test_jars_are_added_however_they_are_given(tmp_path: Path, words: list[str]) -> None:
    assert merged(tmp_path, *words)["spark.jars"] == "/delta.jar,/s3.jar"


def test_packages_stand_beside_the_jars(tmp_path: Path) -> None:
    found = merged(tmp_path, "--packages", "org.apache.hadoop:hadoop-aws:3.4.1")
    assert found["spark.jars"] == "/delta.jar"
    assert found["spark.jars.packages"] == "org.apache.hadoop:hadoop-aws:3.4.1"


def test_java_options_come_last_so_that_they_win(tmp_path: Path) -> None:
    found = merged(tmp_path, "--driver-java-options", "-Xss2m -Dx=y")
    assert found["spark.driver.extraJavaOptions"] == "-Xss8m -Xss2m -Dx=y"


def test_of_a_plain_setting_the_operators_value_counts(tmp_path: Path) -> None:
    assert merged(tmp_path, "--conf", "spark.sql.shuffle.partitions=64")["spark.sql.shuffle.partitions"] == "64"


def test_other_words_stay_as_they_are(tmp_path: Path) -> None:
    words = ["--verbose", "--num-executors", "4", "--jars", "/a.jar", "--queue=nightly"]
    found = given.arguments({}, words, tmp_path)
    assert found == ["--conf", "spark.jars=/a.jar", "--verbose", "--num-executors", "4", "--queue=nightly"]


def test_lists_in_sparks_own_defaults_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    (tmp_path / "conf").mkdir()
    lines = ["# a comment", "spark.jars   /site.jar", "spark.executor.memory=4g", "spark.sql.shuffle.partitions: 9", ""]
    (tmp_path / "conf" / "spark-defaults.conf").write_text("\n".join(lines))
    found = merged(tmp_path, "--jars", "/s3.jar")
    assert found["spark.jars"] == "/delta.jar,/site.jar,/s3.jar"
    assert "spark.executor.memory" not in found, "spark-submit reads the file itself"
    assert found["spark.sql.shuffle.partitions"] == "2"


def test_an_option_without_its_value_is_left_to_spark_submit(tmp_path: Path) -> None:
    assert given.arguments({}, ["--jars"], tmp_path) == ["--jars"]


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


def test_the_cluster_gets_packages_and_what_they_require_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wanted = ("python-dateutil", "a-package-that-is-not-there", "pyspark")
    made = executors.archive(wanted)
    with tarfile.open(made) as packed:
        names = packed.getnames()
    assert "dateutil/__init__.py" in names
    assert not any(name.startswith("pyspark/") for name in names)
    written = made.stat().st_mtime_ns
    assert executors.archive(wanted) == made
    assert made.stat().st_mtime_ns == written
    assert executors.settings(wanted)["spark.archives"] == f"{made}#{executors.DIRECTORY}"


def test_a_driver_on_the_cluster_gets_what_commitlake_requires() -> None:
    found = {each.name.lower().replace("_", "-") for each in executors._with_required(executors.of_driver())}
    assert {"delta-spark", "kafka-python", "numpy", "pyyaml", "typer", "psycopg-binary"} <= found
    assert {"pyspark", "py4j", "pytest", "mypy"} & found == set()


def test_what_executors_import_needs_neither_delta_nor_a_kafka_client() -> None:
    imported = "import sys, commitlake.coordinator.coordination.state"
    code = f"{imported}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = python("-c", code, check=True)
    assert {"numpy", "pandas"} <= set(done.stdout.split())
    assert {"delta", "kafka", "yaml", "typer"} & set(done.stdout.split()) == set()
