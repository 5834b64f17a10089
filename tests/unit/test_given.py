"""An operator's arguments for spark-submit add to CommitLake's own; of a plain setting the operator's value counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from commitlake.spark import given

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
