"""Access to S3 is given once, by the environment, and holds for Spark and for deltalake."""

from __future__ import annotations

import pytest

from commitlake.config.object_store import spark_settings, storage_options

OWN = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}


def test_without_an_endpoint_of_ones_own_nothing_is_set() -> None:
    assert spark_settings({"AWS_REGION": "eu-central-1"}) == {}
    assert storage_options(None, {"AWS_REGION": "eu-central-1"}) is None


def test_buckets_of_an_own_endpoint_are_directories() -> None:
    assert spark_settings(OWN) == {"spark.hadoop.fs.s3a.path.style.access": "true"}


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [("http://store:9000", {"allow_http": "true"}), ("HTTP://store", {"allow_http": "true"}), ("https://store", None)],
)
def test_an_endpoint_without_tls_is_allowed_where_it_was_asked_for(endpoint: str, expected: object) -> None:
    assert storage_options(None, {"AWS_ENDPOINT_URL": endpoint}) == expected


def test_what_a_caller_gives_counts() -> None:
    assert storage_options({"allow_http": "false", "x": "y"}, OWN) == {"allow_http": "false", "x": "y"}


def test_a_variable_that_is_set_later_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", OWN["AWS_ENDPOINT_URL"])
    assert storage_options({"region": "eu"}) == {"allow_http": "true", "region": "eu"}
