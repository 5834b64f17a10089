from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from commitlake.errors import SetupError
from commitlake.spark import runtime

SCRIPT = Path(__file__).parents[2] / "spark-submit.sh"
LIBRARY = {**os.environ, "PYTHONPATH": str(SCRIPT.with_name("lib"))}


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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=LIBRARY)
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
    subprocess.run([sys.executable, "-c", LAUNCH, str(tmp_path), end], env=LIBRARY, capture_output=True, check=False)
    gone = driver.poll()
    driver.kill()
    driver.wait()
    assert gone == -signal.SIGKILL
