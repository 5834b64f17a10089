"""On S3 a start needs a log store with an atomic put, and its jars; and each request costs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from commitlake import config
from commitlake.errors import ConfigError, SetupError
from commitlake.spark import cluster, session

KEY = "spark.delta.logStore.s3a.impl"


@pytest.fixture
def own(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark.newSession()


@pytest.mark.parametrize("store", [None, "io.delta.storage.S3SingleDriverLogStore"])
def test_a_log_store_without_an_atomic_put_is_refused(own: SparkSession, store: str | None) -> None:
    if store:
        own.conf.set(KEY, store)
    with pytest.raises(
        ConfigError, match=r"s3a.impl: io.delta.storage.S3SingleDriverLogStore is not allowed.*rows are"
    ):
        cluster._check_log_store(own, "s3a://bucket/lake")


def test_a_log_store_whose_jars_are_missing_is_refused_with_their_names(own: SparkSession) -> None:
    own.conf.set(KEY, "io.delta.storage.S3DynamoDBLogStore")
    with pytest.raises(SetupError, match=r"can't be loaded .*delta-storage-s3-dynamodb.*aws-java-sdk-dynamodb:1\.12"):
        cluster._check_log_store(own, "s3a://bucket/lake")


def test_another_log_store_is_taken(own: SparkSession) -> None:
    own.conf.set(KEY, "io.delta.storage.HDFSLogStore")
    cluster._check_log_store(own, "s3a://bucket/lake")


def test_elsewhere_delta_knows_what_to_use(own: SparkSession) -> None:
    cluster._check_log_store(own, "hdfs://name/lake")


@pytest.mark.parametrize(
    ("checkpoints", "looks_every"),
    [("/lake/checkpoints", "80ms"), ("hdfs://name/lake", "80ms"), ("s3a://bucket/lake", "500ms")],
)
def test_an_idle_coordinator_asks_an_object_store_for_rows_twice_a_second(
    own: SparkSession, monkeypatch: pytest.MonkeyPatch, checkpoints: str, looks_every: str
) -> None:
    settings = config.from_mapping({"warehouse": "/lake/warehouse", "checkpoints": checkpoints})
    session.apply_settings(own, settings)
    assert own.conf.get("spark.sql.streaming.pollingDelay") == looks_every
    monkeypatch.setenv("COMMITLAKE_SPARK_ARGS", "--conf spark.sql.streaming.pollingDelay=2s")
    session.apply_settings(own, settings)
    assert own.conf.get("spark.sql.streaming.pollingDelay") == "2s", "the operator's value wins"
