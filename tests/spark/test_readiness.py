"""What `commitlake.doctor` says of a session before a start: a real one, with each thing missing in turn."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession
from tests.support.cluster import free_port
from tests.support.databricks import hide
from tests.support.lake import Lake

import commitlake
from commitlake.config import from_mapping
from commitlake.errors import SetupError
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol.clock import now_ms
from commitlake.spark import cluster, jvm
from commitlake.tools import readiness
from commitlake.tools.findings import Diagnosis

NAMES = ["runtime", "access", "packages", "secrets", "kafka", "clock", "tables", "classes", "checkpoints", "cluster"]


def wrong(spark: SparkSession, settings: dict[str, Any]) -> dict[str, str]:
    """What is missing, by the name of its check."""
    found = readiness.examine(spark, from_mapping(settings))
    assert [each.what for each in found] == NAMES
    return {each.what: each.detail for each in found if not each.is_well}


@pytest.mark.short
def test_a_session_that_has_all_is_told_so_and_nothing_is_written(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {
        **{name: str(tmp_path / name) for name in ("warehouse", "checkpoints")},
        "kafka": {"bootstrap_servers": broker.bootstrap_servers, "topic_prefix": "not-yet."},
    }
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    before = client.list_topics()
    assert commitlake.doctor(spark, settings), capsys.readouterr().out
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["ok", name] for name in ["verdict", *NAMES]]
    assert (client.list_topics(), list(tmp_path.rglob("*"))) == (before, [])
    client.close()


@pytest.mark.parametrize(
    ("changes", "what", "told"),
    [
        ({"kafka.bootstrap_servers": "127.0.0.1:{free}"}, "kafka", "cannot reach Kafka at 127.0.0.1:{free}: "),
        (
            {"kafka.options.sasl.jaas.config": "env:NOT_SET", "kafka.options.ssl.truststore.password": "file:/none"},
            "secrets",
            "the environment variable NOT_SET is not set; .*; kafka.options.ssl.truststore.password: cannot read /none",
        ),
        ({"warehouse": "schema:nowhere.at_all"}, "tables", "nowhere.at_all: .*; CREATE SCHEMA nowhere.at_all, or let "),
        ({"checkpoints": "/dev/null/checkpoints"}, "checkpoints", "/dev/null is not there, or this user may not "),
        ({"checkpoints": "nofs://host/place"}, "checkpoints", 'No FileSystem for scheme "nofs"'),
        ({"warehouse": "{tmp}/not/there"}, "cluster", "the directory {tmp}/not is not there; give a place in one that"),
    ],
)
def test_what_is_missing_is_named_with_a_remedy(
    spark: SparkSession, lake: Lake, tmp_path: Path, changes: dict[str, str], what: str, told: str
) -> None:
    given = {"free": free_port(), "tmp": tmp_path}
    settings = {**lake.settings, **{name: value.format(**given) for name, value in changes.items()}}
    begun = time.monotonic()
    found = wrong(spark, settings)
    assert time.monotonic() - begun < 60
    assert re.search(told.format(**given), found[what]), found


def test_a_hidden_class_is_named_with_what_happens_without_it(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for use in (jvm.APPENDS, jvm.OLD_COMMITS, jvm.CONSOLE):
        with monkeypatch.context() as platform:
            hide(platform, use.names[-1:])
            found = {each.what: each for each in readiness.examine(spark, lake.config)}
            assert found["classes"] == Diagnosis("classes", True, f"without {use.names[-1]} {use.without}")
    hide(monkeypatch, jvm.FILES.names[1:2])
    assert wrong(spark, lake.settings)["classes"].startswith("org.apache.hadoop.fs.Path is hidden; keep tables in a")


def test_a_module_a_runtime_and_a_clock_that_do_not_fit_are_named(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.commit("now")
    find_spec = util.find_spec
    with monkeypatch.context() as machine:
        machine.setattr(readiness, "find_spec", lambda name: None if name == "pandas" else find_spec(name))
        machine.setattr(readiness, "now_ms", lambda: now_ms() - 3_600_000)  # Kafka's newest record may be minutes old
        found = wrong(spark, lake.settings)
    assert found.keys() == {"packages", "clock"}
    assert found["packages"].startswith("the Python modules pandas are not there; install them with ")
    told = r"this machine's clock is at least 3[0-6]\d\d s behind Kafka's; set the clocks of both by NTP"
    assert re.fullmatch(told, found["clock"])
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "16.4")
    old: Any = SimpleNamespace(version="3.5.2")
    with pytest.raises(SetupError, match=r"Databricks 16.4 with Spark 3.5.2, .*: choose a runtime from 17.0 on"):
        readiness._runtime(old, lake.config)


def test_workers_with_another_python_are_named_before_a_start(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All queries began again six times, for minutes, until the coordinator ended."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # which has no packages
    bare.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))
    told = r"the executors can't run this CommitLake: .*No module named 'numpy'.*by PYSPARK_PYTHON before Spark starts"
    assert re.search(told, wrong(spark, lake.settings)["cluster"])
    with pytest.raises(SetupError, match="can't run this CommitLake"):
        commitlake.start(spark, lake.settings)


def test_what_hangs_is_named_in_time(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_WAIT_S", 5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = wrong(spark, {**lake.settings, "kafka.bootstrap_servers": f"127.0.0.1:{silent.getsockname()[1]}"})
    assert found["kafka"] == "no answer within 5 s; does the network let this machine through?"


@pytest.fixture
def unity(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """Views as Unity Catalog has them in each catalog: this user is in a team, which has some rights."""
    for name in ("ready", "information_schema"):
        spark.sql(f"CREATE DATABASE {name} LOCATION '{tmp_path}/{name}'")
    spark.sql("CREATE TEMPORARY FUNCTION is_account_group_member(g STRING) RETURNS BOOLEAN RETURN g = 'team'")
    for kind, columns in (("schema", "schema_name"), ("volume", "volume_schema STRING, volume_name")):
        view, owner = ("schemata", "schema_owner") if kind == "schema" else ("volumes", "volume_owner")
        for table, more in ((f"{kind}_privileges", "grantee STRING, privilege_type"), (view, owner)):
            spark.sql(f"CREATE TABLE information_schema.{table} ({columns} STRING, {more} STRING) USING delta")
    yield
    for name in ("ready", "information_schema"):
        spark.sql(f"DROP DATABASE {name} CASCADE")
    spark.sql("DROP TEMPORARY FUNCTION is_account_group_member")


@pytest.mark.usefixtures("unity")
def test_rights_that_unity_catalog_does_not_list_are_named(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlake.config.databricks._VOLUMES", f"{tmp_path}/Volumes/")
    place = f"{tmp_path}/Volumes/spark_catalog/ready/scratch"
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    settings = {**lake.settings, "warehouse": "schema:spark_catalog.ready", "checkpoints": f"{place}/below"}
    assert wrong(spark, settings)["checkpoints"].startswith(
        f"dbfs:{place}/below: there is no volume spark_catalog.ready.scratch here; CREATE EXTERNAL VOLUME spark_cat"
    )
    Path(place).mkdir(parents=True)
    for right in ("USE_SCHEMA", "SELECT", "MODIFY"):
        spark.sql(f"INSERT INTO information_schema.schema_privileges VALUES ('ready', 'team', '{right}')")
    spark.sql("INSERT INTO information_schema.schema_privileges VALUES ('ready', 'others', 'ALL PRIVILEGES')")
    spark.sql("INSERT INTO information_schema.volume_privileges VALUES ('ready', 'scratch', 'team', 'READ VOLUME')")
    assert wrong(spark, settings) == {
        "tables": "spark_catalog.ready: this user lacks CREATE TABLE; let the owner grant that ON SCHEMA "
        "spark_catalog.ready",
        "checkpoints": "spark_catalog.ready.scratch: this user lacks WRITE VOLUME; let the owner grant that ON "
        "VOLUME spark_catalog.ready.scratch",
    }
    spark.sql("INSERT INTO information_schema.schema_privileges VALUES ('ready', current_user(), 'CREATE_TABLE')")
    spark.sql("INSERT INTO information_schema.volumes VALUES ('ready', 'scratch', current_user())")
    assert wrong(spark, settings) == {}


@pytest.mark.parametrize(
    ("place", "default", "found"),
    [
        ("/lake", "file:///", "/lake"),
        ("/lake", "hdfs://node:8020", "hdfs://node:8020/lake"),
        ("hdfs:///lake", "hdfs://node:8020", "hdfs://node:8020/lake"),
        ("hdfs://other/lake", "hdfs://node:8020", "hdfs://other/lake"),
        ("file:///lake", "hdfs://node:8020", "file:/lake"),
        ("schema:main.lake", "hdfs://node:8020", "schema:main.lake"),
    ],
)
def test_a_place_is_named_as_spark_resolves_it(spark: SparkSession, place: str, default: str, found: str) -> None:
    hadoop = jvm.hadoop(spark)
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", default)
    try:
        assert cluster.resolved(spark, from_mapping({"warehouse": place})).warehouse == found
    finally:
        hadoop.set("fs.defaultFS", before)
