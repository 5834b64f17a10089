"""Java takes its classes from an archive where there is one, and starts without where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlake.spark import class_archive, runtime, session

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
