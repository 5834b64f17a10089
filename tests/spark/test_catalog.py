"""A coordinator whose tables are in a catalog, and all that reads them without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.unity import Unity, serving
from typer.testing import CliRunner

import commitlake
from commitlake.clients.consumer.message import ReceivedMessage
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.tables import TABLES
from commitlake.tools.cli.app import app

SCHEMA = "read_without_spark"


@pytest.fixture(scope="module")
def lake(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Lake, Path]]:
    """What a coordinator has written to a schema, and the schema's place."""
    root = tmp_path_factory.mktemp("catalog")
    place = root / "lake.db"
    spark.sql(f"CREATE DATABASE {SCHEMA} LOCATION '{place}'")
    changes = {"warehouse": f"schema:spark_catalog.{SCHEMA}", "receipts": str(root / "receipts")}
    with Lake(broker.bootstrap_servers, "catalog.", root, **changes) as opened:
        for name in ("a", "b"):
            opened.op("COMMIT", name, opened.half(name, topic="TopicTest", keys=f"k-{name}"))
        opened.op("ROLLBACK", "c", opened.half("c", topic="TopicTest"))
        opened.run(spark)
        yield opened, place
    spark.sql(f"DROP DATABASE {SCHEMA} CASCADE")


@pytest.fixture(params=["the place of the schema", "Unity Catalog's API"])
def settings(lake: tuple[Lake, Path], request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    opened, place = lake
    if request.param == "the place of the schema":
        yield {**opened.settings, "catalog.location": str(place)}
        return
    tables = {f"spark_catalog.{SCHEMA}.{name}": f"file://{place}/{name}" for name in TABLES}
    tables[f"spark_catalog.{SCHEMA}.topic_TopicTest"] = f"file://{place}/topic_topictest"
    with serving(Unity(tables=tables)) as unity:
        yield {**opened.settings, "catalog.url": unity.url}


def answers(settings: dict[str, Any], *words: str, code: int = 0) -> list[dict[str, Any]]:
    given = [f"--set={name}={value}" for name, value in settings.items()]
    done = CliRunner().invoke(app, [*words, "--json", *given])
    assert done.exit_code == code, (done.output, done.exception)
    return [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]


def done(received: ReceivedMessage) -> bytes:
    received.done()
    return received.body


def test_a_consumer_reads_a_topic_of_a_catalog(settings: dict[str, Any], request: pytest.FixtureRequest) -> None:
    group = request.node.callspec.id.replace(" ", "_").replace("'", "")
    with commitlake.consume(settings, "TopicTest", group=group, follow=False) as messages:
        assert sorted(done(each) for each in messages) == [b"a", b"b"]
    (found,) = [row for row in answers(settings, "groups") if row["consumer_group"] == group]
    assert (found["topic"], found["behind"]) == ("TopicTest", 0)
    assert answers(settings, "unfinished", "TopicTest", "--group", "nobody", code=3) == []


def test_questions_read_the_tables_of_a_catalog(settings: dict[str, Any]) -> None:
    found = {row["transaction_id"]: row["state"] for row in answers(settings, "tx", "list")}
    assert found == {"a": "COMMITTED", "b": "COMMITTED", "c": "ROLLED_BACK"}
    assert [row["what"] for row in answers(settings, "find", "k-a")][:2] == ["transaction", "visible"]
    assert [(row["topic"], row["messages"]) for row in answers(settings, "topics")] == [("TopicTest", 2)]
    assert answers(settings, "tx", "show", "a")[0]["half_messages"][0]["visible"]


def test_the_doctor_looks_at_the_tables_of_a_catalog(settings: dict[str, Any]) -> None:
    found = {row["what"]: row for row in answers(settings, "doctor", code=1)}
    assert found["tables"]["is_well"], found
    assert found["tables"]["detail"].startswith(f"schema:spark_catalog.{SCHEMA}, up to batch ")
    assert found["groups"]["is_well"] and found["rejected"]["is_well"], found
    assert found["coordinator"]["detail"].startswith("none runs; the last one was epoch 1 on "), found


def test_a_report_is_written_of_a_catalog(settings: dict[str, Any], tmp_path: Path) -> None:
    given = [f"--set={name}={value}" for name, value in settings.items()]
    done = CliRunner().invoke(app, ["report", "--out", str(tmp_path / "report.html"), *given])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "TopicTest" in (tmp_path / "report.html").read_text()
